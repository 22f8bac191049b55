/* SPDX-License-Identifier: BSD-2-Clause */
/* The log: levels, and one line each. A write of ours never harms the process: closed and reused
 * descriptors, broken and full pipes, file size limits, errno. Each scene runs in a child, since
 * some of them kill it if they fail. */
#include "shim/process/clock.h"
#include "shim/process/log.h"
#include "tests/unit/capture.h"

#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char dir[] = "/tmp/gpucache-log-XXXXXX";

/* Runs a scene of this program in a process of its own, which has not yet looked at its stderr.
 * Gives 0 for success, the scene's own number otherwise, -signal if it was killed. */
static int in_child(const char *scene)
{
    pid_t pid = fork();
    if (!pid) {
        execl("/proc/self/exe", "test_log", scene, dir, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    int status = child_status(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* A test whose body, a scene, is such a process. */
static struct {
    const char *name;
    int (*run)(void);
} scenes[16];
static size_t num_scenes;

#define CHILD_TEST(test, scene)                                                                    \
    static int scene(void);                                                                        \
    __attribute__((constructor)) static void list_##scene(void)                                    \
    {                                                                                              \
        scenes[num_scenes].name = #scene;                                                          \
        scenes[num_scenes++].run = scene;                                                          \
    }                                                                                              \
    TEST_IS(test, assert_int_equal(in_child(#scene), 0))                                           \
    static int scene(void)

/* A path in the folder. The last two stay. */
static const char *in_dir(const char *name)
{
    static char paths[2][PATH_MAX];
    static unsigned count;
    char *path = paths[count++ % 2];
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return path;
}

static size_t read_file(const char *path, char *out, size_t size_bytes)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        out[0] = '\0';
        return 0;
    }
    size_t n = fread(out, 1, size_bytes - 1, f);
    out[n] = '\0';
    fclose(f);
    return n;
}

TEST(lines_up_to_the_level_are_written)
{
    char said[4096];
    capture_begin();
    log_configure(LOG_LEVEL_INFO, NULL);
    errno = 4711;
    log_error("a %d", 1);
    log_warn("b");
    log_info("c");
    log_debug("d");
    assert_int_equal(errno, 4711);
    log_configure(LOG_LEVEL_OFF, NULL);
    log_error("e");
    capture_end(said, sizeof said);
    assert_string_equal(said, "gpucache: error: a 1\ngpucache: warning: b\ngpucache: info: c\n");
}

TEST(once_is_once_and_only_counts_when_written)
{
    char said[4096];
    capture_begin();
    for (int i = 0; i < 5; i++) {
        log_configure(i < 2 ? LOG_LEVEL_ERROR : LOG_LEVEL_WARN, NULL);
        log_once(LOG_LEVEL_WARN, "round %d", i);
    }
    capture_end(said, sizeof said);
    assert_string_equal(said, "gpucache: warning: round 2\n");
}

TEST(a_long_line_is_cut_and_control_characters_replaced)
{
    static char text[3000], said[8192];
    memset(text, 'x', sizeof text - 1);
    text[1] = '\n';
    text[2] = '\x1b';
    capture_begin();
    log_configure(LOG_LEVEL_WARN, "");
    log_warn("%s", text);
    capture_end(said, sizeof said);
    assert_int_equal(strlen(said), 1001);
    assert_memory_equal(said, "gpucache: warning: x??xxx", 25);
    assert_ptr_equal(strchr(said, '\n'), said + 1000);
}

TEST(a_file_gets_the_lines_and_the_process_id_in_its_name)
{
    char name[64], text[256];
    snprintf(name, sizeof name, "100%%-%ld.log", (long)getpid());
    const char *pattern = in_dir("100%%-%p.log"), *path = in_dir(name);
    log_configure(LOG_LEVEL_WARN, pattern);
    log_warn("one");
    log_warn("two");
    log_configure(LOG_LEVEL_WARN, NULL);
    read_file(path, text, sizeof text);
    assert_string_equal(text, "gpucache: warning: one\ngpucache: warning: two\n");
    assert_true(log_put(pattern, "anew\n", 5));
    read_file(path, text, sizeof text);
    assert_string_equal(text, "anew\n");
}

/* The program closes all its files, ours too if there were any, and opens its own as fd 2. */
CHILD_TEST(a_stderr_that_became_another_file_is_left_alone, scene_reused_stderr)
{
    const char *path = in_dir("database");
    struct stat st;
    log_configure(LOG_LEVEL_WARN, NULL);
    for (int fd = 0; fd < 256; fd++)
        close(fd);
    for (int fd = 0; fd < 10; fd++)
        if (open(path, O_RDWR | O_CREAT, 0600) != fd)
            return 1;
    log_warn("must not go there");
    if (log_put(NULL, "nor this", 8))
        return 2;
    return stat(path, &st) || st.st_size != 0 ? 3 : 0;
}

static void *log_often(void *unused)
{
    for (int i = 0; i < 200; i++)
        log_info("a line that comes whole");
    return unused;
}

static int count_lines(const char *path)
{
    static char text[65536];
    static const char line[] = "gpucache: info: a line that comes whole\n";
    int n = 0;
    read_file(path, text, sizeof text);
    for (const char *p = text; *p; p += sizeof line - 1, n++)
        if (strncmp(p, line, sizeof line - 1) != 0)
            return -10000;
    return n;
}

CHILD_TEST(the_target_may_change_while_threads_log, scene_changes)
{
    const char *paths[] = {in_dir("one.log"), in_dir("two.log")};
    pthread_t threads[4];
    log_configure(LOG_LEVEL_INFO, paths[0]);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, log_often, NULL);
    for (int i = 0; i < 300; i++) {
        if (!log_configure(i % 3 ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, paths[i % 2]))
            return 1;
        usleep(100);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return count_lines(paths[0]) + count_lines(paths[1]) == 800 ? 0 : 2;
}

CHILD_TEST(a_process_has_no_more_than_64_targets, scene_many_targets)
{
    const char *last = NULL;
    char name[32], text[256];
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof name, "many-%d.log", i);
        last = in_dir(name);
        if (!log_configure(LOG_LEVEL_WARN, last))
            return 1;
    }
    if (log_configure(LOG_LEVEL_DEBUG, in_dir("more.log")) || log_wants(LOG_LEVEL_DEBUG))
        return 2;
    log_warn("to the last one");
    read_file(last, text, sizeof text);
    return strcmp(text, "gpucache: warning: to the last one\n") ? 3 : 0;
}

TEST(each_file_that_cannot_be_written_is_complained_of)
{
    char said[1024];
    for (int i = 0; i < 2; i++) {
        capture_begin();
        log_configure(LOG_LEVEL_WARN, i ? "/no/such/folder" : "/nor/this/one");
        log_warn("x");
        log_warn("y");
        capture_end(said, sizeof said);
        assert_non_null(strstr(said, i ? "written to /no/such" : "written to /nor/this"));
        assert_null(strstr(said, "warning: y"));
    }
    log_configure(LOG_LEVEL_WARN, NULL);
}

CHILD_TEST(no_descriptor_is_held_between_two_lines, scene_no_descriptor)
{
    const char *path = in_dir("some.log");
    int before = dup(1);
    log_configure(LOG_LEVEL_WARN, path);
    log_warn("x");
    log_put(path, "y", 1);
    return dup(1) == before + 1 ? 0 : 1;
}

CHILD_TEST(a_broken_pipe_does_not_kill_the_program, scene_broken_pipe)
{
    sigset_t pending, mask;
    int p[2];
    if (pipe(p) || dup2(p[1], 2) != 2)
        return 1;
    close(p[0]);
    close(p[1]);
    log_configure(LOG_LEVEL_WARN, NULL);
    errno = 4711;
    log_warn("nobody reads");
    if (errno != 4711)
        return 2;
    sigpending(&pending);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    return sigismember(&pending, SIGPIPE) || sigismember(&mask, SIGPIPE) ? 3 : 0;
}

CHILD_TEST(a_signal_that_the_program_has_pending_stays_so, scene_pending_signal_kept)
{
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGPIPE);
    if (scene_broken_pipe() != 3)
        return 1;
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) ? 0 : 2;
}

CHILD_TEST(a_file_size_limit_does_not_kill_the_program, scene_file_limit)
{
    struct rlimit limit = {10, 10};
    const char *path = in_dir("limited.log");
    log_configure(LOG_LEVEL_WARN, path);
    if (setrlimit(RLIMIT_FSIZE, &limit))
        return 1;
    log_warn("more than ten bytes");
    log_warn("and again");
    return log_put(path, "twelve bytes", 12) ? 2 : 0;
}

CHILD_TEST(a_full_pipe_is_given_up, scene_full_pipe)
{
    static char text[1 << 20];
    int64_t start_ms;
    int p[2];
    if (pipe(p) || dup2(p[1], 2) != 2)
        return 1;
    log_configure(LOG_LEVEL_WARN, NULL);
    memset(text, 'x', sizeof text);
    start_ms = clock_now_ms();
    if (log_put(NULL, text, sizeof text))
        return 2;
    log_warn("one more");
    return clock_now_ms() - start_ms < 5000 ? 0 : 3;
}

CHILD_TEST(a_fifo_without_a_reader_is_not_waited_for, scene_fifo)
{
    const char *path = in_dir("fifo");
    if (mkfifo(path, 0600))
        return 1;
    errno = 4711;
    if (log_put(path, "x", 1))
        return 2;
    return errno == 4711 ? 0 : 3;
}

CHILD_TEST(a_large_text_arrives_whole, scene_large_text)
{
    static char text[300000], back[sizeof text + 2];
    const char *path = in_dir("large");
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i % 23);
    if (!log_put(path, text, sizeof text))
        return 1;
    return read_file(path, back, sizeof back) == sizeof text && !memcmp(text, back, sizeof text)
               ? 0
               : 2;
}

static int clean(void **state)
{
    char command[PATH_MAX];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static int make_dir(void **state)
{
    return mkdtemp(dir) ? 0 : -1;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 3 && i < num_scenes; i++) {
        if (strcmp(scenes[i].name, argv[1]) != 0)
            continue;
        strcpy(dir, argv[2]);
        alarm(20);
        return scenes[i].run();
    }
    return play_tests(make_dir, clean);
}
