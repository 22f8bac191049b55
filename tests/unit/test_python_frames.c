/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/trace/python_frames.c, on objects as CPython 3.11 has them that are made here: what is not
 * as expected gives no frames, and no crash. tests/tool/test_paths.py has the real interpreters. */
#include "shim/process/log.h"
#include "shim/trace/python_frames.h"
#include "tests/unit/cases.h"

enum { FRAMES = 5, CODE_BYTES = 184, LINES = 6 };

struct type {
    char head[32];
    int64_t basic_size;
};

struct text {
    uint64_t references;
    const void *type;
    uint64_t length, hash;
    uint32_t state, padding;
    uint64_t wide;
    char characters[64];
};

struct code {
    union {
        char bytes[CODE_BYTES];
        uint64_t words[CODE_BYTES / 8];
    };
    uint16_t instructions[8];
};

static struct type code_type = {.basic_size = 184}, unicode_type = {.basic_size = 80},
                   frame_type = {.basic_size = 120};
static unsigned long version = 0x030b07f0;
static uint64_t runtime[64];
static uint64_t thread[16], cframe[4], frames[FRAMES][10];
static struct code codes[FRAMES];
static struct text names[FRAMES], files[FRAMES];
/* Instructions 0 and 1 are of the first line, 2 and 3 of two lines behind, 4 and 5 of one before.
 */
static struct {
    uint64_t head[2], size, hash;
    unsigned char bytes[LINES];
} lines = {.size = LINES, .bytes = {0xf1, 0x00, 0xe9, 0x04, 0xe9, 0x07}};
static void *this_thread, *holder;

static const char *said = "";

bool log_wants(enum log_level level)
{
    return true;
}

void log_line(enum log_level level, const char *format, ...)
{
    said = format;
}

static void *get_thread(void)
{
    return this_thread;
}

static void *get_holder(void)
{
    return holder;
}

static struct python_symbols symbols = {.this_thread = get_thread,
                                        .holder = get_holder,
                                        .version = &version,
                                        .runtime = runtime,
                                        .code_type = &code_type,
                                        .unicode_type = &unicode_type,
                                        .frame_type = &frame_type};

static void set_text(struct text *t, const char *words)
{
    *t = (struct text){.type = &unicode_type,
                       .length = strlen(words),
                       .hash = UINT64_MAX,
                       .state = 1 << 2 | 3 << 5};
    strcpy(t->characters, words);
}

/* A thread inside FRAMES functions, each called by the next. */
static void make_all(void)
{
    memset(frames, 0, sizeof frames);
    memset(codes, 0, sizeof codes);
    thread[56 / 8] = (uintptr_t)cframe;
    cframe[1] = (uintptr_t)frames[0];
    for (int i = 0; i < FRAMES; i++) {
        char words[32];
        snprintf(words, sizeof words, "function %d", i);
        set_text(&names[i], words);
        snprintf(words, sizeof words, "file %d.py", i);
        set_text(&files[i], words);
        uint64_t *code = codes[i].words, *frame = frames[i];
        int32_t first_line = 10 * i + 1;
        code[1] = (uintptr_t)&code_type;
        code[2] = 8;
        memcpy(codes[i].bytes + 72, &first_line, 4);
        code[112 / 8] = (uintptr_t)&files[i];
        code[128 / 8] = (uintptr_t)&names[i];
        code[136 / 8] = (uintptr_t)&lines;
        frame[32 / 8] = (uintptr_t)code;
        frame[48 / 8] = i + 1 < FRAMES ? (uintptr_t)frames[i + 1] : 0;
        frame[56 / 8] = (uintptr_t)&codes[i].instructions[i];
    }
    this_thread = holder = thread;
}

static unsigned walk(unsigned most)
{
    uint64_t out[FRAMES + 1], key = 0;
    unsigned count = python_frames_walk(most, out, &key);
    for (unsigned i = 0; i < count; i++)
        assert_ptr_equal(out[i], frames[i]);
    return count;
}

static void begin(void)
{
    const char *why = NULL;
    make_all();
    python_frames_end();
    if (!python_frames_begin(&symbols, &why))
        fail_msg("%s", why);
}

/* First: what was found good once is not looked at anew. */
TEST(other_interpreters_have_no_frames)
{
    const char *why = "";
    make_all();
    static const unsigned long others[] = {0x030a0df0, 0x030e00f0, 0x040b0000, 0,
                                           0x030b00f0, 0x030c00b1, 0x030d00c2};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        version = others[i];
        assert_false(python_frames_begin(&symbols, &why));
        assert_string_equal(why, "this version of Python is not known");
    }
    version = 0x030d00f0;
    assert_false(python_frames_begin(&symbols, &why));
    assert_string_equal(why, "this Python does not tell where its frames are");
    memcpy(runtime, "xdebugpy", 8);
    runtime[1] = version;
    runtime[23] = 1 << 20;
    assert_false(python_frames_begin(&symbols, &why));
    assert_string_equal(why, "this Python does not tell where its frames are");
    runtime[2] = 1;
    assert_false(python_frames_begin(&symbols, &why));
    assert_string_equal(why, "this Python runs without its lock");
    version = 0x030b07f0;
    for (int i = 0; i < 3; i++) {
        struct type *type = i == 0 ? &code_type : i == 1 ? &unicode_type : &frame_type;
        type->basic_size += 8;
        assert_false(python_frames_begin(&symbols, &why));
        assert_string_equal(why, "this Python was built in another way");
        type->basic_size -= 8;
    }
    assert_int_equal(walk(FRAMES), 0);
}

TEST(frames_are_found_with_their_names_and_lines)
{
    static const unsigned wanted[FRAMES] = {1, 11, 23, 33, 40};
    uint64_t out[FRAMES], key = 0, before;
    struct python_place place;
    begin();
    assert_int_equal(walk(FRAMES + 1), FRAMES);
    assert_int_equal(walk(2), 2);
    assert_int_equal(python_frames_walk(FRAMES, out, &key), FRAMES);
    for (int i = 0; i < FRAMES; i++) {
        python_frame_read(out[i], &place);
        assert_string_equal(place.text, names[i].characters);
        assert_memory_equal(place.text + strlen(place.text) + 1, files[i].characters, 9);
        assert_int_equal(place.length, strlen(place.text) + 10);
        assert_int_equal(place.line, wanted[i]);
        assert_int_equal(place.key, python_frame_key(out[i]));
    }
    before = key;
    key = 0;
    frames[3][7] += 2;
    python_frames_walk(FRAMES, out, &key);
    assert_int_not_equal(key, before);
}

TEST(frames_of_the_interpreters_own_are_passed_over)
{
    uint64_t out[FRAMES], key = 0;
    begin();
    assert_int_equal(walk(FRAMES), FRAMES);
    ((char *)frames[1])[69] = 3;
    frames[1][4] = 0;
    codes[2].words[112 / 8] = 0;
    assert_int_equal(python_frames_walk(FRAMES, out, &key), FRAMES - 2);
    assert_ptr_equal(out[1], frames[3]);
    python_frames_end();
    assert_int_equal(walk(FRAMES), 0);
}

/* A function that has not begun, or code that the interpreter made for itself. */
TEST(hidden_frames_are_passed_over)
{
    uint64_t out[FRAMES], key = 0;
    int32_t hidden = 4;
    begin();
    for (int i = 1; i < 4; i++)
        memcpy(codes[i].bytes + 168, &hidden, 4);
    ((char *)frames[2])[69] = 1; /* a generator's */
    frames[3][7] += 2;           /* just begun */
    codes[1].words[112 / 8] = codes[1].words[136 / 8] = 0x10;
    assert_int_equal(python_frames_walk(FRAMES, out, &key), FRAMES - 1);
    assert_ptr_equal(out[1], frames[2]);
    assert_ptr_equal(out[2], frames[3]);
    frames[3][7] -= 2;
    assert_int_equal(python_frames_walk(FRAMES, out, &key), FRAMES - 2);
}

/* Code that has ended, and other code at its place. */
TEST(whatever_is_told_of_a_place_is_in_its_key)
{
    begin();
    assert_int_equal(walk(FRAMES), FRAMES);
    for (int i = 0; i < 4; i++) {
        char *byte = i == 0   ? &names[2].characters[9]
                     : i == 1 ? &files[2].characters[0]
                     : i == 2 ? (char *)&lines.bytes[5]
                              : &codes[2].bytes[72];
        uint64_t out[FRAMES], key = 0, before, place = python_frame_key((uintptr_t)frames[2]);
        python_frames_walk(FRAMES, out, &key);
        before = key;
        key = 0;
        *byte ^= 1;
        python_frames_walk(FRAMES, out, &key);
        assert_int_not_equal(key, before);
        assert_int_not_equal(python_frame_key((uintptr_t)frames[2]), place);
    }
    lines.bytes[5] ^= 1;
}

TEST(of_a_thread_that_may_lose_its_frames_none)
{
    begin();
    holder = NULL;
    assert_int_equal(walk(FRAMES), 0);
    holder = runtime;
    assert_int_equal(walk(FRAMES), 0);
    this_thread = holder = NULL;
    assert_int_equal(walk(FRAMES), 0);
    this_thread = holder = thread;
    assert_int_equal(walk(FRAMES), FRAMES);
}

TEST(no_frames_prove_nothing)
{
    begin();
    cframe[1] = 0;
    said = "";
    assert_int_equal(walk(FRAMES), 0);
    assert_string_equal(said, "");
    make_all();
    codes[1].words[1] = 0;
    assert_int_equal(walk(FRAMES), 0);
    assert_string_not_equal(said, "");
}

TEST(what_is_not_as_expected_ends_it_with_a_line)
{
    for (int i = 0; i < 9; i++) {
        begin();
        uint64_t *place = i == 0   ? &thread[7]
                          : i == 1 ? &cframe[1]
                          : i == 2 ? &frames[2][4]
                          : i == 3 ? &frames[3][6]
                          : i == 4 ? &frames[3][7]
                          : i == 5 ? &codes[4].words[1]
                          : i == 6 ? &codes[4].words[112 / 8]
                          : i == 7 ? &codes[4].words[128 / 8]
                                   : &codes[4].words[136 / 8];
        *place = i % 2 ? UINT64_C(0x10) : UINT64_C(1) << 62;
        said = "";
        assert_int_equal(walk(FRAMES), 0);
        assert_non_null(strstr(said, "its memory is not as expected"));
        make_all();
        assert_int_equal(walk(FRAMES), 0);
    }
}

PLAY_TESTS
