/* SPDX-License-Identifier: BSD-2-Clause */
/* Another preload, with the records of a C library older than the counts of loaded objects: they
 * are shorter, and say so. A read behind a record's end is a SIGSEGV. */
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { SHORT_BYTES = offsetof(struct dl_phdr_info, dlpi_adds) };

typedef int visit_fn(struct dl_phdr_info *info, size_t size_bytes, void *arg);

struct walk {
    visit_fn *visit;
    void *arg;
    struct dl_phdr_info *record; /* its short part ends where no memory is */
};

static int (*next)(visit_fn *, void *);

/* Later it might wait for the loader's lock, which the walk itself does not take. */
__attribute__((constructor)) static void find_next(void)
{
    void *symbol = dlsym(RTLD_NEXT, "dl_iterate_phdr");
    memcpy(&next, &symbol, sizeof next);
}

static int visit_short(struct dl_phdr_info *info, size_t size_bytes, void *arg)
{
    struct walk *walk = arg;
    memcpy(walk->record, info, SHORT_BYTES);
    return walk->visit(walk->record, SHORT_BYTES, walk->arg);
}

EXPORT int dl_iterate_phdr(visit_fn *visit, void *arg)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *pages =
        mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!next || pages == MAP_FAILED || mprotect(pages + page_bytes, page_bytes, PROT_NONE))
        abort();
    struct walk walk = {visit, arg, (void *)(pages + page_bytes - SHORT_BYTES)};
    int rc = next(visit_short, &walk);
    munmap(pages, 2 * page_bytes);
    return rc;
}
