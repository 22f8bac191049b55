/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See store.h; the numbers below are those of its steps.
 */
#include "shim/park/store.h"

#include "pool/bits.h"
#include "shim/process/decimal.h"
#include "shim/process/proc_text.h"
#include "shim/process/text.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MIB (UINT64_C(1) << 20)
#define HUGE_PAGE_BYTES (2 * MIB)
/* What a park leaves to others, besides the twentieth part of what is to come. */
#define SPARE_BYTES (256 * MIB)
/* So much becomes usable at a time, after another look at the room. */
#define STEP_BYTES (256 * MIB)
/* Free ranges of less than that are kept with the bytes beside them (pool/park.c). */
#define LEAST_GAP_BYTES (256 * (UINT64_C(1) << 10))

enum { FILE_BYTES = 8192, PATH_BYTES = 512 };

/* The number behind a word at the start of a line. False: it has none. */
static bool find_number(const char *text, const char *word, uint64_t *out)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *p = line + strlen(word);

        if (strncmp(line, word, strlen(word)) != 0)
            continue;
        p += strspn(p, " \t");
        return decimal_read(&p, out);
    }
    return false;
}

/* The number in a file of a folder. False: it has none, as "max". */
static bool read_number(const char *folder, const char *name, const char *word, uint64_t *out)
{
    static char text[FILE_BYTES];
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);

    return n > 0 && (size_t)n < sizeof path && proc_text_read_whole(path, text, sizeof text) &&
           find_number(text, word, out);
}

/* The files of the two versions of memory cgroups. */
struct cgroup_files {
    const char *mark; /* before the group's name in /proc/self/cgroup */
    const char *mount, *most, *high, *now, *idle_files;
};

static const struct cgroup_files versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.high", "memory.current", "inactive_file"},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes",
     "memory.usage_in_bytes", "total_inactive_file"},
};

/* What one group leaves. Files that nobody has read lately are given up by the kernel first. */
static uint64_t group_room(const struct cgroup_files *v, const char *folder)
{
    uint64_t most = UINT64_MAX, high = UINT64_MAX, now = 0, files = 0;

    read_number(folder, v->most, "", &most);
    read_number(folder, v->high, "", &high);
    most = min_u64(most, high);
    if (most == UINT64_MAX || !read_number(folder, v->now, "", &now))
        return UINT64_MAX;
    read_number(folder, "memory.stat", v->idle_files, &files);
    now -= min_u64(now, files);
    return most - min_u64(most, now);
}

/* The least that the group of this name and those above it leave. In a container the name may be
 * that of the machine, whose folders are not there; the mount itself is the container's group. */
static uint64_t groups_room(const struct cgroup_files *v, const char *root, const char *name)
{
    uint64_t room = UINT64_MAX;
    char folder[PATH_BYTES];
    int n =
        snprintf(folder, sizeof folder, "%s%s%.*s", root, v->mount, (int)strcspn(name, "\n"), name);
    size_t mount_length = strlen(root) + strlen(v->mount);

    if (n < 0 || (size_t)n >= sizeof folder)
        return 0;
    for (;;) {
        room = min_u64(room, group_room(v, folder));
        char *end = strrchr(folder, '/');
        if (!end || (size_t)(end - folder) < mount_length)
            return room;
        *end = '\0';
    }
}

uint64_t store_room(const char *root)
{
    static char text[FILE_BYTES];
    char path[PATH_BYTES];
    uint64_t kib, room = UINT64_MAX;

    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (proc_text_read_whole(path, text, sizeof text) && find_number(text, "MemAvailable:", &kib))
        room = kib << 10;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!proc_text_read_whole(path, text, sizeof text))
        return room;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const char *found = strstr(text, versions[i].mark);

        if (found)
            room = min_u64(room, groups_room(&versions[i], root, found + strlen(versions[i].mark)));
    }
    return room;
}

/* Step 1. */
static bool has_room(uint64_t awaited_bytes, char *why, size_t why_bytes)
{
    uint64_t room = store_room(""), needed = awaited_bytes + awaited_bytes / 20 + SPARE_BYTES;

    if (room >= needed)
        return true;
    struct figure has = text_fixed(room, 1024 * MIB, 1), wants = text_fixed(needed, 1024 * MIB, 1);
    snprintf(why, why_bytes, "the host has %s GiB for the process, and %s GiB are needed", has.text,
             wants.text);
    return false;
}

static void *map(uint64_t size_bytes, int protection)
{
    void *p =
        mmap(NULL, size_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    if (!madvise(p, size_bytes, MADV_DONTFORK)) { /* step 2 */
        madvise(p, size_bytes, MADV_DONTDUMP);
        return p;
    }
    munmap(p, size_bytes);
    return NULL;
}

bool store_begin(struct store *s, uint64_t most_bytes, uint64_t awaited_bytes, char *why,
                 size_t why_bytes)
{
    if (!has_room(awaited_bytes, why, why_bytes))
        return false;
    if (!s->bytes) {
        uint64_t size = (most_bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        size_t max_rows = size / LEAST_GAP_BYTES + size / HUGE_PAGE_BYTES + 1024;

        *s = (struct store){.size_bytes = size, .max_rows = max_rows};
        s->rows = map(max_rows * sizeof *s->rows, PROT_READ | PROT_WRITE);
        s->bytes = s->rows ? map(size, PROT_NONE) : NULL;
        if (!s->bytes) {
            store_free(s);
            snprintf(why, why_bytes, "the process may not map so much more host memory");
            return false;
        }
        madvise(s->bytes, size, MADV_HUGEPAGE);
    }
    s->awaited_bytes = awaited_bytes;
    return true;
}

const struct store_row *store_add(struct store *s, uint64_t addr, uint64_t size_bytes)
{
    if (s->num_rows == s->max_rows || size_bytes > s->size_bytes - s->used_bytes)
        return NULL;
    struct store_row *row = &s->rows[s->num_rows];
    s->is_sorted = !s->num_rows || (s->is_sorted && row[-1].addr < addr);
    *row = (struct store_row){.addr = addr, .size_bytes = size_bytes, .offset = s->used_bytes};
    s->num_rows++;
    s->used_bytes += size_bytes;
    s->awaited_bytes -= min_u64(s->awaited_bytes, size_bytes);
    return row;
}

bool store_make_usable(struct store *s, char *why, size_t why_bytes)
{
    while (s->usable_bytes < s->used_bytes) {
        uint64_t step = min_u64(STEP_BYTES, s->size_bytes - s->usable_bytes);

        if (!has_room(s->used_bytes - s->usable_bytes + s->awaited_bytes, why, why_bytes))
            return false;
        if (mprotect(s->bytes + s->usable_bytes, step, PROT_READ | PROT_WRITE)) {
            snprintf(why, why_bytes, "the kernel refuses the process more host memory");
            return false;
        }
        s->usable_bytes += step;
    }
    return true;
}

static void sift_down(struct store_row *rows, size_t at, size_t end)
{
    struct store_row moved = rows[at];

    for (size_t child; (child = 2 * at + 1) < end; at = child) {
        if (child + 1 < end && rows[child].addr < rows[child + 1].addr)
            child++;
        if (rows[child].addr <= moved.addr)
            break;
        rows[at] = rows[child];
    }
    rows[at] = moved;
}

/* A heap sort: qsort may ask for host memory. */
static void sort(struct store *s)
{
    for (size_t i = s->num_rows / 2; i-- > 0;)
        sift_down(s->rows, i, s->num_rows);
    for (size_t end = s->num_rows; end-- > 1;) {
        struct store_row largest = s->rows[0];

        s->rows[0] = s->rows[end];
        s->rows[end] = largest;
        sift_down(s->rows, 0, end);
    }
    s->is_sorted = true;
}

const struct store_row *store_find(struct store *s, uint64_t addr, uint64_t end)
{
    size_t low = 0, high = s->num_rows;

    if (!s->is_sorted)
        sort(s);
    while (low < high) { /* the first row that ends behind addr */
        size_t middle = low + (high - low) / 2;

        if (s->rows[middle].addr + s->rows[middle].size_bytes > addr)
            high = middle;
        else
            low = middle + 1;
    }
    return low < s->num_rows && s->rows[low].addr < end ? &s->rows[low] : NULL;
}

void store_keep(struct store *s, struct store_mark mark, bool (*is_kept)(uint64_t addr))
{
    size_t kept = mark.num_rows;

    for (size_t i = kept; i < s->num_rows; i++)
        if (is_kept(s->rows[i].addr))
            s->rows[kept++] = s->rows[i];
    s->num_rows = kept;
}

struct store_mark store_mark(const struct store *s)
{
    return (struct store_mark){.used_bytes = s->used_bytes, .num_rows = s->num_rows};
}

void store_cut(struct store *s, struct store_mark mark)
{
    uint64_t from = (mark.used_bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;

    if (!mark.num_rows) {
        store_free(s);
        return;
    }
    s->num_rows = mark.num_rows;
    s->used_bytes = mark.used_bytes;
    s->awaited_bytes = 0;
    if (from < s->usable_bytes && !mprotect(s->bytes + from, s->usable_bytes - from, PROT_NONE)) {
        madvise(s->bytes + from, s->usable_bytes - from, MADV_DONTNEED);
        s->usable_bytes = from;
    }
}

void store_free(struct store *s)
{
    if (s->bytes)
        munmap(s->bytes, s->size_bytes); /* step 3 */
    if (s->rows)
        munmap(s->rows, s->max_rows * sizeof *s->rows);
    *s = (struct store){0};
}
