/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Preloaded into a Python program: a thread of the library's keeps some locks 20 ms longer.
 *  - Locks of the interpreter. Until 3.12 they are semaphores, also that of the list of threads,
 *    which a new thread takes without the interpreter's own lock.
 *  - The loader's lock of dl_iterate_phdr, which the C library does not free in a forked child.
 */
#include <dlfcn.h>
#include <link.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { NAME_BYTES = 16, LONGER_US = 20000 };

static bool is_the_librarys(void)
{
    char name[NAME_BYTES] = "";
    return prctl(PR_GET_NAME, name) == 0 && strncmp(name, "gpucache", strlen("gpucache")) == 0;
}

typedef int visit_fn(struct dl_phdr_info *info, size_t size, void *arg);

static int (*next_post)(sem_t *semaphore);
static int (*next_iterate)(visit_fn *visit, void *arg);

/* Later it might wait for the loader's other lock. */
__attribute__((constructor)) static void find_next(void)
{
    next_post = (int (*)(sem_t *))(uintptr_t)dlsym(RTLD_NEXT, "sem_post");
    next_iterate = (int (*)(visit_fn *, void *))(uintptr_t)dlsym(RTLD_NEXT, "dl_iterate_phdr");
}

int sem_post(sem_t *semaphore)
{
    if (is_the_librarys())
        usleep(LONGER_US);
    return next_post(semaphore);
}

struct visit {
    visit_fn *visit;
    void *arg;
    bool is_late;
};

static int visit_late(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct visit *late = arg;
    if (!late->is_late && is_the_librarys())
        usleep(LONGER_US);
    late->is_late = true;
    return late->visit(info, size, late->arg);
}

int dl_iterate_phdr(visit_fn *visit, void *arg)
{
    return next_iterate(visit_late, &(struct visit){.visit = visit, .arg = arg});
}
