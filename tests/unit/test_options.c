/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From the environment to struct options: every type's grammar, defaults, the warnings on stderr,
 * per device sizes, process names, requests to empty the cache.
 */
#include "shim/options.h"
#include "shim/parse.h"
#include "tests/unit/capture.h"

#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static struct options options;

/* Loads with the environment of the pairs "NAME=VALUE", ended by NULL; returns what was said. */
static const char *load(const char *const pairs[])
{
    static char said[16384];

    clearenv();
    for (; *pairs; pairs++)
        assert_int_equal(putenv((char *)*pairs), 0);
    capture_begin();
    errno = 4711;
    assert_true(options_load(&options));
    assert_int_equal(errno, 4711);
    capture_end(said, sizeof(said));
    return said;
}

#define LOAD(...) load((const char *const[]){__VA_ARGS__, NULL})

static unsigned num_lines(const char *text)
{
    unsigned n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void nothing_set_gives_the_defaults_in_silence(void **state)
{
    struct pool_config expected, got;

    assert_string_equal(LOAD("PATH=/bin"), "");
    memset(&got, 0xaa, sizeof(got));
    pool_config_init(&expected);
    options_pool_config(&options, 0, 1000, &got);
#define POOL_OPTION(field, name, type, value, help) assert_true(expected.field == got.field);
#include "pool/config.def"
#undef POOL_OPTION
    assert_true(options.enabled);
    assert_true(options.meminfo);
    assert_int_equal(options.signal, SIGUSR1);
    assert_int_equal(options.log.level, LOG_LEVEL_WARN);
    assert_false(options.stats.at_exit);
    assert_false(options.empty_cache.now);
    assert_int_equal(options.empty_cache.device, -1);
    assert_string_equal(options.empty_cache_file.path, "");
}

static uint64_t size_of(const char *text)
{
    struct option_bytes v;

    memset(&v, 0, sizeof(v));
    v.others.bytes = 77;
    if (!parse_BYTES(text, &v)) {
        assert_int_equal(v.others.bytes, 77);
        return 77;
    }
    return v.others.bytes;
}

static void sizes_take_binary_suffixes_and_fractions(void **state)
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
    assert_true(size_of("none") == UINT64_MAX);
    assert_true(size_of("16777215T") == UINT64_C(16777215) << 40);
}

static void sizes_that_are_junk_or_overflow_are_refused(void **state)
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

    for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++)
        if (size_of(junk[i]) != 77)
            fail_msg("\"%s\" was taken for a size", junk[i]);
}

static void sizes_can_differ_by_device(void **state)
{
    struct pool_config c;

    assert_string_equal(LOAD("GPUCACHE_MAX_RESERVED=0=8G, 3 = 50%", "GPUCACHE_MAX_IDLE=1G,1=12.5%",
                             "GPUCACHE_MIN_FREE=100%"),
                        "");
    options_pool_config(&options, 0, 1000000, &c);
    assert_true(c.max_reserved_bytes == UINT64_C(8) << 30);
    assert_true(c.max_idle_bytes == 1 << 30);
    assert_true(c.min_free_bytes == 1000000);
    options_pool_config(&options, 1, 1000000, &c);
    assert_true(c.max_reserved_bytes == UINT64_MAX);
    assert_true(c.max_idle_bytes == 125000);
    options_pool_config(&options, 3, UINT64_C(150754820096), &c);
    assert_true(c.max_reserved_bytes == UINT64_C(150754820096) / 2);
    options_pool_config(&options, OPTION_DEVICES, 1000000, &c);
    assert_true(c.max_reserved_bytes == UINT64_MAX);
    assert_true(c.max_idle_bytes == 1 << 30);
    options_pool_config(&options, -1, 1000000, &c);
    assert_true(c.max_idle_bytes == 1 << 30);
}

static void a_share_of_the_largest_device_does_not_overflow(void **state)
{
    struct pool_config c;

    assert_string_equal(LOAD("GPUCACHE_MAX_IDLE=99.9999%"), "");
    options_pool_config(&options, 0, UINT64_C(1) << 48, &c);
    assert_true(c.max_idle_bytes ==
                (UINT64_C(1) << 48) / 1000000 * 999999 + 710656 * UINT64_C(999999) / 1000000);
}

static uint64_t time_of(const char *text)
{
    uint64_t ns = 77;

    return parse_SECONDS(text, &ns) ? ns : 77;
}

static void times_take_units_and_fractions(void **state)
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

static void numbers_do_not_depend_on_the_locale(void **state)
{
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "tr_TR.UTF-8"))
        skip();
    assert_true(time_of("0.5s") == 500000000);
    assert_true(size_of("1.5KIB") == 1536);
    setlocale(LC_ALL, "C");
}

static void switches_take_the_usual_words(void **state)
{
    static const char *const on[] = {"1", "on", "ON", "yes", "True", " 1 "};
    static const char *const off[] = {"0", "off", "No", "FALSE", "none"};
    static const char *const junk[] = {"2", "o", "onn", "", "1,1", "enable"};
    bool v;

    for (size_t i = 0; i < sizeof(on) / sizeof(on[0]); i++, v = false)
        assert_true(parse_SWITCH(on[i], &v) && v);
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++, v = true)
        assert_true(parse_SWITCH(off[i], &v) && !v);
    for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++)
        assert_false(parse_SWITCH(junk[i], &v));
}

static int signal_of(const char *text)
{
    int v = -7;

    return parse_SIGNAL(text, &v) ? v : -7;
}

static void signals_go_by_name(void **state)
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

    if (!options_parse_empty_cache(text, &e))
        assert_int_equal(e.device, -99);
    return e;
}

static void empty_cache_requests_and_policies(void **state)
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
    e = request("");
    assert_true(!e.now && !e.on_oom && !e.every_ns && e.device == -1);
    e = request("0");
    assert_true(!e.now && !e.on_oom && !e.every_ns && e.device == -1);
}

static void empty_cache_junk_is_refused(void **state)
{
    static const char *const junk[] = {
        "2",         "every",     "every:",    "every:0", "every:0.0001ms", "device=",
        "device=-1", "device=64", "device=1x", "keep=",   "keep=50%",       "keep=none",
        "1,",        "0,1",       "off,oom",   "never",   "all all",        "every:30s30"};

    for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++)
        if (request(junk[i]).device != -99)
            fail_msg("\"%s\" was taken for a request", junk[i]);
}

static void reports_go_to_files_in_the_format_asked_for(void **state)
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
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    assert_true(parse_STATS("exit:a", &s));
    snprintf(expected, sizeof(expected), "%s/a", cwd);
    assert_string_equal(s.path, expected);
}

static void a_percent_sign_of_the_working_directory_is_no_pattern(void **state)
{
    char dir[] = "/tmp/gpucache-%p-XXXXXX", cwd[PATH_MAX];
    struct option_stats s;
    struct option_path p;

    assert_non_null(getcwd(cwd, sizeof(cwd)));
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    assert_true(parse_STATS("exit:a", &s));
    assert_true(parse_PATH("a", &p));
    assert_int_equal(chdir(cwd), 0);
    rmdir(dir);
    assert_memory_equal(s.path, "/tmp/gpucache-%%p-", 18);
    assert_memory_equal(p.path, "/tmp/gpucache-%p-", 17);
}

static void paths_that_are_too_long_are_refused(void **state)
{
    static char text[PATH_MAX + 16];
    struct option_path p;

    memset(text, 'a', sizeof(text) - 1);
    text[0] = '/';
    assert_false(parse_PATH(text, &p));
    text[PATH_MAX - 1] = '\0';
    assert_true(parse_PATH(text, &p));
}

static void log_levels(void **state)
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

static void a_bad_value_is_warned_of_once_and_the_default_kept(void **state)
{
    const char *said = LOAD("GPUCACHE_MAX_IDLE=8X");

    assert_int_equal(num_lines(said), 1);
    assert_non_null(strstr(said, "gpucache: warning: GPUCACHE_MAX_IDLE=8X is not understood"));
    assert_non_null(strstr(said, "a size (512M, 8G, 50% of the device)"));
    assert_non_null(strstr(said, "the default holds: none"));
    assert_true(options.max_idle_bytes.others.bytes == UINT64_MAX);

    said = LOAD("GPUCACHE_SIGNAL=KILL", "GPUCACHE_ONLY=,");
    assert_int_equal(num_lines(said), 2);
    assert_non_null(strstr(said, "USR1, USR2, RTMIN+n or none; the default holds: USR1"));
    assert_non_null(strstr(said, "the default holds: unset"));
    assert_int_equal(options.signal, SIGUSR1);
}

static void every_row_has_a_value_that_it_refuses_with_its_own_warning(void **state)
{
    static char pair[OPTION_GLOBS_MAX + 64];

    for (size_t i = 0; i < num_option_rows; i++) {
        /* paths take any text that is not too long; so do patterns */
        if (strcmp(option_rows[i].env, "GPUCACHE_EMPTY_CACHE_FILE") == 0)
            continue;
        snprintf(pair, sizeof(pair), "%s=,\x01?", option_rows[i].env);
        const char *said = LOAD(pair);
        if (num_lines(said) != 1 || !strstr(said, option_rows[i].env) ||
            !strstr(said, option_rows[i].allowed))
            fail_msg("%s: said \"%s\"", option_rows[i].env, said);
    }
}

static void every_default_is_a_value_that_its_row_takes(void **state)
{
    static char pair[256];

    for (size_t i = 0; i < num_option_rows; i++) {
        snprintf(pair, sizeof(pair), "%s=%s", option_rows[i].env, option_rows[i].value);
        assert_string_equal(LOAD(pair), "");
    }
}

static void an_unknown_name_is_warned_of_with_the_nearest(void **state)
{
    static const struct {
        const char *pair, *nearest;
    } cases[] = {{"GPUCACHE_MAXIDLE=1G", "GPUCACHE_MAX_IDLE\n"},
                 {"GPUCACHE_LOGS=debug", "GPUCACHE_LOG\n"},
                 {"GPUCACHE_max_reserved=1G", "GPUCACHE_MAX_RESERVED\n"},
                 {"GPUCACHE_EMTPY_CACHE=1", "GPUCACHE_EMPTY_CACHE\n"},
                 {"GPUCACHE_BAKCING=arena", "GPUCACHE_BACKING\n"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *said = LOAD(cases[i].pair);

        assert_int_equal(num_lines(said), 1);
        if (!strstr(said, cases[i].nearest))
            fail_msg("%s: said \"%s\"", cases[i].pair, said);
    }
}

static void other_variables_are_no_business_of_ours(void **state)
{
    assert_string_equal(
        LOAD("GPUCACHEX=1", "GPU_CACHE=2", "XGPUCACHE_A=1", "GPUCACHE_", "=GPUCACHE_A"), "");
    assert_int_equal(num_lines(LOAD("GPUCACHE_=1")), 1);
}

static void empty_values_count_as_unset(void **state)
{
    assert_string_equal(
        LOAD("GPUCACHE_MAX_IDLE=", "GPUCACHE_SIGNAL=", "GPUCACHE=", "GPUCACHE_STATS="), "");
}

static void warnings_obey_the_log_option_whatever_the_order(void **state)
{
    assert_string_equal(LOAD("GPUCACHE_MAX_IDLE=8X", "GPUCACHE_NOPE=1", "GPUCACHE_LOG=off"), "");
    assert_string_equal(LOAD("GPUCACHE_MAX_IDLE=8X", "GPUCACHE_LOG=error"), "");
}

static void a_long_or_wild_value_is_cut_and_made_harmless(void **state)
{
    static char pair[5000] = "GPUCACHE_REUSE=\x1b[31m\n";
    size_t n = strlen(pair);

    memset(pair + n, 'z', sizeof(pair) - n - 1);
    const char *said = LOAD(pair);
    assert_int_equal(num_lines(said), 1);
    assert_null(strchr(said, '\x1b'));
    assert_non_null(strstr(said, "zzz..."));
    assert_true(strlen(said) < 400);
}

static bool enabled(const char *pair)
{
    clearenv();
    if (pair)
        putenv((char *)pair);
    return options_enabled_early();
}

static void the_off_switch_and_the_process_name_decide_early(void **state)
{
    assert_true(enabled(NULL));
    assert_true(enabled("GPUCACHE=1"));
    assert_true(enabled("GPUCACHE=maybe"));
    assert_false(enabled("GPUCACHE=0"));
    assert_false(enabled("GPUCACHE=off"));
    assert_true(enabled("GPUCACHE_ONLY=test_options"));
    assert_true(enabled("GPUCACHE_ONLY=python3*, test_opt*"));
    assert_true(enabled("GPUCACHE_ONLY=test_option?"));
    assert_false(enabled("GPUCACHE_ONLY=test"));
    assert_false(enabled("GPUCACHE_ONLY=python3*"));
    assert_false(enabled("GPUCACHE_SKIP=bash,test_*"));
    assert_true(enabled("GPUCACHE_SKIP=bash,python3"));
}

static void a_process_that_is_off_says_nothing_at_all(void **state)
{
    char said[256];

    clearenv();
    putenv((char *)"GPUCACHE=0");
    putenv((char *)"GPUCACHE_MAX_IDLE=8X");
    putenv((char *)"GPUCACHE_NOPE=1");
    capture_begin();
    assert_false(options_load(&options));
    capture_end(said, sizeof(said));
    assert_string_equal(said, "");
    assert_true(options.max_idle_bytes.others.bytes == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_set_gives_the_defaults_in_silence),
        cmocka_unit_test(sizes_take_binary_suffixes_and_fractions),
        cmocka_unit_test(sizes_that_are_junk_or_overflow_are_refused),
        cmocka_unit_test(sizes_can_differ_by_device),
        cmocka_unit_test(a_share_of_the_largest_device_does_not_overflow),
        cmocka_unit_test(times_take_units_and_fractions),
        cmocka_unit_test(numbers_do_not_depend_on_the_locale),
        cmocka_unit_test(switches_take_the_usual_words),
        cmocka_unit_test(signals_go_by_name),
        cmocka_unit_test(empty_cache_requests_and_policies),
        cmocka_unit_test(empty_cache_junk_is_refused),
        cmocka_unit_test(reports_go_to_files_in_the_format_asked_for),
        cmocka_unit_test(a_percent_sign_of_the_working_directory_is_no_pattern),
        cmocka_unit_test(paths_that_are_too_long_are_refused),
        cmocka_unit_test(log_levels),
        cmocka_unit_test(a_bad_value_is_warned_of_once_and_the_default_kept),
        cmocka_unit_test(every_row_has_a_value_that_it_refuses_with_its_own_warning),
        cmocka_unit_test(every_default_is_a_value_that_its_row_takes),
        cmocka_unit_test(an_unknown_name_is_warned_of_with_the_nearest),
        cmocka_unit_test(other_variables_are_no_business_of_ours),
        cmocka_unit_test(empty_values_count_as_unset),
        cmocka_unit_test(warnings_obey_the_log_option_whatever_the_order),
        cmocka_unit_test(a_long_or_wild_value_is_cut_and_made_harmless),
        cmocka_unit_test(the_off_switch_and_the_process_name_decide_early),
        cmocka_unit_test(a_process_that_is_off_says_nothing_at_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
