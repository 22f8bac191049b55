/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See objects.h. All state is that of the thread that has `looking`.
 */
#include "shim/trace/objects.h"

#include "shim/process/cancel.h"
#include "shim/process/fnv.h"
#include "shim/process/kernel.h"
#include "shim/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { OBJECTS_MAX = 2048, READ_BYTES = 4096, LINE_MAX_BYTES = 1200 };

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

/* "7f00-7f10 r-xp 00001000 08:01 1234    /usr/lib/libc.so.6" */
static void take_line(const char *line)
{
    uint64_t start, end, offset;
    char rights[5];
    int at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*s %*s %n", &start, &end, rights,
               &offset, &at) != 4 ||
        !at || rights[2] != 'x' || line[at] != '/' ||
        is_known(fnv_add(FNV_EMPTY, line, strlen(line))))
        return;
    char text[TRACE_TEXT_MAX + 1];
    snprintf(text, sizeof text, "%" PRIx64 " %s", offset, line + at);
    TRACE(OBJECT, .a = start, .b = end - start, .text = text);
}

static void read_maps(int fd)
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
            take_line(line);
            n = 0;
        }
}

void trace_objects_note(void)
{
    uint32_t trace = atomic_load(&trace_now);
    struct stat st;
    if (!trace || atomic_flag_test_and_set(&looking))
        return;
    int saved_errno = errno, cancel = cancel_forbid();
    if (known_trace != trace) {
        known_trace = trace;
        num_known = 0;
    }
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && !kernel_fstat(fd, &st)) {
        read_maps(fd);
        kernel_close_own(fd, &st);
    }
    atomic_flag_clear(&looking);
    cancel_allow(cancel);
    errno = saved_errno;
}
