/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See cfi.h.
 */
#include "shim/trace/cfi.h"

#include <link.h>
#include <stddef.h>
#include <string.h>

struct range {
    uintptr_t start, end;
};

/* The object that has the address. */
struct place {
    uintptr_t address;
    struct range code, header, tables; /* whole segments that hold them; `header` from itself on */
};

static struct range range_of(const struct dl_phdr_info *info, const ElfW(Phdr) * p)
{
    uintptr_t start = info->dlpi_addr + p->p_vaddr;
    return (struct range){start, start + p->p_memsz};
}

static bool holds(struct range r, uintptr_t address)
{
    return address >= r.start && address < r.end;
}

static bool find_code(const struct dl_phdr_info *info, struct place *o)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && (p->p_flags & (PF_X | PF_R)) == (PF_X | PF_R) &&
            holds(range_of(info, p), o->address)) {
            o->code = range_of(info, p);
            return true;
        }
    }
    return false;
}

#if defined(__x86_64__)

enum { RBP = 6, RSP = 7, RETURN = 16, SAVED_STATES = 4 };
/* DW_EH_PE: how a pointer of the tables is written. */
enum { DATA4_SIGNED = 0x0b, DATA4 = 0x03, FROM_HERE = 0x10, FROM_HEADER = 0x30 };

/* The readable segment with the address; an empty one: there is none. */
static struct range segment_of(const struct dl_phdr_info *info, uintptr_t address)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && p->p_flags & PF_R && holds(range_of(info, p), address))
            return range_of(info, p);
    }
    return (struct range){0, 0};
}

/* --- bytes ----------------------------------------------------------------------------------- */

/* What is read. At a byte that is not there it is over, and all is 0. */
struct bytes {
    uintptr_t at, end;
    bool over;
};

static uint64_t take(struct bytes *b, size_t size)
{
    uint64_t value = 0;
    if (b->over || b->at > b->end || b->end - b->at < size) {
        b->over = true;
        return 0;
    }
    memcpy(&value, (const void *)b->at, size);
    b->at += size;
    return value;
}

static int32_t take_signed4(struct bytes *b)
{
    return (int32_t)take(b, 4);
}

/* LEB128. More than 63 bits make no sense here. */
static uint64_t take_unsigned(struct bytes *b)
{
    uint64_t value = 0, byte;
    for (unsigned shift = 0; shift < 63; shift += 7) {
        byte = take(b, 1);
        value |= (byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
    b->over = true;
    return 0;
}

static int64_t take_signed(struct bytes *b)
{
    uint64_t value = 0, byte;
    for (unsigned shift = 0; shift < 63;) {
        byte = take(b, 1);
        value |= (byte & 0x7f) << shift;
        shift += 7;
        if (!(byte & 0x80))
            return (int64_t)(byte & 0x40 ? value | ~UINT64_C(0) << shift : value);
    }
    b->over = true;
    return 0;
}

static void pass(struct bytes *b, uint64_t size)
{
    if (size > b->end - b->at)
        b->over = true;
    else
        b->at += size;
}

/* --- rows of the table ------------------------------------------------------------------------ */

enum saved { SAVED_NOT, SAVED_AT, SAVED_ELSEWHERE };

/* Where things are at one address: offsets from the CFA. */
struct row {
    uint64_t cfa_register;
    int64_t cfa_offset;
    bool cfa_is_known;
    enum saved rbp, ret;
    int64_t rbp_offset, ret_offset;
};

struct program {
    uint64_t code_step;
    int64_t data_step;
    uintptr_t address, target; /* rows up to `target` count */
    struct row row, first, saved[SAVED_STATES];
    unsigned num_saved;
};

/* An offset of the tables, in bytes. */
static int64_t scaled(const struct program *p, uint64_t factor)
{
    return (int64_t)(factor * (uint64_t)p->data_step);
}

static void set(struct program *p, uint64_t number, enum saved how, int64_t offset)
{
    if (number == RBP) {
        p->row.rbp = how;
        p->row.rbp_offset = offset;
    } else if (number == RETURN) {
        p->row.ret = how;
        p->row.ret_offset = offset;
    }
}

static void restore(struct program *p, uint64_t number)
{
    if (number == RBP)
        set(p, number, p->first.rbp, p->first.rbp_offset);
    else if (number == RETURN)
        set(p, number, p->first.ret, p->first.ret_offset);
}

static void set_cfa(struct program *p, uint64_t number, int64_t offset)
{
    p->row.cfa_register = number;
    p->row.cfa_offset = offset;
    p->row.cfa_is_known = true;
}

static bool keep_state(struct program *p)
{
    if (p->num_saved == SAVED_STATES)
        return false;
    p->saved[p->num_saved++] = p->row;
    return true;
}

static bool back_to_state(struct program *p)
{
    if (!p->num_saved)
        return false;
    p->row = p->saved[--p->num_saved];
    return true;
}

/* Instructions whose first operand is a register, and that leave the CFA alone. */
static bool take_register(struct program *p, unsigned code, struct bytes *b)
{
    uint64_t number = take_unsigned(b);
    switch (code) {
    case 0x05: /* offset_extended */
        set(p, number, SAVED_AT, scaled(p, take_unsigned(b)));
        return true;
    case 0x11: /* offset_extended_sf */
        set(p, number, SAVED_AT, scaled(p, (uint64_t)take_signed(b)));
        return true;
    case 0x06: /* restore_extended */
        restore(p, number);
        return true;
    case 0x08: /* same_value */
        set(p, number, SAVED_NOT, 0);
        return true;
    case 0x07: /* undefined */
        set(p, number, SAVED_ELSEWHERE, 0);
        return true;
    case 0x09: /* register */
    case 0x14: /* val_offset */
        take_unsigned(b);
        set(p, number, SAVED_ELSEWHERE, 0);
        return true;
    case 0x10: /* expression */
    case 0x16: /* val_expression */
        pass(b, take_unsigned(b));
        set(p, number, SAVED_ELSEWHERE, 0);
        return true;
    default:
        return false;
    }
}

/* False: it is not understood. */
static bool take_other(struct program *p, unsigned code, struct bytes *b)
{
    uint64_t number;
    switch (code) {
    case 0x00: /* nop */
        return true;
    case 0x02: /* advance_loc1, 2 and 4 */
    case 0x03:
    case 0x04:
        p->address += take(b, (size_t)1 << (code - 2)) * p->code_step;
        return true;
    case 0x0a: /* remember_state */
        return keep_state(p);
    case 0x0b: /* restore_state */
        return back_to_state(p);
    case 0x0c: /* def_cfa */
        number = take_unsigned(b);
        set_cfa(p, number, (int64_t)take_unsigned(b));
        return true;
    case 0x0d: /* def_cfa_register */
        p->row.cfa_register = take_unsigned(b);
        return true;
    case 0x0e: /* def_cfa_offset */
        p->row.cfa_offset = (int64_t)take_unsigned(b);
        return true;
    case 0x0f: /* def_cfa_expression */
        pass(b, take_unsigned(b));
        p->row.cfa_is_known = false;
        return true;
    case 0x2e: /* GNU_args_size */
        take_unsigned(b);
        return true;
    default:
        return take_register(p, code, b);
    }
}

/* Up to the row of `target`. False: an instruction is not understood. */
static bool run(struct program *p, struct bytes b)
{
    while (b.at < b.end && p->address <= p->target) {
        unsigned code = (unsigned)take(&b, 1), low = code & 0x3f;
        bool known = true;
        if (code >> 6 == 1)
            p->address += low * p->code_step;
        else if (code >> 6 == 2)
            set(p, low, SAVED_AT, scaled(p, take_unsigned(&b)));
        else if (code >> 6 == 3)
            restore(p, low);
        else
            known = take_other(p, code, &b);
        if (!known || b.over)
            return false;
    }
    return true;
}

/* --- the entries ------------------------------------------------------------------------------ */

/* The entry at an address, behind its length. Empty: there is none. */
static struct bytes entry_at(const struct place *o, uintptr_t at)
{
    struct bytes b = {at, o->tables.end, !holds(o->tables, at)};
    uint64_t size = take(&b, 4);
    if (b.over || !size || size > 0xfffffff0 || size > b.end - b.at)
        return (struct bytes){0, 0, true};
    b.end = b.at + size;
    return b;
}

/* What all functions of a kind have in common. */
struct common {
    uint64_t code_step;
    int64_t data_step;
    struct bytes program;
};

static bool read_common(const struct place *o, uintptr_t at, struct common *out)
{
    struct bytes b = entry_at(o, at);
    unsigned char pointers = 0;
    if (take(&b, 4) != 0)
        return false;
    uint64_t version = take(&b, 1);
    if (version != 1 && version != 3)
        return false;
    uintptr_t words = b.at;
    while (take(&b, 1))
        ;
    out->code_step = take_unsigned(&b);
    out->data_step = take_signed(&b);
    if ((version == 1 ? take(&b, 1) : take_unsigned(&b)) != RETURN || b.over)
        return false;
    const char *word = (const char *)words;
    if (*word != 'z')
        return false; /* pointers are of full size then */
    uint64_t size = take_unsigned(&b);
    struct bytes data = b;
    pass(&b, size);
    for (word++; *word; word++) {
        if (*word == 'R')
            pointers = (unsigned char)take(&data, 1);
        else if (*word == 'L')
            take(&data, 1);
        else if (*word == 'P') {
            unsigned char size4 = take(&data, 1) & 0x0f;
            take(&data, size4 == DATA4_SIGNED || size4 == DATA4 ? 4 : 8);
        } else { /* S: the frame of a signal */
            return false;
        }
    }
    out->program = b;
    return !b.over && !data.over && pointers == (FROM_HERE | DATA4_SIGNED);
}

/* The entry of the function that has the address, by the sorted table of the header. 0: none. */
static uintptr_t find_entry(const struct place *o, uintptr_t address)
{
    struct bytes b = {o->header.start, o->header.end, false};
    /* Version 1, and how the address of .eh_frame, the number of rows and the rows are written. */
    bool known = take(&b, 4) == (1 | (FROM_HERE | DATA4_SIGNED) << 8 | DATA4 << 16 |
                                 (FROM_HEADER | DATA4_SIGNED) << 24);
    take(&b, 4);
    uint64_t count = take(&b, 4);
    if (!known || b.over || !count || count > (b.end - b.at) / 8)
        return 0;
    size_t low = 0, high = count; /* the last row that begins at or before the address */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        struct bytes row = {b.at + middle * 8, b.end, false};
        if (o->header.start + (uintptr_t)(intptr_t)take_signed4(&row) <= address)
            low = middle;
        else
            high = middle;
    }
    struct bytes row = {b.at + low * 8 + 4, b.end, false};
    return o->header.start + (uintptr_t)(intptr_t)take_signed4(&row);
}

static bool find_row(const struct place *o, struct row *out)
{
    uintptr_t at = find_entry(o, o->address);
    struct common c;
    struct bytes b = entry_at(o, at);
    uintptr_t here = b.at;
    uint64_t back = take(&b, 4);
    if (!at || b.over || !back || !read_common(o, here - back, &c))
        return false;
    here = b.at;
    uintptr_t start = here + (uintptr_t)(intptr_t)take_signed4(&b);
    uint64_t size = take(&b, 4);
    pass(&b, take_unsigned(&b));
    if (b.over || !holds((struct range){start, start + size}, o->address))
        return false;
    struct program p = {c.code_step, c.data_step, start, UINTPTR_MAX, {0}, {0}, {{0}}, 0};
    if (!run(&p, c.program))
        return false;
    p.first = p.row;
    p.address = start;
    p.target = o->address;
    if (!run(&p, b))
        return false;
    *out = p.row;
    return true;
}

/* E8, or FF /2 with any operand, which ends at the address. */
static bool follows_call(uintptr_t address, struct range code)
{
    const unsigned char *p = (const unsigned char *)address;
    if (address < code.start + 8)
        return false;
    if (p[-5] == 0xe8)
        return true;
    for (int size = 2; size <= 7; size++) {
        unsigned char mode = p[1 - size], where = mode >> 6, base = mode & 7;
        bool has_index = where != 3 && base == 4;
        int more = where == 1 ? 1 : where == 2 ? 4 : 0;
        if (where == 0 && (base == 5 || (has_index && (p[2 - size] & 7) == 5)))
            more = 4;
        if (p[-size] == 0xff && (mode >> 3 & 7) == 2 && size == 2 + has_index + more)
            return true;
    }
    return false;
}

static int find_place(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct place *o = arg;
    (void)size;
    if (!find_code(info, o))
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_GNU_EH_FRAME)
            continue;
        uintptr_t at = info->dlpi_addr + p->p_vaddr;
        o->header = (struct range){at, segment_of(info, at).end};
        struct bytes b = {at + 4, o->header.end, false};
        o->tables = segment_of(info, at + 4 + (uintptr_t)(intptr_t)take_signed4(&b));
    }
    return 1;
}

enum cfi_found cfi_find(uintptr_t return_address, struct cfi_rule *out)
{
    struct place o = {.address = return_address - 1}; /* the call; its function may end behind it */
    struct row row;
    if (!dl_iterate_phdr(find_place, &o) || !follows_call(return_address, o.code))
        return CFI_NO_CALL;
    if (o.tables.start == o.tables.end || !find_row(&o, &row) || !row.cfa_is_known ||
        (row.cfa_register != RBP && row.cfa_register != RSP) || row.cfa_offset <= 0 ||
        row.cfa_offset / 8 > CFI_WORDS_MOST || row.cfa_offset % 8 || row.ret != SAVED_AT ||
        row.ret_offset != -8)
        return CFI_NO_RULE;
    bool saved = row.rbp == SAVED_AT && row.rbp_offset < 0 && row.rbp_offset % 8 == 0 &&
                 -row.rbp_offset / 8 <= CFI_RBP_MOST;
    *out = (struct cfi_rule){.is_from_rbp = row.cfa_register == RBP,
                             .cfa_words = (uint32_t)row.cfa_offset / 8,
                             .loses_rbp = !saved && row.rbp != SAVED_NOT,
                             .rbp_words = saved ? (uint8_t)(-row.rbp_offset / 8) : 0};
    return CFI_RULE;
}

#else

static int find_place(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    return find_code(info, arg);
}

/* BL or BLR. Frames are left by their records: a rule says that the address is a good one. */
static bool follows_call(uintptr_t address, struct range code)
{
    uint32_t instruction = 0;
    if (address % 4 || address < code.start + 4)
        return false;
    memcpy(&instruction, (const void *)(address - 4), sizeof instruction);
    return instruction >> 26 == 0x25 || (instruction & 0xfffffc1f) == 0xd63f0000;
}

enum cfi_found cfi_find(uintptr_t return_address, struct cfi_rule *out)
{
    struct place o = {.address = return_address - 1};
    *out = (struct cfi_rule){.is_from_rbp = true, .cfa_words = 1};
    return dl_iterate_phdr(find_place, &o) && follows_call(return_address, o.code) ? CFI_RULE
                                                                                   : CFI_NO_CALL;
}
#endif
