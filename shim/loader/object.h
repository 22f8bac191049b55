/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room loader/ finds names in loaded objects, as the dynamic loader does, without its lock. Its
 * one seam is symbol.h. scope.h says why the lock must not be taken.
 *
 * A loaded object (the program or a shared library) and what its dynamic section says: name,
 * symbols, dependencies. Read inside dl_iterate_phdr(), where the object cannot be unloaded; a
 * struct object is valid for that long. Nothing here takes a lock, allocates, or changes errno.
 */
#ifndef SHIM_OBJECT_H
#define SHIM_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct object {
    const char *path; /* as the loader knows it; "" of the program */
    uintptr_t base;
    const ElfW(Dyn) * dynamic;
    const char *strings;
    const ElfW(Sym) * symbols;
    const uint32_t *gnu_hash;    /* DT_GNU_HASH; NULL: none */
    const uint32_t *hash;        /* DT_HASH; NULL: none */
    const ElfW(Half) * versions; /* NULL: symbols have no versions */
    const char *soname;          /* NULL: none */
};

/* False: the object has no dynamic symbols. */
bool object_read(const struct dl_phdr_info *info, struct object *object);

/* Does the record have dlpi_adds and dlpi_subs, the counts of (un)loaded objects? `size_bytes` is
 * what the callback was told. It may be too small for them, of an old C library or of a library
 * that wraps dl_iterate_phdr(). */
bool object_has_counts(size_t size_bytes);

/* Whether a segment of the object covers the address. */
bool object_covers(const struct dl_phdr_info *info, uintptr_t address);
/* The start of the loaded segment with this address; 0: the object has none. */
uintptr_t object_segment(const struct dl_phdr_info *info, uintptr_t address);
/* And its end. */
uintptr_t object_segment_end(const struct dl_phdr_info *info, uintptr_t address);

/* What dlsym() without a version finds in this object alone. Hidden versions and undefined symbols
 * are passed over. OBJECT_UNSURE: only the loader can tell (an indirect function, an absolute
 * symbol, several default versions, no hash table). The address is set for OBJECT_HAS only. */
enum object_answer { OBJECT_LACKS, OBJECT_HAS, OBJECT_UNSURE };
enum object_answer object_symbol(const struct object *object, const char *name, uintptr_t *address);

/* Does the loader take the object for this name of a dependency, by soname or path?
 * object_has_file_name compares with the last part of the path, which is looser. */
bool object_is_named(const struct object *object, const char *name);
bool object_has_file_name(const struct object *object, const char *name);

/* The name of the n-th dependency (DT_NEEDED); NULL: it has no more. */
const char *object_needs(const struct object *object, size_t n);

#endif
