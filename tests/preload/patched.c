/* SPDX-License-Identifier: BSD-2-Clause */
/* A library that watches memory by patching code, as communication libraries do. It patches the
 * first bytes of the allocation functions that dlsym gives ("hook"), those of the driver's own
 * ("real"), or the program's entries for them ("got"). It sees every allocation and free of the
 * program once, with the program's own pointers. Beneath the cache each block that it sees is
 * allocated before it is freed, once. One thread: the watcher restores the code for the time of a
 * call. */
#include "tests/preload/scene.h"

#include <link.h>
#include <sys/mman.h>

#ifdef __x86_64__
enum { ROUNDS = 40, BLOCKS = 5, JUMP_BYTES = 14, MOST = 4096 };

typedef CUresult alloc_fn(CUdeviceptr *, size_t);
typedef CUresult free_fn(CUdeviceptr);

struct patch {
    void *function;
    unsigned char saved[JUMP_BYTES], jump[JUMP_BYTES];
};

static struct patch on_alloc, on_free;
static alloc_fn *next_alloc;
static free_fn *next_free;
static uint64_t seen[MOST];
static unsigned num_allocs, num_frees, num_strange;

static void write_code(void *at, const void *bytes, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)at & ~(page - 1);
    size_t length = (((uintptr_t)at + size + page - 1) & ~(page - 1)) - first;
    REQUIRE(mprotect((void *)first, length, PROT_READ | PROT_WRITE | PROT_EXEC));
    memcpy(at, bytes, size);
    REQUIRE(mprotect((void *)first, length, PROT_READ | PROT_EXEC));
}

static void patch_set(struct patch *patch, void *function, void *replacement)
{
    static const unsigned char jump_to[6] = {0xff, 0x25, 0, 0, 0, 0}; /* jmp *0(%rip) */
    patch->function = function;
    memcpy(patch->saved, function, JUMP_BYTES);
    memcpy(patch->jump, jump_to, sizeof jump_to);
    memcpy(patch->jump + sizeof jump_to, &replacement, sizeof replacement);
    write_code(function, patch->jump, JUMP_BYTES);
}

static void note_alloc(uint64_t address)
{
    unsigned i = 0;
    for (num_allocs++; i < MOST && seen[i] != 0; i++)
        num_strange += seen[i] == address;
    EXPECT(i < MOST);
    seen[i] = address;
}

static void note_free(uint64_t address)
{
    unsigned i = 0;
    for (num_frees++; i < MOST && seen[i] != address; i++)
        ;
    num_strange += i == MOST;
    if (i < MOST)
        seen[i] = 0;
}

/* seen[] has no gaps while note_alloc looks for twins. */
static void close_gaps(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < MOST; i++)
        if (seen[i] != 0)
            seen[n++] = seen[i];
    memset(seen + n, 0, (MOST - n) * sizeof *seen);
}

static CUresult watched_alloc(CUdeviceptr *address, size_t size_bytes)
{
    if (on_alloc.function != NULL)
        write_code(on_alloc.function, on_alloc.saved, JUMP_BYTES);
    CUresult rc = next_alloc(address, size_bytes);
    if (on_alloc.function != NULL)
        write_code(on_alloc.function, on_alloc.jump, JUMP_BYTES);
    close_gaps();
    if (rc == CUDA_SUCCESS)
        note_alloc(*address);
    return rc;
}

static CUresult watched_free(CUdeviceptr address)
{
    note_free(address);
    if (on_free.function != NULL)
        write_code(on_free.function, on_free.saved, JUMP_BYTES);
    CUresult rc = next_free(address);
    if (on_free.function != NULL)
        write_code(on_free.function, on_free.jump, JUMP_BYTES);
    return rc;
}

/* The program's own entries for a function, of its relocations; how many there are. */
static int patch_entries(const char *name, void *replacement)
{
    struct link_map *program = dlopen(NULL, RTLD_LAZY);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const ElfW(Rela) * tables[2] = {0};
    size_t sizes[2] = {0};
    int n = 0;
    for (const ElfW(Dyn) *d = program->l_ld; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
            symbols = (const void *)d->d_un.d_ptr;
        else if (d->d_tag == DT_STRTAB)
            strings = (const void *)d->d_un.d_ptr;
        else if (d->d_tag == DT_JMPREL || d->d_tag == DT_RELA)
            tables[d->d_tag == DT_RELA] = (const void *)d->d_un.d_ptr;
        else if (d->d_tag == DT_PLTRELSZ || d->d_tag == DT_RELASZ)
            sizes[d->d_tag == DT_RELASZ] = d->d_un.d_val / sizeof(ElfW(Rela));
    }
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; tables[t] != NULL && i < sizes[t]; i++) {
            unsigned type = ELF64_R_TYPE(tables[t][i].r_info);
            unsigned symbol = ELF64_R_SYM(tables[t][i].r_info);
            if ((type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) ||
                strcmp(strings + symbols[symbol].st_name, name) != 0)
                continue;
            uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
            void **slot = (void **)(program->l_addr + tables[t][i].r_offset);
            REQUIRE(
                mprotect((void *)((uintptr_t)slot & ~(page - 1)), page, PROT_READ | PROT_WRITE));
            *slot = replacement;
            n++;
        }
    }
    return n;
}

static void install(const char *how)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *(*lookup)(void *, const char *) = dlsym;
    if (strcmp(how, "real") == 0) {
        void *native = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
        memcpy(&lookup, &native, sizeof lookup);
    }
    void *alloc_at = lookup(driver, "cuMemAlloc_v2"), *free_at = lookup(driver, "cuMemFree_v2");
    alloc_fn *new_alloc = watched_alloc;
    free_fn *new_free = watched_free;
    void *replace_alloc = NULL, *replace_free = NULL;
    EXPECT(alloc_at != NULL && free_at != NULL);
    memcpy(&next_alloc, &alloc_at, sizeof next_alloc);
    memcpy(&next_free, &free_at, sizeof next_free);
    memcpy(&replace_alloc, &new_alloc, sizeof replace_alloc);
    memcpy(&replace_free, &new_free, sizeof replace_free);
    if (strcmp(how, "got") == 0) {
        EXPECT(patch_entries("cuMemAlloc_v2", replace_alloc) > 0);
        EXPECT(patch_entries("cuMemFree_v2", replace_free) > 0);
    } else {
        patch_set(&on_alloc, alloc_at, replace_alloc);
        patch_set(&on_free, free_at, replace_free);
    }
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "hook";
    unsigned unlike = 0, wrong = 0, served = 0;
    scene_start(1, 60);
    install(how);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t blocks[BLOCKS];
        for (uint32_t i = 0; i < BLOCKS; i++) {
            unsigned before = num_allocs;
            blocks[i] = NEW_BLOCK((round % 7 + 1) * (i + 1) * 10000);
            served += num_allocs == before + 1;
            REQUIRE(gpu_fill(blocks[i], 2500, round + i, NULL));
        }
        for (uint32_t i = 0; i < BLOCKS; i++) {
            unsigned known = 0;
            for (unsigned k = 0; k < MOST; k++)
                known += seen[k] == blocks[i];
            unlike += strcmp(how, "real") != 0 && known != 1;
            wrong += scene_wrong_words(blocks[i], 2500, round + i, NULL);
            REQUIRE(gpu_free(blocks[i]));
        }
    }
    if (strcmp(how, "real") != 0)
        printf("%u allocations seen, %u frees, of %d\n", served, num_frees, ROUNDS * BLOCKS);
    printf("%s: %u strange, %u unlike the program's, %u wrong\n", how, num_strange, unlike, wrong);
    return num_strange != 0 || unlike != 0;
}
#else
int main(void)
{
    scene_skip("patches x86-64 code");
}
#endif
