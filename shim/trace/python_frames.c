/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See python_frames.h.
 */
#include "shim/trace/python_frames.h"

#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/process/program.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Offsets in bytes. */
struct layout {
    uint32_t version;                                               /* 0x030b: 3.11 */
    uint16_t code_type_bytes, unicode_type_bytes, frame_type_bytes; /* tp_basicsize */
    uint16_t current, current_again; /* of the thread's frame; from there on once more, or NONE */
    uint16_t frame_code, frame_previous, frame_instruction, frame_owner;
    uint16_t first_line, file, name, lines, instructions; /* of a code object */
    uint16_t number;          /* of a code object: no other one's; NONE: there is none */
    uint16_t text, text_wide; /* of a str: its characters */
};
enum { NONE = UINT16_MAX };

static const struct layout tables[] = {
    {0x030b, 184, 80, 120, 56, 8, 32, 48, 56, 69, 72, 112, 128, 136, 184, NONE, 48, 72},
    {0x030c, 192, 64, 120, 56, 0, 0, 8, 56, 70, 68, 112, 128, 136, 192, 92, 40, 56},
    {0x030d, 200, 64, 136, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, 92, 40,
     56},
};
/* The first versions with these layouts, but for what came before a release. */
enum { FIRST_VERSION = 0x030b01f0, RELEASED = 0xf0 };
/* Places of words in _Py_DebugOffsets of 3.13. */
enum {
    OFFSETS_COOKIE,
    OFFSETS_VERSION,
    OFFSETS_FREE_THREADED,
    OFFSETS_CURRENT = 23,
    OFFSETS_PREVIOUS = 29,
    OFFSETS_CODE,
    OFFSETS_INSTRUCTION,
    OFFSETS_OWNER = 33,
    OFFSETS_FILE = 35,
    OFFSETS_NAME = 37,
    OFFSETS_LINES,
    OFFSETS_FIRST_LINE,
    OFFSETS_INSTRUCTIONS = 43,
    OFFSETS_WORDS
};

/* What all objects of all versions have. */
enum { OBJECT_TYPE = 8, OBJECT_SIZE = 16, TYPE_BASIC_SIZE = 32, BYTES_TEXT = 32 };
enum { UNICODE_LENGTH = 16, UNICODE_HASH = 24, UNICODE_STATE = 32 };
enum { OWNER_GENERATOR = 1, OWNER_OF_C = 3, FRAMES_CHECKED = 64, LINES_MOST = 1 << 20 };
/* Of a code object, behind its instructions' place: how many of these are none of its source. */
enum { HIDDEN_BEFORE_INSTRUCTIONS = 16, HIDDEN_MOST = 1 << 20 };

enum state { OFF, UNCHECKED, CHECKED };
static atomic_int state;
/* Written once, before the state is another than OFF. */
static struct layout layout;
static struct python_symbols symbols;
static pid_t first_thread; /* 0: the program is another one, and embeds the interpreter */
static atomic_flag checking = ATOMIC_FLAG_INIT;

#define READS_OTHERS __attribute__((no_sanitize("thread", "alignment")))
#define AT(type, address, offset) (*(const type *)((address) + (offset)))

static uint64_t mix(uint64_t key, uint64_t value)
{
    return ((key ^ value) * UINT64_C(0x9e3779b97f4a7c15)) ^ key >> 29;
}

/* --- the layout ------------------------------------------------------------------------------- */

static bool read_offsets(const uint64_t *words, unsigned long version)
{
    static const struct {
        uint8_t word;
        uint8_t field;
    } fields[] = {
        {OFFSETS_CURRENT, offsetof(struct layout, current)},
        {OFFSETS_PREVIOUS, offsetof(struct layout, frame_previous)},
        {OFFSETS_CODE, offsetof(struct layout, frame_code)},
        {OFFSETS_INSTRUCTION, offsetof(struct layout, frame_instruction)},
        {OFFSETS_OWNER, offsetof(struct layout, frame_owner)},
        {OFFSETS_FILE, offsetof(struct layout, file)},
        {OFFSETS_NAME, offsetof(struct layout, name)},
        {OFFSETS_LINES, offsetof(struct layout, lines)},
        {OFFSETS_FIRST_LINE, offsetof(struct layout, first_line)},
        {OFFSETS_INSTRUCTIONS, offsetof(struct layout, instructions)},
    };
    if (memcmp(&words[OFFSETS_COOKIE], "xdebugpy", 8) != 0 || words[OFFSETS_VERSION] != version)
        return false;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        uint16_t value = (uint16_t)words[fields[i].word];
        if (words[fields[i].word] >= 4096)
            return false;
        memcpy((char *)&layout + fields[i].field, &value, sizeof value);
    }
    return true;
}

static bool has_size(const void *type, uint16_t size_bytes)
{
    return AT(int64_t, (const char *)type, TYPE_BASIC_SIZE) == size_bytes;
}

static const char *find_layout(const struct python_symbols *s)
{
    size_t i = 0, count = s->version ? sizeof tables / sizeof tables[0] : 0;
    while (i < count && tables[i].version != *s->version >> 16)
        i++;
    if (i == count || *s->version < FIRST_VERSION || (*s->version & 0xff) != RELEASED)
        return "this version of Python is not known";
    layout = tables[i];
    const uint64_t *words = s->runtime;
    if (layout.current == NONE && words[OFFSETS_FREE_THREADED])
        return "this Python runs without its lock";
    if (layout.current == NONE && !read_offsets(words, *s->version))
        return "this Python does not tell where its frames are";
    if (!has_size(s->code_type, layout.code_type_bytes) ||
        !has_size(s->unicode_type, layout.unicode_type_bytes) ||
        !has_size(s->frame_type, layout.frame_type_bytes))
        return "this Python was built in another way";
    return NULL;
}

bool python_frames_begin(const struct python_symbols *s, const char **why)
{
    char file[PROGRAM_NAME_MAX];
    if (atomic_load(&state) != OFF)
        return true;
    if (!symbols.version) { /* once: its values never change */
        *why = find_layout(s);
        if (*why)
            return false;
        bool is_python = program_file_name(file, sizeof file) && strncmp(file, "python", 6) == 0;
        first_thread = is_python ? getpid() : 0;
        symbols = *s;
    }
    atomic_store_explicit(&state, UNCHECKED, memory_order_release);
    return true;
}

void python_frames_end(void)
{
    atomic_store(&state, OFF);
}

/* --- the check -------------------------------------------------------------------------------- */

/* By the kernel. False: there is no such memory. */
static bool fetch_bytes(uint64_t address, void *out, size_t size_bytes)
{
    struct iovec to = {out, size_bytes}, from = {(void *)(uintptr_t)address, size_bytes};
    return address && process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)size_bytes;
}

static bool fetch_word(uint64_t address, uint64_t *out)
{
    return fetch_bytes(address, out, sizeof *out);
}

static bool has_type(uint64_t object, const void *type)
{
    uint64_t found;
    return fetch_word(object + OBJECT_TYPE, &found) && found == (uintptr_t)type;
}

static bool check_source(uint64_t code)
{
    uint64_t file, name, lines, size;
    int32_t first_line;
    return fetch_word(code + layout.file, &file) && fetch_word(code + layout.name, &name) &&
           fetch_word(code + layout.lines, &lines) &&
           fetch_bytes(code + layout.first_line, &first_line, 4) && first_line >= 0 &&
           has_type(file, symbols.unicode_type) && has_type(name, symbols.unicode_type) &&
           fetch_word(lines + OBJECT_SIZE, &size) && size < LINES_MOST;
}

/* Of a frame that is hidden (code_of) nothing else is read. */
static bool check_code(uint64_t code, uint64_t instruction, uint8_t owner)
{
    uint64_t size, start = code + layout.instructions;
    int32_t hidden;
    return has_type(code, symbols.code_type) && fetch_word(code + OBJECT_SIZE, &size) &&
           fetch_bytes(start - HIDDEN_BEFORE_INSTRUCTIONS, &hidden, 4) && hidden >= 0 &&
           hidden < HIDDEN_MOST && instruction + 2 >= start && instruction < start + 2 * size &&
           ((owner != OWNER_GENERATOR && instruction < start + 2 * (uint64_t)hidden) ||
            check_source(code));
}

/* *count: the frames that were compared. */
static bool check_frames(uint64_t thread, int *count)
{
    uint64_t frame, code, instruction;
    uint8_t owner;
    bool good = fetch_word(thread + layout.current, &frame) &&
                (layout.current_again == NONE || fetch_word(frame + layout.current_again, &frame));
    for (*count = 0; good && frame && *count < FRAMES_CHECKED; ++*count) {
        good = fetch_bytes(frame + layout.frame_owner, &owner, 1) && owner <= OWNER_OF_C &&
               fetch_word(frame + layout.frame_code, &code) &&
               fetch_word(frame + layout.frame_instruction, &instruction) &&
               (owner == OWNER_OF_C || check_code(code, instruction, owner)) &&
               fetch_word(frame + layout.frame_previous, &frame);
    }
    return good;
}

static __attribute__((noinline, cold)) bool check(uint64_t thread)
{
    int saved_errno = errno;
    if (atomic_flag_test_and_set(&checking))
        return false; /* another thread does it */
    int before = UNCHECKED, count;
    bool good = check_frames(thread, &count);
    if (good && !count)
        good = false; /* and as before: the next thread may have some */
    else if (atomic_compare_exchange_strong(&state, &before, good ? CHECKED : OFF) && !good)
        log_warn("GPUCACHE_TRACE_STACKS: no frames of Python: its memory is not as expected");
    atomic_flag_clear(&checking);
    errno = saved_errno;
    return good;
}

/* --- frames ----------------------------------------------------------------------------------- */

/* The thread's state; NULL: it has none, or may lose it (2). */
static void *own_thread(void)
{
    static __thread pid_t tid __attribute__((tls_model("initial-exec")));
    void *thread = symbols.this_thread();
    if (!thread || symbols.holder() == thread)
        return thread;
    if (!tid)
        tid = kernel_gettid();
    return tid == first_thread ? thread : NULL;
}

/* 0: none of a function's, or of a function that has not begun. The interpreter makes code for
 * itself, of which all is hidden, or which has no file. */
READS_OTHERS static inline uintptr_t code_of(uintptr_t frame)
{
    uint8_t owner = AT(uint8_t, frame, layout.frame_owner);
    uintptr_t code = owner == OWNER_OF_C ? 0 : AT(uintptr_t, frame, layout.frame_code);
    if (!code || !AT(uintptr_t, code, layout.file) || !AT(uintptr_t, code, layout.name))
        return 0;
    uintptr_t start = code + layout.instructions;
    uint32_t hidden = AT(uint32_t, start, -HIDDEN_BEFORE_INSTRUCTIONS);
    bool has_begun = AT(uintptr_t, frame, layout.frame_instruction) >= start + 2 * (size_t)hidden;
    return owner == OWNER_GENERATOR || has_begun ? code : 0;
}

/* Four words at a time: one multiplication would wait for the other. The last word may have bytes
 * of the one before it. */
READS_OTHERS static inline uint64_t hash_bytes(uintptr_t at, uint64_t size_bytes)
{
    uint64_t a = 0, b = size_bytes, c = 0, d = 0;
    uintptr_t end = at + size_bytes;
    for (; end - at >= 32; at += 32) {
        a = mix(a, AT(uint64_t, at, 0));
        b = mix(b, AT(uint64_t, at, 8));
        c = mix(c, AT(uint64_t, at, 16));
        d = mix(d, AT(uint64_t, at, 24));
    }
    for (; end - at >= 8; at += 8)
        a = mix(a, AT(uint64_t, at, 0));
    if (size_bytes >= 8)
        b = mix(b, AT(uint64_t, end, -8));
    for (; size_bytes < 8 && at < end; at++)
        c = c << 8 | AT(uint8_t, at, 0);
    return mix(mix(a, b), mix(c, d));
}

struct characters {
    uintptr_t at;
    uint64_t length;
    uint32_t width; /* 1, 2 or 4 bytes each; 0: they are elsewhere */
    bool is_ascii;
};

READS_OTHERS static struct characters characters_of(uintptr_t text)
{
    uint32_t flags = AT(uint32_t, text, UNICODE_STATE), kind = flags >> 2 & 7;
    bool is_compact = flags >> 5 & 1, is_ascii = flags >> 6 & 1;
    bool is_known = is_compact && (kind == 1 || kind == 2 || kind == 4);
    return (struct characters){text + (is_ascii ? layout.text : layout.text_wide),
                               AT(uint64_t, text, UNICODE_LENGTH), is_known ? kind : 0, is_ascii};
}

/* A name that is a key somewhere has a hash of its own. */
READS_OTHERS static inline uint64_t hash_text(uintptr_t text)
{
    if (AT(int64_t, text, UNICODE_HASH) != -1)
        return AT(uint64_t, text, UNICODE_HASH);
    struct characters c = characters_of(text);
    return hash_bytes(c.at, c.length * c.width);
}

/* Other code may lie where code ended, with all that it names at the same places. The frames'
 * hashes do not wait for each other. */
READS_OTHERS static inline uint64_t add_frame(uint64_t key, uintptr_t frame, uintptr_t code)
{
    key = mix(key, AT(uintptr_t, frame, layout.frame_instruction));
    if (layout.number != NONE)
        return mix(key, AT(uint32_t, code, layout.number));
    uintptr_t table = AT(uintptr_t, code, layout.lines);
    uint64_t lines = hash_bytes(table + BYTES_TEXT, AT(uint64_t, table, OBJECT_SIZE));
    uint64_t place = mix(hash_text(AT(uintptr_t, code, layout.file)),
                         hash_text(AT(uintptr_t, code, layout.name)));
    return mix(key, mix(place, lines + AT(uint32_t, code, layout.first_line)));
}

READS_OTHERS unsigned python_frames_walk(unsigned most, uint64_t *out, uint64_t *key)
{
    unsigned count = 0;
    int now = atomic_load_explicit(&state, memory_order_acquire);
    uintptr_t thread = now == OFF ? 0 : (uintptr_t)own_thread();
    if (!thread || (now == UNCHECKED && !check(thread)))
        return 0;
    uintptr_t frame = AT(uintptr_t, thread, layout.current);
    if (frame && layout.current_again != NONE)
        frame = AT(uintptr_t, frame, layout.current_again);
    for (; frame && count < most; frame = AT(uintptr_t, frame, layout.frame_previous)) {
        uintptr_t code = code_of(frame);
        if (!code)
            continue;
        *key = add_frame(*key, frame, code);
        out[count++] = frame;
    }
    return count;
}

struct stack_code python_frames_code(void)
{
    return symbols.code;
}

uint64_t python_frame_key(uint64_t frame)
{
    return (add_frame(1, frame, code_of(frame)) | UINT64_C(1) << 62) & ~(UINT64_C(1) << 63);
}

/* --- names and lines -------------------------------------------------------------------------- */

/* As UTF-8, of characters in 1, 2 or 4 bytes. Returns the bytes. */
static size_t put_character(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    out[0] = '?';
    return 1;
}

/* The first characters, or the last ones. Returns the bytes, at most size_bytes. */
READS_OTHERS static size_t put_name(char *out, size_t size_bytes, uintptr_t text, bool from_end)
{
    struct characters its = characters_of(text);
    uint64_t length = its.width ? its.length : 0, most = size_bytes / (its.is_ascii ? 1 : 2);
    size_t n = 0;
    uint64_t first = from_end && length > most ? length - most : 0;
    uint64_t end = length - first > most ? first + most : length;
    for (uint64_t i = first; i < end; i++) {
        uint32_t c = its.width == 1   ? AT(uint8_t, its.at, i)
                     : its.width == 2 ? AT(uint16_t, its.at, 2 * i)
                                      : AT(uint32_t, its.at, 4 * i);
        n += put_character(out + n, c ? c : '?');
    }
    return n;
}

struct lines {
    const uint8_t *at, *end;
};

/* Six bits a byte, the lowest first. */
static uint32_t take_number(struct lines *l)
{
    uint32_t value = 0, byte = 0x40;
    for (unsigned shift = 0; shift < 30 && byte & 0x40 && l->at < l->end; shift += 6) {
        byte = *l->at++;
        value |= (byte & 0x3f) << shift;
    }
    return value;
}

static int take_difference(struct lines *l)
{
    uint32_t value = take_number(l);
    return value & 1 ? -(int)(value >> 1) : (int)(value >> 1);
}

/* The line of the instruction of this number (of 2 bytes each): the interpreter's table of
 * locations, Objects/locations.md of CPython. 0: it has none. */
READS_OTHERS static unsigned line_of(uintptr_t code, uint64_t number)
{
    uintptr_t table = AT(uintptr_t, code, layout.lines);
    uint64_t size = AT(uint64_t, table, OBJECT_SIZE), at = 0;
    int line = AT(int32_t, code, layout.first_line);
    if (size >= LINES_MOST)
        return 0;
    struct lines l = {(const uint8_t *)table + BYTES_TEXT, NULL};
    for (l.end = l.at + size; l.at < l.end;) {
        unsigned head = *l.at++, kind = head >> 3 & 15;
        at += (head & 7) + 1;
        if (kind == 13 || kind == 14)
            line += take_difference(&l);
        else if (kind >= 10 && kind <= 12)
            line += (int)kind - 10;
        if (at > number)
            return kind == 15 || line < 0 ? 0 : (unsigned)line;
        while (l.at < l.end && !(*l.at & 0x80))
            l.at++;
    }
    return 0;
}

READS_OTHERS void python_frame_read(uint64_t frame, struct python_place *out)
{
    uintptr_t code = code_of(frame);
    uint64_t instruction = AT(uintptr_t, frame, layout.frame_instruction);
    out->key = python_frame_key(frame);
    out->line = line_of(code, (instruction - code - layout.instructions) / 2);
    size_t n = put_name(out->text, PYTHON_NAME_BYTES - 1, AT(uintptr_t, code, layout.name), false);
    out->text[n++] = '\0';
    n += put_name(out->text + n, PYTHON_FILE_BYTES, AT(uintptr_t, code, layout.file), true);
    out->length = (unsigned)n;
}
