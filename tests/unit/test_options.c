/* SPDX-License-Identifier: BSD-2-Clause */
/* From the environment to struct options: every type's grammar, defaults, the warnings on stderr,
 * per device sizes, process names, requests to empty the cache. */
#include "shim/option/options.h"
#include "shim/option/show.h"
#include "tests/unit/capture.h"

static struct options options;

/* Loads with the environment of the pairs "NAME=VALUE", ended by NULL; returns what was said. */
static const char *load(const char *const pairs[])
{
    static char said[16384];
    clearenv();
    for (; *pairs; pairs++)
        assert_int_equal(putenv((char *)*pairs), 0);
    memset(&options, 0, sizeof options);
    capture_begin();
    errno = 4711;
    assert_true(options_load(&options));
    assert_int_equal(errno, 4711);
    capture_end(said, sizeof said);
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

TEST(nothing_set_gives_the_defaults_in_silence)
{
    struct pool_config expected, got;
    assert_string_equal(LOAD("PATH=/bin"), "");
    memset(&got, 0xaa, sizeof got);
    pool_config_init(&expected);
    options_pool_config(&options, 0, 1000, &got);
#define POOL_OPTION(field, name, type, value, live, help) assert_true(expected.field == got.field);
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

TEST(sizes_can_differ_by_device)
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

TEST(redzones_are_whole_units)
{
    LOAD("GPUCACHE_REDZONE=1");
    assert_int_equal(options_redzone_bytes(&options, 0, UINT64_C(1) << 30), 512);
    LOAD("GPUCACHE_REDZONE=0=512,1=4K");
    assert_int_equal(options_redzone_bytes(&options, 0, UINT64_C(1) << 30), 512);
    assert_int_equal(options_redzone_bytes(&options, 1, UINT64_C(1) << 30), 4096);
    assert_int_equal(options_redzone_bytes(&options, 2, UINT64_C(1) << 30), 0);
    LOAD("GPUCACHE_REDZONE=none");
    assert_int_equal(options_redzone_bytes(&options, 0, UINT64_C(1) << 30), 0);
    LOAD("PATH=/bin");
    assert_int_equal(options_redzone_bytes(&options, 0, UINT64_C(1) << 30), 0);
}

TEST(a_share_of_the_largest_device_does_not_overflow)
{
    struct pool_config c;
    assert_string_equal(LOAD("GPUCACHE_MAX_IDLE=99.9999%"), "");
    options_pool_config(&options, 0, UINT64_C(1) << 48, &c);
    assert_true(c.max_idle_bytes ==
                (UINT64_C(1) << 48) / 1000000 * 999999 + 710656 * UINT64_C(999999) / 1000000);
}

TEST(a_bad_value_is_warned_of_once_and_the_default_kept)
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

TEST(every_row_has_a_value_that_it_refuses_with_its_own_warning)
{
    static char pair[OPTION_GLOBS_MAX + 64];
    for (size_t i = 0; i < num_option_rows; i++) {
        /* paths take any text that is not too long; so do patterns */
        if (i == OPTION_ROW_empty_cache_file || i == OPTION_ROW_trace || i == OPTION_ROW_dir)
            continue;
        snprintf(pair, sizeof pair, "%s=,\x01?", option_rows[i].env);
        const char *said = LOAD(pair);
        if (num_lines(said) != 1 || !strstr(said, option_rows[i].env) ||
            !strstr(said, option_rows[i].allowed))
            fail_msg("%s: said \"%s\"", option_rows[i].env, said);
    }
}

TEST(every_default_is_a_value_that_its_row_takes)
{
    static char pair[256];
    for (size_t i = 0; i < num_option_rows; i++) {
        snprintf(pair, sizeof pair, "%s=%s", option_rows[i].env, option_rows[i].value);
        assert_string_equal(LOAD(pair), "");
    }
}

TEST(every_row_shows_its_own_value)
{
    static char pair[SHOW_MAX_BYTES + 64], shown[SHOW_MAX_BYTES];
    LOAD("PATH=/bin");
    for (size_t i = 0; i < num_option_rows; i++) {
        const char *value = option_rows[i].value;
        /* an unset path is "none" in its own syntax */
        bool is_path = i == OPTION_ROW_empty_cache_file || i == OPTION_ROW_trace;
        const char *plain = is_path ? "none" : value;
        assert_int_equal(options_show(&options, i, shown, sizeof shown), strlen(plain));
        assert_string_equal(shown, plain);
    }
    assert_int_equal(options_show(&options, num_option_rows, shown, sizeof shown), 0);
    LOAD("GPUCACHE_MAX_IDLE=2=1G", "GPUCACHE_STATS=exit:/a.json", "GPUCACHE_SIGNAL=USR2");
    for (size_t i = 0; i < num_option_rows; i++) {
        options_show(&options, i, shown, sizeof shown);
        snprintf(pair, sizeof pair, "%s=%s", option_rows[i].env, shown);
        if (strstr(pair, "MAX_IDLE"))
            assert_string_equal(pair, "GPUCACHE_MAX_IDLE=none,2=1G");
        if (strstr(pair, "STATS"))
            assert_string_equal(pair, "GPUCACHE_STATS=exit-json:/a.json");
        if (strstr(pair, "SIGNAL"))
            assert_string_equal(pair, "GPUCACHE_SIGNAL=USR2");
    }
}

TEST(an_option_is_found_with_and_without_its_prefix)
{
    assert_int_equal(options_find("MAX_IDLE", 8), OPTION_ROW_max_idle_bytes);
    assert_int_equal(options_find("GPUCACHE_MAX_IDLE=1G", 17), OPTION_ROW_max_idle_bytes);
    assert_int_equal(options_find("GPUCACHE", 8), OPTION_ROW_enabled);
    assert_int_equal(options_find("LOG", 3), OPTION_ROW_log);
    assert_int_equal(options_find("LO", 2), NUM_OPTIONS);
    assert_int_equal(options_find("max_idle", 8), NUM_OPTIONS);
    assert_int_equal(options_find("", 0), NUM_OPTIONS);
    assert_int_equal(options_find("GPUCACHE_", 9), NUM_OPTIONS);
    assert_int_equal(num_option_rows, NUM_OPTIONS);
    assert_string_equal(options_nearest("MAXIDLE", 7), "GPUCACHE_MAX_IDLE");
    assert_string_equal(options_nearest("log", 3), "GPUCACHE_LOG");
    assert_string_equal(options_nearest("GPUCACHEE", 9), "GPUCACHE");
}

TEST(a_new_value_replaces_the_old_one_and_a_bad_one_does_not)
{
    char shown[SHOW_MAX_BYTES];
    LOAD("GPUCACHE_MAX_IDLE=1G,1=2G");
    assert_true(options_set(&options, OPTION_ROW_max_idle_bytes, "3=50%"));
    options_show(&options, OPTION_ROW_max_idle_bytes, shown, sizeof shown);
    assert_string_equal(shown, "1G,1=2G,3=50%");
    assert_false(options_set(&options, OPTION_ROW_max_idle_bytes, "4G,x"));
    options_show(&options, OPTION_ROW_max_idle_bytes, shown, sizeof shown);
    assert_string_equal(shown, "1G,1=2G,3=50%");
    assert_true(options_set(&options, OPTION_ROW_max_idle_bytes, "none"));
    options_show(&options, OPTION_ROW_max_idle_bytes, shown, sizeof shown);
    assert_string_equal(shown, "none");
    capture_begin();
    assert_false(options_set(&options, OPTION_ROW_log, ""));
    assert_true(options_set(&options, OPTION_ROW_meminfo, "off"));
    capture_end(shown, sizeof shown);
    assert_string_equal(shown, "");
    assert_false(options.meminfo);
}

TEST(an_unknown_name_is_warned_of_with_the_nearest)
{
    static const struct {
        const char *pair, *nearest;
    } cases[] = {{"GPUCACHE_MAXIDLE=1G", "GPUCACHE_MAX_IDLE\n"},
                 {"GPUCACHE_LOGS=debug", "GPUCACHE_LOG\n"},
                 {"GPUCACHE_max_reserved=1G", "GPUCACHE_MAX_RESERVED\n"},
                 {"GPUCACHE_EMTPY_CACHE=1", "GPUCACHE_EMPTY_CACHE\n"},
                 {"GPUCACHE_BAKCING=arena", "GPUCACHE_BACKING\n"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *said = LOAD(cases[i].pair);
        assert_int_equal(num_lines(said), 1);
        if (!strstr(said, cases[i].nearest))
            fail_msg("%s: said \"%s\"", cases[i].pair, said);
    }
}

TEST(other_variables_are_no_business_of_ours)
{
    assert_string_equal(
        LOAD("GPUCACHEX=1", "GPU_CACHE=2", "XGPUCACHE_A=1", "GPUCACHE_", "=GPUCACHE_A"), "");
    assert_int_equal(num_lines(LOAD("GPUCACHE_=1")), 1);
}

TEST(empty_values_count_as_unset)
{
    assert_string_equal(
        LOAD("GPUCACHE_MAX_IDLE=", "GPUCACHE_SIGNAL=", "GPUCACHE=", "GPUCACHE_STATS="), "");
}

TEST(warnings_obey_the_log_option_whatever_the_order)
{
    assert_string_equal(LOAD("GPUCACHE_MAX_IDLE=8X", "GPUCACHE_NOPE=1", "GPUCACHE_LOG=off"), "");
    assert_string_equal(LOAD("GPUCACHE_MAX_IDLE=8X", "GPUCACHE_LOG=error"), "");
}

TEST(a_long_or_wild_value_is_cut_and_made_harmless)
{
    static char pair[5000] = "GPUCACHE_REUSE=\x1b[31m\n";
    size_t n = strlen(pair);
    memset(pair + n, 'z', sizeof pair - n - 1);
    const char *said = LOAD(pair);
    assert_int_equal(num_lines(said), 1);
    assert_null(strchr(said, '\x1b'));
    assert_non_null(strstr(said, "zzz..."));
    assert_true(strlen(said) < 400);
}

TEST(an_empty_request_asks_for_nothing)
{
    struct empty_cache e = {.now = true, .device = 3};
    assert_true(options_parse_empty_cache("", &e));
    assert_true(!e.now && !e.on_oom && !e.every_ns && e.device == -1);
    assert_true(options_parse_empty_cache("device=2", &e));
    assert_true(e.now && e.device == 2);
    assert_false(options_parse_empty_cache("2", &e));
}

static bool enabled(const char *pair)
{
    clearenv();
    if (pair)
        putenv((char *)pair);
    return options_enabled_early();
}

TEST(the_off_switch_and_the_process_name_decide_early)
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

TEST(a_process_that_is_off_says_nothing_at_all)
{
    char said[256];
    clearenv();
    putenv((char *)"GPUCACHE=0");
    putenv((char *)"GPUCACHE_MAX_IDLE=8X");
    putenv((char *)"GPUCACHE_NOPE=1");
    memset(&options, 0, sizeof options);
    capture_begin();
    assert_false(options_load(&options));
    capture_end(said, sizeof said);
    assert_string_equal(said, "");
    assert_true(options.max_idle_bytes.others.bytes == UINT64_MAX);
}

PLAY_TESTS
