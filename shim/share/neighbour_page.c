/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See neighbour_page.h. `asking` guards all static data.
 */
#include "shim/share/neighbour_page.h"

#include "shim/page/client.h"
#include "shim/process/clock.h"
#include "shim/process/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

enum { HEAD_BYTES = offsetof(struct page, zero5) };

struct page neighbour_page; /* only its first HEAD_BYTES are ever touched */

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
static char entries[8192]; /* of the directory */

bool neighbour_page_lock(uint64_t until_ns)
{
    while (pthread_mutex_trylock(&asking)) {
        if (clock_now_ns() >= until_ns)
            return false;
        clock_sleep(MS_NS / 2);
    }
    return true;
}

void neighbour_page_unlock(void)
{
    pthread_mutex_unlock(&asking);
}

bool neighbour_page_read(int folder, const char *name, const struct page_id *its)
{
    const struct page *p = &neighbour_page;
    struct stat st;
    int fd = loan_request_open_page(folder, name, O_RDONLY, &st);
    if (fd < 0)
        return false;
    bool read_whole = pread(fd, &neighbour_page, HEAD_BYTES, 0) == HEAD_BYTES;
    /* The numbers only choose an order, so a page that is being written is read once more and then
     * taken as it is. */
    if (read_whole && (p->sequence & 1))
        read_whole = pread(fd, &neighbour_page, HEAD_BYTES, 0) == HEAD_BYTES;
    close(fd);
    return read_whole && !memcmp(p->magic, PAGE_MAGIC, sizeof p->magic) &&
           p->version == PAGE_VERSION && p->size_bytes == sizeof(struct page) &&
           p->uid == geteuid() && p->pid_namespace == its->pid_namespace && p->pid == its->pid &&
           p->start_ticks == its->start_ticks;
}

const struct page_gpu *neighbour_page_gpu(const unsigned char *uuid)
{
    const struct page *p = &neighbour_page;
    uint32_t count = p->num_gpus < PAGE_GPUS_MAX ? p->num_gpus : PAGE_GPUS_MAX;
    for (uint32_t i = 0; i < count; i++)
        if (!memcmp(p->gpus[i].uuid, uuid, sizeof p->gpus[i].uuid))
            return &p->gpus[i];
    return NULL;
}

bool neighbour_page_is_of_another(const char *name, const struct page_id *self, struct page_id *its)
{
    if (strlen(name) >= PAGE_NAME_MAX || !page_id_parse(name, its))
        return false;
    return its->pid_namespace != self->pid_namespace ||
           (its->pid != self->pid && its->pid <= INT_MAX &&
            !(kill((pid_t)its->pid, 0) && errno == ESRCH));
}

void neighbour_page_each(int folder, bool (*f)(void *arg, int folder, const char *name), void *arg)
{
    long got;
    while ((got = kernel_getdents(folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < got;) {
            unsigned short length;
            if (!f(arg, folder, kernel_entry(entries + at, &length)))
                return;
            at += length;
        }
}
