/* SPDX-License-Identifier: BSD-2-Clause */
/* The grammar of every option type: what is taken and as what, and what is refused. Random words
 * are either taken or refused, and a refused one leaves no trace. */
#include "shim/option/parse.h"
#include "tests/unit/capture.h"

#include <locale.h>

static uint64_t size_of(const char *text)
{
    struct option_bytes v;
    memset(&v, 0, sizeof v);
    v.others.bytes = 77;
    if (!parse_BYTES(text, &v)) {
        assert_int_equal(v.others.bytes, 77);
        return 77;
    }
    return v.others.bytes;
}

TEST(sizes_take_binary_suffixes_and_fractions)
{
    assert_true(size_of("0") == 0);
    assert_true(size_of("4096") == 4096);
    assert_true(size_of("12B") == 12);
    assert_true(size_of("1K") == 1024);
    assert_true(size_of("3kib") == 3 * 1024);
    assert_true(size_of("2 MB") == 2 << 20);
    assert_true(size_of(" 8G ") == UINT64_C(8) << 30);
    assert_true(size_of("1.5G") == (UINT64_C(3) << 30) / 2);
    assert_true(size_of("0.25GiB") == UINT64_C(1) << 28);
    assert_true(size_of("2t") == UINT64_C(2) << 40);
    assert_true(size_of("none") == 0);
    assert_true(size_of("16777215T") == UINT64_C(16777215) << 40);
}

TEST(none_is_a_meaning_of_each_type_or_refused)
{
    struct option_bytes v = {0};
    struct option_path path = {.path = "/x"};
    struct option_globs globs;
    _Atomic uint64_t ns = 7;
    assert_true(parse_LIMIT("None", &v) && v.others.bytes == UINT64_MAX);
    assert_true(parse_LIMIT("unlimited,1=8G", &v) && v.others.bytes == UINT64_MAX);
    assert_true(v.device[1].bytes == UINT64_C(8) << 30);
    assert_true(parse_LIMIT("8G,1=none", &v) && v.device[1].bytes == UINT64_MAX);
    assert_true(parse_BYTES("8G,1=none", &v) && v.others.bytes == UINT64_C(8) << 30 &&
                !v.device[1].bytes);
    assert_false(parse_BYTES("unlimited", &v));
    assert_true(parse_SECONDS("none", &ns) && !ns);
    assert_true(parse_PATH("none", &path) && !path.path[0]);
    assert_true(parse_PATH("./none", &path) && strstr(path.path, "/./none"));
    assert_false(parse_GLOBS("None", &globs));
    assert_true(parse_GLOBS("none*", &globs));
}

TEST(sizes_that_are_junk_or_overflow_are_refused)
{
    static const char *const junk[] = {"",
                                       " ",
                                       "G",
                                       "-1",
                                       "+1",
                                       "8X",
                                       "8GG",
                                       "8 G B",
                                       "1,5G",
                                       "0x10",
                                       "1e9",
                                       "8.G",
                                       ".5G",
                                       "1.5",
                                       "101%",
                                       "100.5%",
                                       "-5%",
                                       "50%%",
                                       "5O%",
                                       "8G,",
                                       ",8G",
                                       "8G,9G",
                                       "16777216T",
                                       "18446744073709551616",
                                       "99999999999999999999999",
                                       "0=",
                                       "=8G",
                                       "64=8G",
                                       "0=8G,0=9G",
                                       "a=8G",
                                       "0:8G",
                                       "8G;1=2G",
                                       "nonee"};
    struct option_bytes v;
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++)
        if (parse_BYTES(junk[i], &v))
            fail_msg("\"%s\" was taken for a size", junk[i]);
}

static uint64_t time_of(const char *text)
{
    _Atomic uint64_t ns = 77;
    return parse_SECONDS(text, &ns) ? ns : 77;
}

TEST(times_take_units_and_fractions)
{
    assert_true(time_of("0") == 0);
    assert_true(time_of("30") == UINT64_C(30000000000));
    assert_true(time_of("0.5s") == 500000000);
    assert_true(time_of("200ms") == 200000000);
    assert_true(time_of("5m") == UINT64_C(300000000000));
    assert_true(time_of("1h") == UINT64_C(3600000000000));
    assert_true(time_of("1.000001h") == UINT64_C(3600003600000));
    assert_true(time_of("-1") == 77);
    assert_true(time_of("1d") == 77);
    assert_true(time_of("s") == 77);
    assert_true(time_of("1s2") == 77);
    assert_true(time_of("99999999999h") == 77);
}

TEST(numbers_do_not_depend_on_the_locale)
{
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "tr_TR.UTF-8"))
        skip();
    assert_true(time_of("0.5s") == 500000000);
    assert_true(size_of("1.5KIB") == 1536);
    setlocale(LC_ALL, "C");
}

TEST(switches_take_the_usual_words)
{
    static const char *const on[] = {"1", "on", "ON", "yes", "True", " 1 "};
    static const char *const off[] = {"0", "off", "No", "FALSE", "none"};
    static const char *const junk[] = {"", "2", "o", "onn", "", "1,1", "enable"};
    atomic_bool v;
    for (size_t i = 0; i < sizeof on / sizeof on[0]; i++, v = false)
        assert_true(parse_SWITCH(on[i], &v) && v);
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++, v = true)
        assert_true(parse_SWITCH(off[i], &v) && !v);
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++)
        assert_false(parse_SWITCH(junk[i], &v));
}

static int signal_of(const char *text)
{
    int v = -7;
    return parse_SIGNAL(text, &v) ? v : -7;
}

TEST(signals_go_by_name)
{
    assert_int_equal(signal_of("USR1"), SIGUSR1);
    assert_int_equal(signal_of("sigusr2"), SIGUSR2);
    assert_int_equal(signal_of("RTMIN"), SIGRTMIN);
    assert_int_equal(signal_of("SIGRTMIN+3"), SIGRTMIN + 3);
    assert_int_equal(signal_of("none"), 0);
    assert_int_equal(signal_of("off"), 0);
    assert_int_equal(signal_of("KILL"), -7);
    assert_int_equal(signal_of("10"), -7);
    assert_int_equal(signal_of("RTMIN+64"), -7);
    assert_int_equal(signal_of("RTMIN+"), -7);
    assert_int_equal(signal_of("RTMIN-1"), -7);
    assert_int_equal(signal_of("USR1x"), -7);
}

static struct empty_cache request(const char *text)
{
    struct empty_cache e = {.device = -99};
    if (!parse_EMPTY_CACHE(text, &e))
        assert_int_equal(e.device, -99);
    return e;
}

TEST(empty_cache_requests_and_policies)
{
    struct empty_cache e = request("1");
    assert_true(e.now && !e.on_oom && !e.every_ns && e.device == -1 && !e.keep_bytes);
    e = request("all");
    assert_true(e.now && e.device == -1);
    e = request("device=2");
    assert_true(e.now && e.device == 2);
    e = request("keep=512M");
    assert_true(e.now && e.keep_bytes == 512 << 20 && e.device == -1);
    e = request("device=1, keep=1G");
    assert_true(e.now && e.device == 1 && e.keep_bytes == 1 << 30);
    e = request("every:30s");
    assert_true(!e.now && e.every_ns == UINT64_C(30000000000));
    e = request("oom,every:200ms,keep=2M,device=0");
    assert_true(!e.now && e.on_oom && e.every_ns == 200000000 && e.keep_bytes == 2 << 20 &&
                e.device == 0);
    e = request("1,every:1m");
    assert_true(e.now && e.every_ns == UINT64_C(60000000000));
    e = request("0");
    assert_true(!e.now && !e.on_oom && !e.every_ns && e.device == -1);
}

TEST(parks_take_words_and_times)
{
    static const char *const junk[] = {
        "idle",    "idle:",      "idle:0", "lend:0.9",        "lend",  "ask,",
        "off,ask", "park",       "idle=5", "idle:5s lend:5s", "lend:", "idle:0.1ms",
        "retain:", "retain:10%", "retain", "off,retain:1G"};
    struct option_park p;
    assert_true(parse_PARK("ask", &p) && !p.off && !p.idle_ns && !p.lend_ns);
    assert_true(parse_PARK("off", &p) && p.off);
    assert_true(parse_PARK("idle:5s", &p) && !p.off && p.idle_ns == 5000000000 && !p.lend_ns);
    assert_true(parse_PARK("lend:1,idle:2ms", &p) && p.idle_ns == 2000000 &&
                p.lend_ns == 1000000000 && !p.retain_bytes);
    assert_true(parse_PARK("ask,retain:16G", &p) && p.retain_bytes == (uint64_t)16 << 30 &&
                !p.idle_ns);
    assert_true(parse_PARK("retain:1G,idle:2ms", &p) && p.retain_bytes == 1 << 30);
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++)
        if (parse_PARK(junk[i], &p) || p.idle_ns != 2000000 || p.retain_bytes != 1 << 30)
            fail_msg("\"%s\" is taken", junk[i]);
}

TEST(stacks_take_a_number_and_a_word)
{
    static const char *const junk[] = {
        "65", "python", "0,python", "8,8",   "8,python,python", "8 python",
        "8,", "-1",     "8,off",    "off,8", "8,pythons",       "0x8"};
    struct option_trace_stacks s;
    assert_true(parse_TRACE_STACKS("64", &s) && s.frames == 64 && !s.python);
    assert_true(parse_TRACE_STACKS("off", &s) && s.frames == 0 && !s.python);
    assert_true(parse_TRACE_STACKS(" 8 , PYTHON ", &s) && s.frames == 8 && s.python);
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++)
        if (parse_TRACE_STACKS(junk[i], &s) || s.frames != 8)
            fail_msg("\"%s\" is taken", junk[i]);
}

TEST(empty_cache_junk_is_refused)
{
    static const char *const junk[] = {
        "2",         "every",     "every:",    "every:0", "every:0.0001ms", "device=",
        "device=-1", "device=64", "device=1x", "keep=",   "keep=50%",       "keep=none",
        "1,",        "0,1",       "off,oom",   "never",   "all all",        "every:30s30"};
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++)
        if (request(junk[i]).device != -99)
            fail_msg("\"%s\" was taken for a request", junk[i]);
}

TEST(reports_go_to_files_in_the_format_asked_for)
{
    struct option_stats s;
    char cwd[PATH_MAX], expected[PATH_MAX + 8];
    assert_true(parse_STATS("exit", &s) && s.at_exit && !s.json && !s.path[0]);
    assert_true(parse_STATS("exit-json", &s) && s.at_exit && s.json && !s.path[0]);
    assert_true(parse_STATS("exit:/tmp/a.txt", &s) && !s.json);
    assert_string_equal(s.path, "/tmp/a.txt");
    assert_true(parse_STATS("exit:/tmp/a-%p.json", &s) && s.json);
    assert_string_equal(s.path, "/tmp/a-%p.json");
    assert_true(parse_STATS("exit-json:/a:b", &s) && s.json);
    assert_string_equal(s.path, "/a:b");
    assert_true(parse_STATS("off", &s) && !s.at_exit);
    assert_false(parse_STATS("exit:", &s));
    assert_false(parse_STATS("exitt", &s));
    assert_false(parse_STATS("json", &s));
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_true(parse_STATS("exit:a", &s));
    snprintf(expected, sizeof expected, "%s/a", cwd);
    assert_string_equal(s.path, expected);
}

TEST(a_percent_sign_of_the_working_directory_is_no_pattern)
{
    char dir[] = "/tmp/gpucache-%p-XXXXXX", cwd[PATH_MAX];
    struct option_stats s;
    struct option_path p;
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    assert_true(parse_STATS("exit:a", &s));
    assert_true(parse_PATH("a", &p));
    assert_int_equal(chdir(cwd), 0);
    rmdir(dir);
    assert_memory_equal(s.path, "/tmp/gpucache-%%p-", 18);
    assert_memory_equal(p.path, "/tmp/gpucache-%p-", 17);
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

TEST(log_levels)
{
    struct option_log l;
    assert_true(parse_LOG("off", &l) && l.level == LOG_LEVEL_OFF);
    assert_true(parse_LOG("Error", &l) && l.level == LOG_LEVEL_ERROR && !l.path[0]);
    assert_true(parse_LOG("warn", &l) && l.level == LOG_LEVEL_WARN);
    assert_true(parse_LOG("warning:/x", &l) && l.level == LOG_LEVEL_WARN);
    assert_string_equal(l.path, "/x");
    assert_true(parse_LOG("debug:/tmp/%p.log", &l) && l.level == LOG_LEVEL_DEBUG);
    assert_false(parse_LOG("debugg", &l));
    assert_false(parse_LOG("info:", &l));
    assert_false(parse_LOG(":/tmp/x", &l));
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
