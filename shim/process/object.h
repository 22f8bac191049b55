/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A loaded object (the program or a shared library), and the name, symbols and dependencies in its
 * dynamic section. A struct object is valid while the object stays loaded: inside
 * dl_iterate_phdr(), or for ever if the process started with the object. No function here takes a
 * lock, allocates, or changes errno.
 */
#ifndef SHIM_OBJECT_H
#define SHIM_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct object {
    const char *path; /* the loader's name for it; "" is the program */
    uintptr_t base;
    const ElfW(Dyn) *dynamic;
    const char *strings;
    const ElfW(Sym) *symbols;
    const uint32_t *gnu_hash;    /* DT_GNU_HASH; NULL: none */
    const uint32_t *hash;        /* DT_HASH; NULL: none */
    const ElfW(Half) *versions;  /* NULL: symbols have no versions */
    const char *soname;          /* NULL: none */
};

/* From the entry that dl_iterate_phdr() hands its callback, or from the loader's own entry. False:
 * the object has no dynamic symbols. */
bool object_read(const struct dl_phdr_info *info, struct object *object);
bool object_read_map(const struct link_map *map, struct object *object);

/* Does a segment of the object cover the address? */
bool object_covers(const struct dl_phdr_info *info, uintptr_t address);

/* The address that dlsym() without a version finds in this object alone. It skips hidden versions
 * and undefined symbols. OBJECT_UNSURE: only the loader knows (an indirect function, an absolute
 * symbol, several default versions, no hash table). *address is set for OBJECT_HAS only. */
enum object_answer { OBJECT_LACKS, OBJECT_HAS, OBJECT_UNSURE };
enum object_answer object_symbol(const struct object *object, const char *name, uintptr_t *address);

/* Does this name of a dependency mean the object? object_is_named compares soname and path, as the
 * loader does. object_has_file_name compares the last part of the path. */
bool object_is_named(const struct object *object, const char *name);
bool object_has_file_name(const struct object *object, const char *name);

/* The name of the n-th dependency (DT_NEEDED); NULL: it has no more. */
const char *object_needs(const struct object *object, size_t n);

#endif
