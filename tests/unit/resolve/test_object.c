/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/loader/object.c finds in a loaded object what dlsym() finds there. Looked at are a library
 * made for the purpose, once with each kind of hash table, and every symbol of all loaded
 * libraries. */
#include "shim/loader/object.h"

#include <dlfcn.h>

#include "tests/unit/cases.h"

static const char *wanted;
static struct object found_object;

static int find_object(struct dl_phdr_info *info, size_t size, void *is_found)
{
    struct object object;
    if (!object_read(info, &object) || !object_has_file_name(&object, wanted))
        return 0;
    found_object = object;
    *(int *)is_found = 1;
    return 1;
}

static void *load(const char *file)
{
    int is_found = 0;
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail_msg("%s", dlerror());
    wanted = file;
    dl_iterate_phdr(find_object, &is_found);
    assert_int_equal(is_found, 1);
    return handle;
}

static void check_library(const char *file)
{
    void *handle = load(file);
    static const char *const has[] = {"two_versions", "weak_function", "common_object"};
    static const char *const lacks[] = {"hidden_version", "thread_object", "two_versions_new",
                                        "malloc",         "nothing",       ""};
    uintptr_t address = 0;
    for (size_t i = 0; i < sizeof has / sizeof *has; i++) {
        assert_int_equal(object_symbol(&found_object, has[i], &address), OBJECT_HAS);
        assert_ptr_equal((void *)address, dlsym(handle, has[i]));
    }
    assert_int_equal(object_symbol(&found_object, "two_versions", &address), OBJECT_HAS);
    assert_int_equal(((int (*)(void))address)(), 2);
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++)
        assert_int_equal(object_symbol(&found_object, lacks[i], &address), OBJECT_LACKS);
    assert_int_equal(object_symbol(&found_object, "indirect_function", &address), OBJECT_UNSURE);
    assert_true(object_is_named(&found_object, file));
    assert_false(object_is_named(&found_object, "libother.so"));
    dlclose(handle);
}

TEST(by_gnu_hash_as_dlsym)
{
    check_library("libversions-gnu.so");
    assert_non_null(found_object.gnu_hash);
    assert_null(found_object.hash);
}

TEST(by_sysv_hash_as_dlsym)
{
    check_library("libversions-sysv.so");
    assert_null(found_object.gnu_hash);
    assert_non_null(found_object.hash);
}

TEST(without_a_hash_table_only_the_loader_can_tell)
{
    uintptr_t address = 0;
    void *handle = load("libversions-sysv.so");
    found_object.hash = NULL;
    assert_int_equal(object_symbol(&found_object, "two_versions", &address), OBJECT_UNSURE);
    dlclose(handle);
}

/* An object that was linked for a higher address than the one it got: its base is below zero. */
static int read_with_a_negative_base(struct dl_phdr_info *info, size_t size, void *is_found)
{
    static const ElfW(Addr) linked_at = (ElfW(Addr))1 << 63;
    ElfW(Phdr) parts[16];
    struct dl_phdr_info moved = *info;
    struct object object;
    if (!object_read(info, &object) || !object_has_file_name(&object, wanted))
        return 0;
    assert_true(info->dlpi_phnum <= sizeof parts / sizeof *parts);
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        parts[i] = info->dlpi_phdr[i];
        parts[i].p_vaddr += linked_at;
    }
    moved.dlpi_addr -= linked_at;
    moved.dlpi_phdr = parts;
    found_object = object;
    assert_true(object_read(&moved, &object));
    assert_ptr_equal(object.strings, found_object.strings);
    assert_ptr_equal(object.symbols, found_object.symbols);
    assert_ptr_equal(object.gnu_hash, found_object.gnu_hash);
    assert_ptr_equal(object.versions, found_object.versions);
    *(int *)is_found = 1;
    return 1;
}

TEST(below_the_address_that_it_was_linked_for_as_anywhere)
{
    int is_found = 0;
    void *handle = load("libversions-gnu.so");
    dl_iterate_phdr(read_with_a_negative_base, &is_found);
    assert_int_equal(is_found, 1);
    dlclose(handle);
}

static size_t num_symbols(const struct object *object)
{
    if (object->hash)
        return object->hash[1];
    const uint32_t *table = object->gnu_hash;
    const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + table[2]);
    const uint32_t *chains = buckets + table[0];
    uint32_t last = 0;
    for (uint32_t i = 0; i < table[0]; i++)
        last = buckets[i] > last ? buckets[i] : last;
    if (last < table[1])
        return 0;
    while (!(chains[last - table[1]] & 1))
        last++;
    return last + 1;
}

/* Whether a symbol of this name is no plain function or variable. */
static bool is_special(const struct object *object, size_t num, const char *name)
{
    for (size_t i = 1; i < num; i++) {
        const ElfW(Sym) *symbol = &object->symbols[i];
        bool is_plain =
            ELF64_ST_TYPE(symbol->st_info) != STT_GNU_IFUNC && symbol->st_shndx != SHN_ABS;
        if (!is_plain && strcmp(object->strings + symbol->st_name, name) == 0)
            return true;
    }
    return false;
}

static unsigned num_answers[3];

/* The object's own symbols; dlsym() goes on to its dependencies where it has none. */
static int compare(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct object object;
    if (!object_read(info, &object) || (!object.gnu_hash && !object.hash))
        return 0;
    void *handle = dlopen(object.path[0] ? object.path : NULL, RTLD_LAZY | RTLD_NOLOAD);
    const char *slash = strrchr(object.path, '/');
    if (!handle) /* the kernel's */
        return 0;
    if (slash && strncmp(slash, "/ld-", 4) == 0) { /* dlsym() finds nothing by its handle */
        dlclose(handle);
        return 0;
    }
    size_t num = num_symbols(&object);
    for (size_t i = 1; i < num; i++) {
        const ElfW(Sym) *symbol = &object.symbols[i];
        const char *name = object.strings + symbol->st_name;
        unsigned type = ELF64_ST_TYPE(symbol->st_info);
        if (symbol->st_shndx == SHN_UNDEF || type == STT_TLS || type == STT_SECTION ||
            strcmp(name, "dlsym") == 0)
            continue;
        uintptr_t address = 0;
        Dl_info other;
        void *loaders = dlsym(handle, name);
        enum object_answer answer = object_symbol(&object, name, &address);
        num_answers[answer]++;
        if (answer == OBJECT_UNSURE)
            assert_true(is_special(&object, num, name));
        else if (answer == OBJECT_HAS &&
                 object.path[0]) /* not the program: it is the global scope */
            assert_ptr_equal((void *)address, loaders);
        else if (answer == OBJECT_LACKS && loaders && dladdr(loaders, &other))
            assert_ptr_not_equal(other.dli_fbase, (void *)object.base);
    }
    dlclose(handle);
    return 0;
}

TEST(every_symbol_of_every_library_as_dlsym)
{
    dl_iterate_phdr(compare, NULL);
    assert_true(num_answers[OBJECT_HAS] > 1000);
    assert_true(num_answers[OBJECT_LACKS] > 0);
    assert_true(num_answers[OBJECT_UNSURE] > 0);
}

static int find_named(struct dl_phdr_info *info, size_t size, void *sum)
{
    struct object object;
    uintptr_t here = (uintptr_t)find_named;
    if (object_covers(info, here))
        *(unsigned *)sum += 1;
    if (!object_read(info, &object) || object.path[0])
        return 0;
    for (size_t n = 0; object_needs(&object, n); n++)
        if (strcmp(object_needs(&object, n), "libc.so.6") == 0)
            *(unsigned *)sum += 10;
    return 0;
}

TEST(the_program_is_one_object_and_needs_the_c_library)
{
    unsigned sum = 0;
    dl_iterate_phdr(find_named, &sum);
    assert_int_equal(sum, 11);
}

PLAY_TESTS
