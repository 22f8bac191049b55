/* SPDX-License-Identifier: BSD-2-Clause */
/* The grammar of every option type: what is refused. What is taken, and as what: test_show.c.
 * Random words are either taken or refused, and a refused one leaves no trace. */
#include "shim/option/parse.h"
#include "tests/unit/capture.h"

#include <locale.h>

/* None of the words is taken, and none leaves a trace. */
#define REFUSED(TYPE, type, ...)                                                                   \
    do {                                                                                           \
        static const char *const words[] = {__VA_ARGS__};                                          \
        static type before, after;                                                                 \
        memset(&before, 0x5a, sizeof before);                                                      \
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {                              \
            memcpy(&after, &before, sizeof before);                                                \
            if (parse_##TYPE(words[i], &after))                                                    \
                fail_msg("\"%s\" is taken: " #TYPE, words[i]);                                     \
            assert_memory_equal(&after, &before, sizeof before);                                   \
        }                                                                                          \
    } while (0)

TEST(sizes_and_times_that_are_junk_or_overflow_are_refused)
{
    REFUSED(BYTES, struct option_bytes, "", " ", "G", "-1", "+1", "8X", "8GG", "8 G B", "1,5G",
            "0x10", "1e9", "8.G", ".5G", "1.5", "101%", "100.5%", "-5%", "50%%", "5O%", "8G,",
            ",8G", "8G,9G", "16777216T", "18446744073709551616", "99999999999999999999999",
            "0=", "=8G", "64=8G", "0=8G,0=9G", "a=8G", "0:8G", "8G;1=2G", "nonee", "unlimited");
    REFUSED(SECONDS, _Atomic uint64_t, "-1", "1d", "s", "1s2", "99999999999h");
}

TEST(words_that_are_none_are_refused)
{
    REFUSED(SWITCH, atomic_bool, "", "2", "o", "onn", "1,1", "enable");
    REFUSED(SIGNAL, int, "KILL", "10", "RTMIN+64", "RTMIN+", "RTMIN-1", "USR1x");
    REFUSED(STATS, struct option_stats, "exit:", "exitt", "json");
    REFUSED(LOG, struct option_log, "debugg", "info:", ":/tmp/x");
    REFUSED(GLOBS, struct option_globs, "None");
}

TEST(requests_that_are_junk_are_refused)
{
    REFUSED(EMPTY_CACHE, struct empty_cache, "2", "every", "every:", "every:0", "every:0.0001ms",
            "device=", "device=-1", "device=64", "device=1x", "keep=", "keep=50%", "keep=none",
            "1,", "0,1", "off,oom", "never", "all all", "every:30s30");
    REFUSED(PARK, struct option_park, "idle", "idle:", "idle:0", "lend:0.9", "lend", "ask,",
            "off,ask", "park", "idle=5", "idle:5s lend:5s", "lend:", "idle:0.1ms",
            "retain:", "retain:10%", "retain", "off,retain:1G");
    REFUSED(TRACE_STACKS, struct option_trace_stacks, "65", "python", "0,python", "8,8",
            "8,python,python", "8 python", "8,", "-1", "8,off", "off,8", "8,pythons", "0x8");
}

/* Nor do they on what test_show.c takes for granted: that what is shown is what was meant. */
TEST(numbers_do_not_depend_on_the_locale)
{
    static const char *const locales[] = {"C", "de_DE.UTF-8", "tr_TR.UTF-8"};
    for (size_t i = 0; i < sizeof locales / sizeof locales[0]; i++) {
        struct option_bytes bytes;
        _Atomic uint64_t ns;
        int number;
        if (!setlocale(LC_ALL, locales[i]))
            continue;
        assert_true(parse_SECONDS("0.5s", &ns) && ns == 500000000);
        assert_true(parse_BYTES("1.5KIB", &bytes) && bytes.others.bytes == 1536);
        assert_true(parse_SIGNAL("SIGRTMIN+3", &number) && number == SIGRTMIN + 3);
    }
    setlocale(LC_ALL, "C");
}

TEST(a_percent_sign_of_the_working_directory_is_no_pattern)
{
    char dir[] = "/tmp/gpucache-%p-XXXXXX", cwd[PATH_MAX];
    struct option_stats s;
    struct option_path p, pattern;
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    assert_true(parse_STATS("exit:a", &s));
    assert_true(parse_PATH("./none", &p));
    assert_true(parse_PATTERN("%p", &pattern));
    assert_int_equal(chdir(cwd), 0);
    rmdir(dir);
    assert_memory_equal(s.path, "/tmp/gpucache-%%p-", 18);
    assert_memory_equal(p.path, "/tmp/gpucache-%p-", 17);
    assert_memory_equal(pattern.path, "/tmp/gpucache-%%p-", 18);
    assert_string_equal(s.path + strlen(s.path) - 2, "/a");
    assert_string_equal(pattern.path + strlen(pattern.path) - 3, "/%p");
    assert_string_equal(p.path + strlen(p.path) - 7, "/./none");
}

TEST(paths_that_are_too_long_are_refused)
{
    static char text[PATH_MAX + 16];
    struct option_path p;
    memset(text, 'a', sizeof text - 1);
    text[0] = '/';
    assert_false(parse_PATH(text, &p));
    text[PATH_MAX] = '\0';
    assert_false(parse_PATH(text, &p));
    text[PATH_MAX - 1] = '\0';
    assert_true(parse_PATH(text, &p));
}

/* Words that the grammars are made of, put together at random. */
static void random_text(unsigned *seed, char *out, size_t size_bytes)
{
    static const char *const words[] = {
        "0",         "1",      "9",       "64",    "99999999999999999999",
        ".",         "%",      "=",       ",",     ":",
        " ",         "K",      "GiB",     "ms",    "h",
        "none",      "off",    "on",      "oom",   "all",
        "/a",        "every:", "device=", "keep=", "exit",
        "exit-json", "debug",  "USR",     "RTMIN", "+",
        "%p",        "*",      "\xff",    "-",     "arena",
        ".json"};
    size_t used = 0;
    out[0] = '\0';
    for (unsigned n = (unsigned)rand_r(seed) % 9; n > 0; n--) {
        const char *word = words[(unsigned)rand_r(seed) % (sizeof words / sizeof words[0])];
        if (used + strlen(word) >= size_bytes)
            break;
        strcpy(out + used, word);
        used += strlen(word);
    }
}

/* A refused value must leave the variable as it was. A value that is taken must be taken again, as
 * the same, with blanks around it. */
#define TRY(type, of, text)                                                                        \
    do {                                                                                           \
        static of before, first, again;                                                            \
        char padded[512];                                                                          \
        memset(&before, 0x5a, sizeof before);                                                      \
        memcpy(&first, &before, sizeof before);                                                    \
        snprintf(padded, sizeof padded, " %s ", text);                                             \
        if (!parse_##type(text, &first)) {                                                         \
            assert_memory_equal(&first, &before, sizeof before);                                   \
        } else {                                                                                   \
            taken++;                                                                               \
            assert_true(parse_##type(padded, &again));                                             \
        }                                                                                          \
    } while (0)

TEST(random_words_are_taken_whole_or_not_at_all)
{
    unsigned seed = 20, taken = 0;
    char text[256];
    for (int i = 0; i < 20000; i++) {
        random_text(&seed, text, sizeof text);
        TRY(SECONDS, _Atomic uint64_t, text);
        TRY(BACKING, enum pool_backing, text);
        TRY(REUSE, enum pool_reuse, text);
        TRY(TRACE_ON, enum trace_on, text);
        TRY(SIGNAL, int, text);
        TRY(BYTES, struct option_bytes, text);
        TRY(LIMIT, struct option_bytes, text);
        TRY(EMPTY_CACHE, struct empty_cache, text);
    }
    assert_true(taken > 1000);
}

PLAY_TESTS
