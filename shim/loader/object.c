/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See object.h. The layouts are those of the System V ABI (DT_HASH, Chapter 5 "Dynamic Linking"),
 * of GNU (DT_GNU_HASH) and of the Linux Standard Base (DT_VERSYM).
 */
#include "shim/loader/object.h"

#include <string.h>

enum { HIDDEN_VERSION = 0x8000, FIRST_NAMED_VERSION = 2 };

bool object_has_counts(size_t size_bytes)
{
    return size_bytes >= offsetof(struct dl_phdr_info, dlpi_subs) +
                             sizeof(((struct dl_phdr_info *)NULL)->dlpi_subs);
}

uintptr_t object_segment(const struct dl_phdr_info *info, uintptr_t address)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && address - start < part->p_memsz)
            return start;
    }
    return 0;
}

uintptr_t object_segment_end(const struct dl_phdr_info *info, uintptr_t address)
{
    uintptr_t start = object_segment(info, address);
    for (size_t i = 0; start && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD &&
            info->dlpi_addr + info->dlpi_phdr[i].p_vaddr == start)
            return start + info->dlpi_phdr[i].p_memsz;
    return 0;
}

bool object_covers(const struct dl_phdr_info *info, uintptr_t address)
{
    return object_segment(info, address) != 0;
}

/* The file has offsets. glibc stores addresses over them where it can write to the dynamic section,
 * which it cannot in the kernel's object. musl stores none. A number that lies in the object is an
 * address. The size of the number does not tell: if an object was linked for a higher address than
 * it got, its base is negative. */
static const void *pointer(const struct dl_phdr_info *info, uintptr_t value)
{
    return (const void *)(object_covers(info, value) ? value : info->dlpi_addr + value);
}

bool object_read(const struct dl_phdr_info *info, struct object *object)
{
    const ElfW(Dyn) *dynamic = NULL;
    for (size_t i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    *object = (struct object){.path = info->dlpi_name, .base = info->dlpi_addr, .dynamic = dynamic};
    uintptr_t soname = 0;
    for (const ElfW(Dyn) *d = dynamic; d && d->d_tag != DT_NULL; d++) {
        switch (d->d_tag) {
        case DT_STRTAB:
            object->strings = pointer(info, d->d_un.d_ptr);
            break;
        case DT_SYMTAB:
            object->symbols = pointer(info, d->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            object->gnu_hash = pointer(info, d->d_un.d_ptr);
            break;
        case DT_HASH:
            object->hash = pointer(info, d->d_un.d_ptr);
            break;
        case DT_VERSYM:
            object->versions = pointer(info, d->d_un.d_ptr);
            break;
        case DT_SONAME:
            soname = d->d_un.d_val;
            break;
        default:
            break;
        }
    }
    if (!object->strings || !object->symbols)
        return false;
    if (soname)
        object->soname = object->strings + soname;
    return true;
}

/* The search of one object: the symbols of the right hash go through check_symbol(). */
struct symbol_search {
    const struct object *object;
    const char *name;
    const ElfW(Sym) * found;
    size_t num_defaults; /* of default versions */
};

/* True ends the search. As in glibc's dlsym(), a symbol without a version is the answer at once. A
 * symbol with a default version is the answer if there is only one. */
static bool check_symbol(struct symbol_search *search, uint32_t index)
{
    const struct object *o = search->object;
    const ElfW(Sym) *symbol = &o->symbols[index];
    unsigned bind = ELF64_ST_BIND(symbol->st_info), type = ELF64_ST_TYPE(symbol->st_info);
    unsigned version = o->versions ? o->versions[index] : 0;
    bool is_defined =
        symbol->st_shndx == SHN_ABS || (symbol->st_shndx != SHN_UNDEF && symbol->st_value);
    if (!is_defined || bind == STB_LOCAL || type == STT_TLS || version & HIDDEN_VERSION ||
        strcmp(o->strings + symbol->st_name, search->name) != 0)
        return false;
    search->found = symbol;
    search->num_defaults += version >= FIRST_NAMED_VERSION;
    return version < FIRST_NAMED_VERSION;
}

static void search_gnu_hash(struct symbol_search *search)
{
    const uint32_t *table = search->object->gnu_hash;
    uint32_t num_buckets = table[0], first = table[1], num_words = table[2], shift = table[3];
    const ElfW(Addr) *filter = (const ElfW(Addr) *)(table + 4);
    const uint32_t *buckets = (const uint32_t *)(filter + num_words);
    const uint32_t *chains = buckets + num_buckets;
    uint32_t hash = 5381;
    for (const char *c = search->name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    ElfW(Addr) word = filter[hash / __ELF_NATIVE_CLASS & (num_words - 1)];
    if (!(word >> hash % __ELF_NATIVE_CLASS & word >> (hash >> shift) % __ELF_NATIVE_CLASS & 1))
        return;
    uint32_t index = num_buckets ? buckets[hash % num_buckets] : 0;
    if (index < first)
        return;
    for (;; index++) {
        uint32_t other = chains[index - first]; /* its lowest bit marks the end of the chain */
        if (((other ^ hash) >> 1 == 0 && check_symbol(search, index)) || other & 1)
            return;
    }
}

static void search_hash(struct symbol_search *search)
{
    const uint32_t *table = search->object->hash;
    uint32_t num_buckets = table[0];
    const uint32_t *buckets = table + 2, *chains = buckets + num_buckets;
    uint32_t hash = 0;
    for (const char *c = search->name; *c; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    for (uint32_t i = num_buckets ? buckets[hash % num_buckets] : 0; i; i = chains[i])
        if (check_symbol(search, i))
            return;
}

enum object_answer object_symbol(const struct object *object, const char *name, uintptr_t *address)
{
    struct symbol_search search = {.object = object, .name = name};
    if (object->gnu_hash)
        search_gnu_hash(&search);
    else if (object->hash)
        search_hash(&search);
    else
        return OBJECT_UNSURE;
    if (!search.found)
        return OBJECT_LACKS;
    if (search.num_defaults > 1 || search.found->st_shndx == SHN_ABS ||
        ELF64_ST_TYPE(search.found->st_info) == STT_GNU_IFUNC)
        return OBJECT_UNSURE;
    *address = object->base + search.found->st_value;
    return OBJECT_HAS;
}

bool object_is_named(const struct object *object, const char *name)
{
    return strcmp(object->path, name) == 0 || (object->soname && strcmp(object->soname, name) == 0);
}

bool object_has_file_name(const struct object *object, const char *name)
{
    const char *slash = strrchr(object->path, '/');
    return slash && strcmp(slash + 1, name) == 0;
}

const char *object_needs(const struct object *object, size_t n)
{
    for (const ElfW(Dyn) *d = object->dynamic; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_NEEDED && n-- == 0)
            return object->strings + d->d_un.d_val;
    return NULL;
}
