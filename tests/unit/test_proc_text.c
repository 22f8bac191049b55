/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/process/proc_text.c: what a process reads of itself once its first thread has ended. */
#include "shim/page/dir.h"
#include "shim/process/kernel.h"
#include "shim/process/proc_text.h"
#include "shim/process/program.h"
#include "shim/trace/fast.h"
#include "shim/trace/objects.h"

#include "tests/unit/proc.h"

enum { NO_PATH = 1, NO_OBJECT = 2, NO_NAME = 4, NO_COMMAND = 8, NO_RIGHTS = 16, NO_END = 32 };

static char folder[] = "/tmp/test_proc_text-XXXXXX";
static int num_objects;

static void count_object(const struct trace_object *o, const char *line)
{
    num_objects++;
}

static void *look(void *unused)
{
    static struct trace_header h;
    char path[PROC_TEXT_PATH_BYTES], name[PROGRAM_PATH_MAX], made[64];
    const char *why;
    struct stat st;
    int faults = await_task_state(getpid(), getpid(), 'Z') ? 0 : NO_END;
    proc_text_own_path(path, "maps");
    faults |= kernel_fstatat(AT_FDCWD, path, &st, 0) ? NO_PATH : 0;
    trace_objects_each(count_object);
    faults |= num_objects ? 0 : NO_OBJECT;
    faults |= program_file_name(name, sizeof name) ? 0 : NO_NAME;
    trace_fill_header(&h);
    faults |= h.command[0] ? 0 : NO_COMMAND;
    umask(0700);
    snprintf(made, sizeof made, "%s/made", folder);
    int dir = page_dir_make(made, &why);
    faults |= dir < 0 || kernel_fstat(dir, &st) || (st.st_mode & 0777) != 0700 ? NO_RIGHTS : 0;
    _exit(faults);
    return unused;
}

TEST(a_process_reads_of_itself_when_its_first_thread_has_ended)
{
    pthread_t thread;
    char made[64];
    assert_non_null(mkdtemp(folder));
    pid_t child = fork();
    if (!child) {
        pthread_create(&thread, NULL, look, NULL);
        syscall(SYS_exit, 0);
    }
    int status = child_status(child);
    snprintf(made, sizeof made, "%s/made", folder);
    rmdir(made);
    rmdir(folder);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

PLAY_TESTS
