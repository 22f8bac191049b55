/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See backing.h. Some libraries register device memory with a network card or share it by legacy
 * IPC. They accept memory of the VMM functions slowly or not at all. If a process has loaded one of
 * them when its pool starts, the pool gets segments. NVSHMEM is not among them: PyTorch always
 * loads it, and NVSHMEM allocates its symmetric memory itself.
 */
#include "shim/driver/backing.h"

#include "shim/driver/hooks.h"

#include <link.h>
#include <string.h>

static const struct library libraries[] = {
#define LIBRARY(name, reason) {name, reason},
#include "shim/driver/backing.def"
};

/* The name ends where a version, the suffix of a family's part, or a package's mark begins. */
static bool is_named(const char *file, const char *name)
{
    size_t length = strlen(name);
    return strncmp(file, name, length) == 0 && file[length] && strchr(".-_", file[length]) &&
           strstr(file + length, ".so");
}

struct search {
    const struct library *list, *found;
    size_t count;
};

static int look_at_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct search *s = arg;
    const char *file = strrchr(info->dlpi_name, '/');
    file = file ? file + 1 : info->dlpi_name;
    for (size_t i = 0; i < s->count && !s->found; i++)
        if (is_named(file, s->list[i].name))
            s->found = &s->list[i];
    return s->found != NULL;
}

const struct library *library_find(const struct library *list, size_t count)
{
    struct search s = {.list = list, .count = count};
    dl_iterate_phdr(look_at_object, &s);
    return s.found;
}

static const struct library *find_library(void)
{
    return library_find(libraries, sizeof libraries / sizeof libraries[0]);
}

bool backing_library_is_loaded(void)
{
    return find_library();
}

/* Is there a device that cannot reach this one's memory? The driver copies between such devices,
 * but not mapped memory. */
static bool is_apart(CUdevice device)
{
    int count = 0, can = 1;
    if (real.cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return false;
    for (CUdevice other = 0; other < count && can; other++)
        if (other != device && real.cuDeviceCanAccessPeer(&can, other, device) != CUDA_SUCCESS)
            can = 1;
    return !can;
}

void backing_choose(const struct device_backend *d, struct pool_config *config,
                    const char **backing, const char **reason)
{
    const struct library *library = NULL;
    bool apart = false;
    switch (config->backing) {
    case BACKING_DRIVER:
        *backing = "driver";
        *reason = "asked for";
        return;
    case BACKING_SEGMENT:
        *backing = "segment";
        *reason = "asked for";
        return;
    case BACKING_ARENA:
        *reason = "asked for";
        break;
    case BACKING_AUTO:
        *reason = "the default, as nothing here needs segments";
        if (d->base.has_arena)
            library = find_library();
        apart = d->base.has_arena && is_apart(d->device);
        break;
    }
    config->backing = d->base.has_arena && !library && !apart ? BACKING_ARENA : BACKING_SEGMENT;
    *backing = config->backing == BACKING_ARENA ? "arena" : "segment";
    if (!d->base.has_arena)
        *reason = "the device has no virtual memory management";
    else if (library)
        *reason = library->reason;
    else if (apart)
        *reason = "not all devices here are peers: the driver copies between them, "
                  "but no mapped memory";
}
