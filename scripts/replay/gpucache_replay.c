/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Says what the pool would have done with the requests of a trace under other settings:
 *
 *   gpucache-replay SECONDS GPU_BYTES TRACE SETTING..
 *
 * For the tool gpucache. A setting is given up after so many seconds on a CPU. GPU_BYTES 0: as the
 * trace says.
 * SETTING is "" or words like "MAX_IDLE=1G BACKING=segment"; MAX_RESERVED=least looks for the least
 * limit under which no request fails. stdout has a line of JSON for the trace, then one for each
 * setting, as they are done. Exit code 1 with a line on stderr: there is no replay at all.
 *
 * Each setting runs in a child of its own, as many at a time as there are CPUs: a pool keeps some
 * state of a process, and one that fails does not take the others with it. They end with their
 * parent: whoever reads what it says would wait for them.
 */
#include "scripts/replay/recording.h"
#include "scripts/replay/rerun.h"
#include "scripts/replay/setting.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)
/* Where neither the trace nor the caller says how large the GPU is. */
#define GPU_BYTES (UINT64_C(80) << 30)

enum { SETTINGS_MOST = 32, ARGUMENTS = 4 };

struct child {
    pid_t pid;
    int setting;
};

struct work {
    struct recording recording;
    struct setting settings[SETTINGS_MOST];
    int count, started;
    uint64_t gpu_bytes, deadline_ns;
    struct child children[SETTINGS_MOST];
    struct pollfd pipes[SETTINGS_MOST]; /* one for each child */
    int running;
};

static int cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    int number = CPU_COUNT(&set);
    return number < SETTINGS_MOST ? number : SETTINGS_MOST;
}

static void tell(int setting, const struct rerun *r)
{
    static const char *const words[] = {"done", "late", "bounded", "broken"};
    printf("{\"setting\": %d, \"state\": \"%s\", \"max_reserved\": ", setting, words[r->state]);
    if (r->max_reserved_bytes == UINT64_MAX)
        printf("null");
    else
        printf("%llu", (unsigned long long)r->max_reserved_bytes);
    printf(", \"peak\": %llu, \"mean\": %llu, \"failed\": %llu, \"first_failed_ns\": %llu, "
           "\"first_failed_bytes\": %llu, \"driver_ns\": %llu, \"busy_ns\": %llu}\n",
           (unsigned long long)r->peak_bytes, (unsigned long long)r->mean_bytes,
           (unsigned long long)r->num_failed, (unsigned long long)r->first_failed_ns,
           (unsigned long long)r->first_failed_bytes, (unsigned long long)r->driver_ns,
           (unsigned long long)r->busy_ns);
    fflush(stdout);
}

static void in_child(struct work *w, int setting, int to, pid_t parent)
{
    struct rerun result;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) || getppid() != parent)
        _exit(1);
    rerun(&result, &w->recording, &w->settings[setting], w->gpu_bytes, w->deadline_ns);
    _exit(write(to, &result, sizeof result) == (ssize_t)sizeof result ? 0 : 1);
}

/* False: no more processes or descriptors. */
static bool start_next(struct work *w)
{
    int ends[2];
    if (pipe(ends))
        return false;
    pid_t own = getpid(), pid = fork();
    if (!pid) {
        close(ends[0]);
        in_child(w, w->started, ends[1], own);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return false;
    }
    w->children[w->running] = (struct child){.pid = pid, .setting = w->started++};
    w->pipes[w->running++] = (struct pollfd){.fd = ends[0], .events = POLLIN};
    return true;
}

static void finish(struct work *w, int at)
{
    struct rerun result = {.state = RERUN_BROKEN};
    if (read(w->pipes[at].fd, &result, sizeof result) != (ssize_t)sizeof result)
        result = (struct rerun){.state = RERUN_BROKEN};
    close(w->pipes[at].fd);
    waitpid(w->children[at].pid, NULL, 0);
    tell(w->children[at].setting, &result);
    w->children[at] = w->children[--w->running];
    w->pipes[at] = w->pipes[w->running];
}

static void run_all(struct work *w)
{
    int most = cpus();
    while (w->started < w->count || w->running) {
        while (w->running < most && w->started < w->count)
            if (!start_next(w))
                break;
        if (!w->running)
            break;
        if (poll(w->pipes, (nfds_t)w->running, -1) < 0)
            continue;
        for (int i = w->running - 1; i >= 0; i--)
            if (w->pipes[i].revents)
                finish(w, i);
    }
    for (; w->started < w->count; w->started++)
        tell(w->started, &(struct rerun){.state = RERUN_LATE});
}

static bool number_of(const char *words, uint64_t *number)
{
    char *end;
    *number = strtoull(words, &end, 10);
    return *words >= '0' && *words <= '9' && !*end;
}

static int refuse(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

int main(int argc, char **argv)
{
    static struct work w;
    uint64_t seconds;

    if (argc < ARGUMENTS || argc > ARGUMENTS + SETTINGS_MOST || !number_of(argv[1], &seconds) ||
        !number_of(argv[2], &w.gpu_bytes)) {
        fprintf(stderr, "usage: %s SECONDS GPU_BYTES TRACE SETTING..\n", argv[0]);
        return 2;
    }
    const char *why = recording_read(&w.recording, argv[3]);
    if (why)
        return refuse(argv[3], why);
    if (!w.gpu_bytes)
        w.gpu_bytes = w.recording.gpu_bytes ? w.recording.gpu_bytes : GPU_BYTES;
    w.count = argc - ARGUMENTS;
    for (int i = 0; i < w.count; i++) {
        why = setting_read(&w.settings[i], argv[ARGUMENTS + i], w.gpu_bytes);
        if (why)
            return refuse(argv[ARGUMENTS + i], why);
    }
    printf("{\"events\": %zu, \"peak_live\": %llu, \"gpu_bytes\": %llu, \"gpus\": %u}\n",
           w.recording.count, (unsigned long long)w.recording.peak_live_bytes,
           (unsigned long long)w.gpu_bytes, w.recording.num_gpus);
    fflush(stdout);
    w.deadline_ns = seconds * SECOND_NS;
    run_all(&w);
    recording_finish(&w.recording);
    return 0;
}
