/* SPDX-License-Identifier: BSD-2-Clause */
/* Values of options as text. For each type a text becomes a value, the value becomes a text in its
 * plain form, and this text the same value again. */
#include "shim/option/show.h"
#include "tests/unit/capture.h"

static char shown[SHOW_MAX_BYTES];

/* Their padding is not compared. */
static bool same_size(const struct option_size *a, const struct option_size *b)
{
    return a->bytes == b->bytes && a->share_ppm == b->share_ppm && a->is_share == b->is_share;
}

static bool same_sizes(const struct option_bytes *a, const struct option_bytes *b)
{
    bool same = same_size(&a->others, &b->others) && a->named == b->named;
    for (int i = 0; i < OPTION_DEVICES && same; i++)
        same = same_size(&a->device[i], &b->device[i]);
    return same;
}

static bool same_empty_cache(const struct empty_cache *a, const struct empty_cache *b)
{
    return a->now == b->now && a->on_oom == b->on_oom && a->every_ns == b->every_ns &&
           a->device == b->device && a->keep_bytes == b->keep_bytes;
}

#define SAME_BYTES(a, b) same_sizes(a, b)
#define SAME_LIMIT(a, b) same_sizes(a, b)
#define SAME_EMPTY_CACHE(a, b) same_empty_cache(a, b)
#define SAME_PARK(a, b)                                                                            \
    ((a)->off == (b)->off && (a)->idle_ns == (b)->idle_ns && (a)->lend_ns == (b)->lend_ns &&       \
     (a)->retain_bytes == (b)->retain_bytes)
#define SAME_TRACE_STACKS(a, b) ((a)->frames == (b)->frames && (a)->python == (b)->python)
#define SAME_SECONDS(a, b) (*(a) == *(b))
#define SAME_SWITCH SAME_SECONDS
#define SAME_BACKING SAME_SECONDS
#define SAME_REUSE SAME_SECONDS
#define SAME_SIGNAL SAME_SECONDS
#define SAME_STATS(a, b) (memcmp(a, b, sizeof *(a)) == 0)
#define SAME_LOG SAME_STATS
#define SAME_PATH SAME_STATS
#define SAME_GLOBS SAME_STATS
#define SAME_DIR SAME_STATS

static int before; /* each byte of a value that a text is parsed into */

/* Parses, shows and parses again; compares the text with `plain`, and both values. */
#define CHECK(TYPE, type, BY, text, plain)                                                         \
    do {                                                                                           \
        static type first_, again_;                                                                \
        memset(&first_, before, sizeof first_);                                                    \
        memset(&again_, before, sizeof again_);                                                    \
        if (!parse_##TYPE(text, &first_))                                                          \
            fail_msg("\"%s\" is not understood", text);                                            \
        size_t n_ = show_##TYPE(BY first_, shown, sizeof shown);                                   \
        assert_string_equal(shown, plain);                                                         \
        assert_int_equal(n_, strlen(shown));                                                       \
        assert_true(parse_##TYPE(shown, &again_));                                                 \
        assert_true(SAME_##TYPE(&first_, &again_));                                                \
        assert_int_equal(show_##TYPE(BY first_, NULL, 0), n_);                                     \
    } while (0)

TEST(sizes)
{
#define BYTES(text, plain) CHECK(BYTES, struct option_bytes, &, text, plain)
#define LIMIT(text, plain) CHECK(LIMIT, struct option_bytes, &, text, plain)
    BYTES("0", "0");
    BYTES("12B", "12");
    BYTES("3kib", "3K");
    BYTES("2 MB", "2M");
    BYTES("0.25GiB", "256M");
    BYTES("2t", "2T");
    BYTES("16777215T", "16777215T");
    BYTES("none", "0");
    BYTES("512", "512");
    BYTES("1.5G", "1536M");
    BYTES(" 8 GiB ", "8G");
    BYTES("1023K", "1023K");
    BYTES("4096T", "4096T");
    BYTES("12.5%", "12.5%");
    BYTES("0.0001%", "0.0001%");
    BYTES("100%", "100%");
    BYTES("18446744073709551615", "18446744073709551615");
    BYTES("0=8G, 1=50%", "0,0=8G,1=50%");
    BYTES("63=1k,1M,7=none", "1M,7=0,63=1K");
    LIMIT("unlimited", "none");
    LIMIT("none,1=8G", "none,1=8G");
    LIMIT("8G,1=None", "8G,1=none");
    LIMIT("0", "0");
    LIMIT("50%,3=unlimited", "50%,3=none");
}

TEST(the_longest_list_of_sizes_fits)
{
    static char text[SHOW_MAX_BYTES];
    size_t n = (size_t)snprintf(text, sizeof text, "18446744073709551613");
    for (int i = 0; i < OPTION_DEVICES; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",%d=18446744073709551614", i);
    CHECK(BYTES, struct option_bytes, &, text, text);
}

TEST(times)
{
#define SECONDS(text, plain) CHECK(SECONDS, _Atomic uint64_t, , text, plain)
    SECONDS("0", "0");
    SECONDS("none", "0");
    SECONDS("30", "30s");
    SECONDS("0.2", "200ms");
    SECONDS("90s", "90s");
    SECONDS("1.000001h", "3600003.6ms");
    SECONDS("120", "2m");
    SECONDS("24h", "24h");
    SECONDS("0.000001m", "0.06ms");
    SECONDS("0.000001h", "3.6ms");
    SECONDS("0.000001ms", "0.000001ms");
    SECONDS("1234.5678s", "1234567.8ms");
}

TEST(words)
{
#define WORD(TYPE, type, text, plain) CHECK(TYPE, type, , text, plain)
    WORD(SWITCH, atomic_bool, "yes", "on");
    WORD(SWITCH, atomic_bool, "ON", "on");
    WORD(SWITCH, atomic_bool, "True", "on");
    WORD(SWITCH, atomic_bool, " 1 ", "on");
    WORD(SWITCH, atomic_bool, "none", "off");
    WORD(SWITCH, atomic_bool, "0", "off");
    WORD(SWITCH, atomic_bool, "off", "off");
    WORD(SWITCH, atomic_bool, "No", "off");
    WORD(SWITCH, atomic_bool, "FALSE", "off");
    WORD(BACKING, enum pool_backing, "Auto", "auto");
    WORD(BACKING, enum pool_backing, "driver", "driver");
    WORD(REUSE, enum pool_reuse, "wait", "wait");
    WORD(SIGNAL, int, "SIGUSR1", "USR1");
    WORD(SIGNAL, int, "usr2", "USR2");
    WORD(SIGNAL, int, "RTMIN+0", "RTMIN");
    WORD(SIGNAL, int, "SIGRTMIN+7", "RTMIN+7");
    WORD(SIGNAL, int, "off", "none");
}

TEST(requests_for_a_flush)
{
#define EMPTY_CACHE(text, plain) CHECK(EMPTY_CACHE, struct empty_cache, &, text, plain)
    EMPTY_CACHE("0", "off");
    EMPTY_CACHE("1", "1");
    EMPTY_CACHE("all", "1");
    EMPTY_CACHE("device=1, keep=1G", "1,device=1,keep=1G");
    EMPTY_CACHE("1,every:1m", "1,every:1m");
    EMPTY_CACHE("oom", "oom");
    EMPTY_CACHE("keep=1.5G", "1,keep=1536M");
    EMPTY_CACHE("device=0,every:0.5s", "every:500ms,device=0");
    EMPTY_CACHE("keep=512M,every:1m,oom,1,device=63", "1,oom,every:1m,device=63,keep=512M");
}

TEST(parks)
{
#define PARK(text, plain) CHECK(PARK, struct option_park, &, text, plain)
    PARK("ASK", "ask");
    PARK("none", "off");
    PARK("idle:0.5", "idle:500ms");
    PARK("lend:60", "lend:1m");
    PARK("lend:1", "lend:1s");
    PARK(" lend:5s , idle:1h", "idle:1h,lend:5s");
    PARK("ask,retain:16G", "retain:16G");
    PARK("retain:512M,idle:5s", "idle:5s,retain:512M");
}

TEST(stacks)
{
#define STACKS(text, plain) CHECK(TRACE_STACKS, struct option_trace_stacks, &, text, plain)
    STACKS("none", "0");
    STACKS("64", "64");
    STACKS("08, Python", "8,python");
}

TEST(paths_and_patterns)
{
#define STATS(text, plain) CHECK(STATS, struct option_stats, &, text, plain)
#define LOG(text, plain) CHECK(LOG, struct option_log, &, text, plain)
#define PATH(text, plain) CHECK(PATH, struct option_path, &, text, plain)
#define DIR(text, plain) CHECK(DIR, struct option_dir, &, text, plain)
#define GLOBS(text, plain) CHECK(GLOBS, struct option_globs, &, text, plain)
    before = 'x';
    STATS("off", "off");
    STATS("exit", "exit");
    STATS("exit-json", "exit-json");
    STATS("exit:/tmp/%p.txt", "exit:/tmp/%p.txt");
    STATS("exit:/tmp/100%%.json", "exit-json:/tmp/100%%.json");
    STATS("exit:/tmp/a-%p.json", "exit-json:/tmp/a-%p.json");
    STATS("exit-json:/a:b", "exit-json:/a:b");
    LOG("0", "off");
    LOG("Error", "error");
    LOG("warning:/x", "warn:/x");
    LOG("Warning", "warn");
    LOG("debug:/a b,c:d", "debug:/a b,c:d");
    PATH("none", "none");
    DIR("/dev/shm/mine", "/dev/shm/mine");
    DIR("None", "none");
    DIR("/none", "/none");
    PATH("/none", "/none");
    GLOBS("python*, a?b", "python*, a?b");
    GLOBS("none*", "none*");
}

TEST(a_short_buffer_gets_the_beginning)
{
    char out[4] = "xyz";
    struct option_log log = {.level = LOG_LEVEL_DEBUG, .path = "/tmp/f"};
    assert_int_equal(show_LOG(&log, out, sizeof out), strlen("debug:/tmp/f"));
    assert_string_equal(out, "deb");
}

PLAY_TESTS
