/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See objects.h. All state is that of the thread that has `looking`.
 */
#include "shim/trace/objects.h"

#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/fnv.h"
#include "shim/process/kernel.h"
#include "shim/process/proc_text.h"
#include "shim/trace/trace.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { OBJECTS_MAX = 2048, READ_BYTES = 4096, LINE_MAX_BYTES = 1200, LOOK_TRIES = 100 };

/* What was recorded: a hash of the line. Full: further code has no name. */
static uint64_t known[OBJECTS_MAX];
static unsigned num_known;
static uint32_t known_trace; /* whose they are */
static atomic_flag looking = ATOMIC_FLAG_INIT;

static bool is_known(uint64_t h)
{
    for (unsigned i = 0; i < num_known; i++)
        if (known[i] == h)
            return true;
    if (num_known == OBJECTS_MAX)
        return true;
    known[num_known++] = h;
    return false;
}

static void note_new(const struct trace_object *o, const char *line)
{
    if (!is_known(fnv_add(FNV_EMPTY, line, strlen(line))))
        trace_object_note(o);
}

void trace_object_note(const struct trace_object *o)
{
    char text[TRACE_TEXT_MAX + 1];
    snprintf(text, sizeof text, "%" PRIx64 " %s", o->offset, o->path);
    TRACE(OBJECT, .a = o->start, .b = o->end - o->start, .text = text);
}

/* Behind the hexadecimal number at p and the character `end`, or NULL. sscanf has a symbol version
 * of the building machine's C library. */
static const char *read_hex(const char *p, char end, uint64_t *out)
{
    const char *digits = p;
    for (*out = 0; isxdigit((unsigned char)*p); p++)
        *out = *out << 4 | (unsigned)(*p <= '9' ? *p - '0' : (*p | 0x20) - 'a' + 10);
    return p > digits && *p == end ? p + 1 : NULL;
}

/* "7f00-7f10 r-xp 00001000 08:01 1234    /usr/lib/libc.so.6" */
static void take_line(const char *line, trace_object_do *f)
{
    uint64_t start, end, offset;
    const char *p = read_hex(line, '-', &start);
    p = p ? read_hex(p, ' ', &end) : NULL;
    if (!p || strnlen(p, 5) < 5 || p[2] != 'x')
        return;
    p = read_hex(p + 5, ' ', &offset);
    for (int word = 0; p && word < 2; word++) { /* device, inode */
        p += strcspn(p, " ");
        p += strspn(p, " ");
    }
    if (p && *p == '/')
        f(&(const struct trace_object){start, end, offset, p}, line);
}

static void read_lines(int fd, trace_object_do *f)
{
    static char buffer[READ_BYTES]; /* the thread's stack may be small */
    static char line[LINE_MAX_BYTES];
    size_t n = 0;
    for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;)
        for (ssize_t i = 0; i < got; i++) {
            if (buffer[i] != '\n') {
                n += n + 1 < sizeof line;
                line[n - 1] = buffer[i];
                continue;
            }
            line[n] = '\0';
            take_line(line, f);
            n = 0;
        }
}

/* With `looking`. */
static void read_maps(trace_object_do *f)
{
    struct stat st;
    char path[PROC_TEXT_PATH_BYTES];
    proc_text_own_path(path, "maps");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && !kernel_fstat(fd, &st)) {
        read_lines(fd, f);
        kernel_close_own(fd, &st);
    }
}

void trace_objects_note(void)
{
    uint32_t trace = atomic_load(&trace_now);
    if (!trace || atomic_flag_test_and_set(&looking))
        return;
    int saved_errno = errno, cancel = cancel_forbid();
    if (known_trace != trace) {
        known_trace = trace;
        num_known = 0;
    }
    read_maps(note_new);
    atomic_flag_clear(&looking);
    cancel_allow(cancel);
    errno = saved_errno;
}

void trace_objects_each(trace_object_do *f)
{
    int saved_errno = errno, cancel = cancel_forbid();
    for (int i = 0; i < LOOK_TRIES; i++) {
        if (!atomic_flag_test_and_set(&looking)) {
            read_maps(f);
            atomic_flag_clear(&looking);
            break;
        }
        clock_sleep(MS_NS);
    }
    cancel_allow(cancel);
    errno = saved_errno;
}
