/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See store.h; the numbers below are those of its steps.
 */
#include "shim/park/store.h"

#include "pool/bits.h"
#include "shim/park/store_file.h"
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
/* So much host memory becomes usable at a time, after another look at the room. */
#define STEP_BYTES (256 * MIB)
/* A file is so much larger than what is awaited: each free range below LEAST_GAP_BYTES is kept. One
 * that is too small all the same has another one behind it, of at least so many bytes. */
#define FILE_SLACK 64
#define FILE_BYTES_LEAST (64 * MIB)
/* Free ranges of less than that are kept with the bytes beside them (pool/park.c). */
#define LEAST_GAP_BYTES (256 * (UINT64_C(1) << 10))

enum { TEXT_BYTES = 8192, PATH_BYTES = 512 };

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
    static char text[TEXT_BYTES];
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);

    return n > 0 && (size_t)n < sizeof path && proc_text_read_whole(path, text, sizeof text) &&
           find_number(text, word, out);
}

/* The files of the two versions of memory cgroups. */
struct cgroup_files {
    const char *mark; /* before the group's name in the cgroup file of /proc */
    const char *mount, *most, *high, *now, *idle_files;
};

static const struct cgroup_files versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.high", "memory.current", "inactive_file"},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes",
     "memory.usage_in_bytes", "total_inactive_file"},
};

static void note_tight(uint64_t room, uint64_t most, bool *tight)
{
    *tight = *tight || room < most / 20;
}

/* What one group leaves. Files that nobody has read lately are given up by the kernel first. */
static uint64_t group_room(const struct cgroup_files *v, const char *folder, bool *tight)
{
    uint64_t most = UINT64_MAX, high = UINT64_MAX, now = 0, files = 0;

    read_number(folder, v->most, "", &most);
    read_number(folder, v->high, "", &high);
    most = min_u64(most, high);
    if (most == UINT64_MAX || !read_number(folder, v->now, "", &now))
        return UINT64_MAX;
    read_number(folder, "memory.stat", v->idle_files, &files);
    now -= min_u64(now, files);
    uint64_t room = most - min_u64(most, now);
    note_tight(room, most, tight);
    return room;
}

/* The least that the group of this name and those above it leave. In a container the name may be
 * that of the machine, whose folders are not there; the mount itself is the container's group. */
static uint64_t groups_room(const struct cgroup_files *v, const char *root, const char *name,
                            bool *tight)
{
    uint64_t room = UINT64_MAX;
    char folder[PATH_BYTES];
    int n =
        snprintf(folder, sizeof folder, "%s%s%.*s", root, v->mount, (int)strcspn(name, "\n"), name);
    size_t mount_length = strlen(root) + strlen(v->mount);

    if (n < 0 || (size_t)n >= sizeof folder)
        return 0;
    for (;;) {
        room = min_u64(room, group_room(v, folder, tight));
        char *end = strrchr(folder, '/');
        if (!end || (size_t)(end - folder) < mount_length)
            return room;
        *end = '\0';
    }
}

static uint64_t find_room(const char *root, bool *tight)
{
    static char text[TEXT_BYTES];
    char path[PATH_BYTES], own[PROC_TEXT_PATH_BYTES];
    uint64_t kib, total_kib, room = UINT64_MAX;

    *tight = false;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (proc_text_read_whole(path, text, sizeof text) && find_number(text, "MemAvailable:", &kib)) {
        room = kib << 10;
        if (find_number(text, "MemTotal:", &total_kib))
            note_tight(kib, total_kib, tight);
    }
    proc_text_own_path(own, "cgroup");
    snprintf(path, sizeof path, "%s%s", root, own);
    if (!proc_text_read_whole(path, text, sizeof text))
        return room;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const char *found = strstr(text, versions[i].mark);

        if (found)
            room = min_u64(
                room, groups_room(&versions[i], root, found + strlen(versions[i].mark), tight));
    }
    return room;
}

uint64_t store_room(const char *root)
{
    bool tight;

    return find_room(root, &tight);
}

bool store_is_tight(const char *root)
{
    bool tight;

    find_room(root, &tight);
    return tight;
}

/* Step 1. */
static bool has_room(const struct store *s, uint64_t awaited_bytes, char *why, size_t why_bytes)
{
    uint64_t room, needed = awaited_bytes + awaited_bytes / 20 + SPARE_BYTES;

    if (s->folder[0] && !store_file_is_memory(s->folder))
        return true;
    room = store_room("");
    if (room >= needed)
        return true;
    struct figure has = text_fixed(room, 1024 * MIB, 1), wants = text_fixed(needed, 1024 * MIB, 1);
    snprintf(why, why_bytes, "the host has %s GiB for the process, and %s GiB are needed", has.text,
             wants.text);
    return false;
}

static uint64_t whole_pages(uint64_t size_bytes)
{
    return (size_bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

/* size_bytes is a multiple of HUGE_PAGE_BYTES, as is the address: step 4. */
static void *map_aligned(uint64_t size_bytes, int protection)
{
    uint64_t all = size_bytes + HUGE_PAGE_BYTES;
    char *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    munlock(p, all); /* step 5 */
    uint64_t before = whole_pages((uintptr_t)p) - (uintptr_t)p;
    if (before)
        munmap(p, before);
    munmap(p + before + size_bytes, HUGE_PAGE_BYTES - before);
    p += before;
    if (!mprotect(p, size_bytes, protection) && !madvise(p, size_bytes, MADV_DONTFORK)) {
        madvise(p, size_bytes, MADV_DONTDUMP); /* step 2 */
        return p;
    }
    munmap(p, size_bytes);
    return NULL;
}

static bool make(struct store *s, uint64_t most_bytes, char *why, size_t why_bytes)
{
    s->size_bytes = whole_pages(most_bytes);
    s->max_rows = s->size_bytes / LEAST_GAP_BYTES + s->size_bytes / HUGE_PAGE_BYTES + 1024;
    s->rows = map_aligned(whole_pages(s->max_rows * sizeof *s->rows), PROT_READ | PROT_WRITE);
    s->bytes = s->rows ? map_aligned(s->size_bytes, PROT_NONE) : NULL;
    if (!s->bytes) {
        store_free(s);
        snprintf(why, why_bytes, "the process may not map so much more host memory");
    }
    return s->bytes;
}

bool store_begin(struct store *s, const char *folder, uint64_t most_bytes, uint64_t awaited_bytes,
                 char *why, size_t why_bytes)
{
    if (!s->bytes) {
        *s = (struct store){0};
        if (folder[0] && !store_file_allowed(folder, why, why_bytes))
            return false;
        int n = snprintf(s->folder, sizeof s->folder, "%s", folder);
        if (n < 0 || (size_t)n >= sizeof s->folder) {
            snprintf(why, why_bytes, "the name of the folder is too long");
            return false;
        }
    }
    if (!has_room(s, awaited_bytes, why, why_bytes) ||
        (!s->bytes && !make(s, most_bytes, why, why_bytes)))
        return false;
    s->awaited_bytes = awaited_bytes;
    return true;
}

static bool extend_file(struct store *s, uint64_t size_bytes, char *why, size_t why_bytes)
{
    if (s->num_files == STORE_FILES_MAX) {
        snprintf(why, why_bytes, "it was parked in too many parts: wake it first");
        return false;
    }
    if (!store_file_map(s->folder, s->bytes + s->usable_bytes, size_bytes, s->goes_on, why,
                        why_bytes))
        return false;
    s->files[s->num_files++] = s->usable_bytes;
    return true;
}

/* least_bytes: more than is missing may become usable, to save steps. */
static bool extend(struct store *s, uint64_t until, uint64_t least_bytes, char *why,
                   size_t why_bytes)
{
    uint64_t end = max_u64(until, s->used_bytes + s->awaited_bytes),
             missing = end - s->usable_bytes;
    uint64_t size = s->folder[0] ? missing + missing / FILE_SLACK
                                 : min_u64(until - s->usable_bytes, STEP_BYTES);

    size = min_u64(whole_pages(max_u64(size, least_bytes)), s->size_bytes - s->usable_bytes);
    if (!has_room(s, missing, why, why_bytes))
        return false;
    if (s->folder[0]) {
        if (!extend_file(s, size, why, why_bytes))
            return false;
    } else if (mprotect(s->bytes + s->usable_bytes, size, PROT_READ | PROT_WRITE)) {
        snprintf(why, why_bytes, "the kernel refuses the process more host memory");
        return false;
    } else {
        madvise(s->bytes + s->usable_bytes, size, MADV_HUGEPAGE);
    }
    s->usable_bytes += size;
    return true;
}

bool store_extend(struct store *s, uint64_t until, char *why, size_t why_bytes)
{
    return until <= s->usable_bytes || extend(s, until, 0, why, why_bytes);
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
    while (s->usable_bytes < s->used_bytes)
        if (!extend(s, s->used_bytes, s->folder[0] ? FILE_BYTES_LEAST : STEP_BYTES, why, why_bytes))
            return false;
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

const struct store_row *store_rename(struct store *s, size_t row, uint64_t addr)
{
    s->rows[row].addr = addr;
    s->is_sorted = false;
    return &s->rows[row];
}

struct store_mark store_mark(const struct store *s)
{
    return (struct store_mark){.used_bytes = s->used_bytes,
                               .usable_bytes = s->usable_bytes,
                               .num_rows = s->num_rows,
                               .num_files = s->num_files};
}

/* The bytes from there on are given back. */
static void shrink(struct store *s, uint64_t from)
{
    uint64_t size = s->usable_bytes - min_u64(from, s->usable_bytes);

    if (!size || mprotect(s->bytes + from, size, PROT_NONE))
        return;
    munlock(s->bytes + from, size);
    madvise(s->bytes + from, size, MADV_DONTNEED);
    s->usable_bytes = from;
}

/* The files from there on are unmapped, and so they are gone. */
static void drop_files(struct store *s, const struct store_mark *mark)
{
    char *from = s->bytes + mark->usable_bytes;
    uint64_t size = s->usable_bytes - mark->usable_bytes;

    if (!size || mmap(from, size, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != from)
        return;
    madvise(from, size, MADV_DONTFORK);
    s->usable_bytes = mark->usable_bytes;
    s->num_files = mark->num_files;
}

void store_cut(struct store *s, struct store_mark mark)
{
    if (!mark.num_rows) {
        store_free(s);
        return;
    }
    s->num_rows = mark.num_rows;
    s->used_bytes = mark.used_bytes;
    s->awaited_bytes = 0;
    if (s->folder[0])
        drop_files(s, &mark);
    else
        shrink(s, whole_pages(mark.used_bytes));
}

void store_shrink(struct store *s, uint64_t most_bytes)
{
    size_t kept = 0;

    for (size_t i = 0; i < s->num_rows; i++)
        if (s->rows[i].offset + s->rows[i].size_bytes <= most_bytes)
            s->rows[kept++] = s->rows[i];
    s->num_rows = kept;
    s->used_bytes = min_u64(s->used_bytes, most_bytes);
    s->awaited_bytes = 0;
    shrink(s, whole_pages(s->used_bytes));
}

void store_settle(struct store *s)
{
    s->awaited_bytes = 0;
    if (!s->folder[0])
        shrink(s, whole_pages(s->used_bytes));
    else if (s->usable_bytes)
        madvise(s->bytes, s->usable_bytes, MADV_DONTNEED); /* the files keep the bytes */
}

bool store_is_whole(struct store *s)
{
    for (unsigned i = 0; i < s->num_files; i++)
        s->is_lost |= !store_file_is_whole(s->bytes + s->files[i]);
    return !s->is_lost;
}

void store_free(struct store *s)
{
    if (s->bytes)
        munmap(s->bytes, s->size_bytes); /* step 3 */
    if (s->rows)
        munmap(s->rows, whole_pages(s->max_rows * sizeof *s->rows));
    *s = (struct store){0};
}
