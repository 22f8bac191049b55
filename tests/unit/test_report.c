/* SPDX-License-Identifier: BSD-2-Clause */
/* The text report is held against a golden copy, and the JSON report is read back by a JSON parser.
 * Both are also made in buffers that are too small, in another locale, and with odd names. */
#include "shim/stats/report.h"
#include "tests/unit/capture.h"

#include <inttypes.h>
#include <locale.h>

static struct report_pool sample_pool(void)
{
    return (struct report_pool){
        .device = 0,
        .name = "NVIDIA H200",
        .backing = "arena",
        .reason = "the device maps memory itself and no library is loaded that needs legacy IPC or "
                  "network registration",
        .stats = {.allocated_bytes = 1536,
                  .allocated_peak_bytes = UINT64_C(5) << 30,
                  .requested_bytes = 1000,
                  .requested_peak_bytes = (UINT64_C(5) << 30) - 1,
                  .reserved_bytes = 20 << 20,
                  .reserved_peak_bytes = UINT64_C(3) << 40,
                  .pending_bytes = 512 << 10,
                  .pending_peak_bytes = 1023,
                  .live_blocks = 3,
                  .live_blocks_peak = 1234567,
                  .num_allocs = 1000000,
                  .num_frees = 999997,
                  .num_hits = 999000,
                  .num_device_alloc = 1000,
                  .num_device_free = 10,
                  .num_flushes = 2,
                  .flushed_bytes = UINT64_C(7) << 29,
                  .flush_ns = 1400000,
                  .at_peak_requested_bytes = UINT64_C(5) << 30,
                  .at_peak_cut_bytes = 3 << 20,
                  .at_peak_refused_moves = 17,
                  .at_peak_running_ns = 2500000},
    };
}

static void set_counters(uint64_t foreign_frees, uint64_t managed)
{
    for (int i = 0; i < NUM_COUNTERS; i++)
        atomic_store(&counter_values[i], 0);
    counter_add(COUNTER_FOREIGN_FREE, foreign_frees);
    counter_add(COUNTER_MANAGED, managed);
}

static const char golden_head[] =
    "+========================================================================+\n"
    "| libgpucache " GPUCACHE_VERSION ", process ";
static const char golden_text[] =
    "+========================================================================+\n"
    "| device 0: NVIDIA H200                                                  |\n"
    "| arena backing: the device maps memory itself and no library is loaded  |\n"
    "| that needs legacy IPC or network registration                          |\n"
    "+------------------------------------------------------------------------+\n"
    "|                            |                 now |                peak |\n"
    "| allocated                  |            1.50 KiB |            5.00 GiB |\n"
    "| requested                  |              1000 B |            4.99 GiB |\n"
    "| reserved                   |           20.00 MiB |            3.00 TiB |\n"
    "| pending                    |          512.00 KiB |              1023 B |\n"
    "| live blocks                |                   3 |           1,234,567 |\n"
    "| idle                       |           19.49 MiB |                     |\n"
    "+------------------------------------------------------------------------+\n"
    "| when reserved peaked       |            3.00 TiB |                     |\n"
    "| requested                  |            5.00 GiB |                     |\n"
    "| rounding                   |                 0 B |                     |\n"
    "| pending                    |                 0 B |                     |\n"
    "| whole                      |                 0 B |                     |\n"
    "| cut                        |            3.00 MiB |                     |\n"
    "| small                      |                 0 B |                     |\n"
    "| refused moves              |                  17 |                     |\n"
    "| running time               |             2.50 ms |                     |\n"
    "+------------------------------------------------------------------------+\n"
    "| allocs                     |           1,000,000 |                     |\n"
    "| frees                      |             999,997 |                     |\n"
    "| hits                       |             999,000 |                     |\n"
    "| device alloc               |               1,000 |                     |\n"
    "| device free                |                  10 |                     |\n"
    "| flushes                    |                   2 |                     |\n"
    "| flushed                    |            3.50 GiB |                     |\n"
    "| flush time                 |             1.40 ms |                     |\n"
    "| hit rate                   |              99.9 % |                     |\n"
    "| driver calls saved         |           1,998,987 |                     |\n"
    "| time saved, at least       |              4.19 s |      2.10 us a call |\n"
    "+========================================================================+\n"
    "| managed allocs             |                   4 |                     |\n"
    "| foreign frees              |           1,234,567 |                     |\n"
    "+========================================================================+\n";

TEST(the_text_is_the_golden_text)
{
    struct report_pool pool = sample_pool();
    struct report r = {.pools = &pool, .num_pools = 1, .elapsed_ns = UINT64_C(12345000000)};
    static char text[8192];
    set_counters(1234567, 4);
    size_t n = report_text(&r, text, sizeof text);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(text, golden_head, sizeof golden_head - 1);
    assert_non_null(strstr(text, "(test_report), 12.34 s "));
    const char *body = strchr(text, '\n');
    body = strchr(body + 1, '\n');
    assert_string_equal(body + 1, golden_text);
}

TEST(every_line_of_the_text_has_one_width)
{
    struct report_pool pool = sample_pool();
    struct report r = {.pools = &pool, .num_pools = 1};
    static char text[16384];
    uint64_t *stats = (uint64_t *)&pool.stats;
    for (size_t i = 0; i < sizeof pool.stats / sizeof *stats; i++)
        stats[i] = UINT64_C(999999999999999);
    for (int i = 0; i < NUM_COUNTERS; i++)
        atomic_store(&counter_values[i], UINT64_C(999999999999999));
    pool.reason = "a-word-of-more-than-seventy-letters-has-to-be-broken-somewhere-even-if-it-hurts-"
                  "to-see \n\x1b[2J";
    report_text(&r, text, sizeof text);
    set_counters(0, 0);
    assert_null(strchr(text, '\x1b'));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strlen(line) != 74)
            fail_msg("%zu letters: %s", strlen(line), line);
}

TEST(no_pool_is_a_short_text)
{
    struct report r = {0};
    char text[1024];
    set_counters(0, 0);
    report_text(&r, text, sizeof text);
    assert_non_null(strstr(text, "no pool"));
    assert_null(strstr(text, "device"));
}

TEST(a_small_buffer_is_filled_and_the_whole_length_returned)
{
    struct report_pool pool = sample_pool();
    struct report r = {.pools = &pool, .num_pools = 1};
    static char text[8192];
    char small[101];
    size_t n = report_text(&r, text, sizeof text), m = report_json(&r, NULL, 0);
    memset(small, 'z', sizeof small);
    assert_int_equal(report_text(&r, small, sizeof small - 1), n);
    assert_memory_equal(small, text, 99);
    assert_int_equal(small[99], '\0');
    assert_int_equal(small[100], 'z');
    assert_true(m > 500);
    assert_int_equal(report_json(&r, text, sizeof text), m);
}

/* Gives the JSON to a parser of its own and runs Python statements on the object d. */
static void python_check(const struct report *r, const char *statements)
{
    static char text[16384], command[8192];
    size_t n = report_json(r, text, sizeof text);
    assert_true(n < sizeof text);
    assert_ptr_equal(strchr(text, '\n'), text + n - 1);
    snprintf(command, sizeof command,
             "python3 -c 'import json,sys\nd=json.loads(sys.stdin.buffer.read())\n%s'", statements);
    FILE *f = popen(command, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(pclose(f), 0);
}

TEST(the_json_has_every_field_with_its_value)
{
    struct report_pool pools[2] = {sample_pool(), sample_pool()};
    struct report r = {.pools = pools, .num_pools = 2, .elapsed_ns = 5, .driver_call_ns = 1000};
    static char statements[8192];
    uint64_t *stats = (uint64_t *)&pools[1].stats;
    size_t used = 0;
    for (size_t i = 0; i < sizeof pools[1].stats / sizeof *stats; i++)
        stats[i] = 1000 + i;
    pools[1].device = 3;
    pools[1].uuid = "GPU-1";
    pools[1].total_bytes = 7;
    pool_config_init(&pools[1].config);
    pools[1].config.max_idle_bytes = 99;
    pools[1].stats.reserved_bytes = UINT64_MAX;
    pools[1].async = (struct async_stats){2001, 2002, 2003};
    set_counters(UINT64_MAX, 4);
#define POOL_STAT(field, kind, unit, help)                                                         \
    used += (size_t)snprintf(statements + used, sizeof statements - used,                          \
                             "assert d[\"pools\"][1].pop(\"%s\") == %" PRIu64 "\n", #field,        \
                             pools[1].stats.field);
#include "pool/stats.def"
#undef POOL_STAT
#define ASYNC_STAT(field, kind, unit, help)                                                        \
    used += (size_t)snprintf(statements + used, sizeof statements - used,                          \
                             "assert d[\"pools\"][1].pop(\"%s\") == %" PRIu64 "\n", #field,        \
                             pools[1].async.field);
#include "shim/stats/async_stats.def"
#undef ASYNC_STAT
    snprintf(statements + used, sizeof statements - used,
             "p = d[\"pools\"][1]\n"
             "assert p.pop(\"device\") == 3 and p.pop(\"name\") == \"NVIDIA H200\" and "
             "p.pop(\"backing\") == \"arena\"\n"
             "assert p.pop(\"reason\").startswith(\"the device maps\")\n"
             "l = p.pop(\"limits\")\n"
             "assert l.pop(\"max_idle_bytes\") == 99 and l.pop(\"max_reserved_bytes\") is None\n"
             "assert l.pop(\"max_block_bytes\") is None and set(l.values()) == {0}, l\n"
             "assert len(l) == 4, l\n"
             "assert p.pop(\"uuid\") == \"GPU-1\" and p.pop(\"total_bytes\") == 7\n"
             "assert p.pop(\"idle_bytes\") == 2**64 - 1 - 1000 - 1007\n"
             "assert p.pop(\"num_driver_calls_saved\") == 1011 + 1012 - 1014 - 1015 + %d\n"
             "assert p.pop(\"saved_ns\") == %d\n"
             "assert not p, p\n"
             "q = d[\"pools\"][0]\n"
             "assert q[\"num_driver_calls_saved\"] == 1998987 and q[\"saved_ns\"] == 1998987000\n"
             "assert d[\"counters\"][\"num_foreign_frees\"] == 2**64 - 1 and "
             "d[\"counters\"][\"num_managed_allocs\"] == 4\n"
             "assert len(d[\"counters\"]) == %d\n"
             "assert d[\"pid\"] == %ld and d[\"program\"] == \"test_report\" and d[\"version\"] == "
             "\"%s\"\n"
             "assert d[\"elapsed_ns\"] == 5 and d[\"driver_call_ns\"] == 1000 and "
             "len(d[\"pools\"]) == 2\n",
             6, 0, NUM_COUNTERS, (long)getpid(), GPUCACHE_VERSION);
    python_check(&r, statements);
    set_counters(0, 0);
}

TEST(the_json_tells_of_the_process_where_it_is_known)
{
    static struct options options;
    const struct report_flush flush = {3, "signal", 5, 7, 9};
    struct report r = {.num_left_out = 2,
                       .options = &options,
                       .flush = &flush,
                       .command = "python3 \"a b\"",
                       .signal = 12};
    strcpy(options.dir.path, "/dev/shm/\"x\"");
    options.max_idle_bytes.others.bytes = UINT64_C(3) << 30;
    python_check(&r,
                 "assert d[\"pools\"] == [] and d[\"pools_left_out\"] == 2\n"
                 "assert d[\"signal\"] == 12 and d[\"command\"] == \"python3 \\\"a b\\\"\"\n"
                 "import os\nassert d[\"uid\"] == os.geteuid()\n"
                 "assert d[\"flush\"] == {\"count\": 3, \"reason\": \"signal\", \"unix_ns\": 5, "
                 "\"bytes\": 7, \"ns\": 9}\n"
                 "assert d[\"options\"][\"GPUCACHE_DIR\"] == \"/dev/shm/\\\"x\\\"\"\n"
                 "assert d[\"options\"][\"GPUCACHE_MAX_IDLE\"] == \"3G\", d[\"options\"]\n");
    r = (struct report){0};
    python_check(&r, "assert not {\"options\", \"flush\", \"command\"} & set(d)\n");
}

TEST(strange_names_still_make_json)
{
    struct report_pool pool = sample_pool();
    struct report r = {.pools = &pool, .num_pools = 1};
    pool.name = "a\"b\\c\n\t\x01\x7f";
    pool.backing = "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80";
    pool.reason = "\xff|\xc3|\xc0\xaf|\xed\xa0\x80|\xe2\x82|\xf4\x90\x80\x80|\x80";
    python_check(&r, "p = d[\"pools\"][0]\n"
                     "assert p[\"name\"] == \"a\\\"b\\\\c\\n\\t\\x01\\x7f\", p[\"name\"]\n"
                     "assert p[\"backing\"] == \"\\u00e9 \\u20ac \\U0001f600\"\n"
                     "assert [set(x) for x in p[\"reason\"].split(\"|\")] == [{\"\\ufffd\"}] * 7, "
                     "p[\"reason\"]\n");
    pool.name = pool.backing = pool.reason = NULL;
    python_check(
        &r, "p = d[\"pools\"][0]\nassert p[\"name\"] == p[\"backing\"] == p[\"reason\"] == \"\"\n");
}

TEST(a_decimal_comma_of_the_locale_changes_nothing)
{
    struct report_pool pool = sample_pool();
    struct report r = {.pools = &pool, .num_pools = 1};
    static char before[8192], after[8192];
    report_text(&r, before, sizeof before);
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8"))
        skip();
    report_text(&r, after, sizeof after);
    setlocale(LC_ALL, "C");
    assert_string_equal(before, after);
}

TEST(it_is_written_where_the_option_says)
{
    struct report_pool pool = sample_pool();
    struct report r = {.pools = &pool, .num_pools = 1};
    struct option_stats where = {
        .at_exit = true, .json = true, .path = "/tmp/gpucache-report-test-%p"};
    static char said[8192], expected[8192];
    char path[64];
    snprintf(path, sizeof path, "/tmp/gpucache-report-test-%ld", (long)getpid());
    errno = 4711;
    assert_true(report_write(&r, &where));
    assert_int_equal(errno, 4711);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    said[fread(said, 1, sizeof said - 1, f)] = '\0';
    fclose(f);
    unlink(path);
    report_json(&r, expected, sizeof expected);
    assert_string_equal(said, expected);

    where = (struct option_stats){.at_exit = true};
    capture_begin();
    assert_true(report_write(&r, &where));
    capture_end(said, sizeof said);
    report_text(&r, expected, sizeof expected);
    assert_string_equal(said, expected);

    where = (struct option_stats){.path = "/nonexistent/folder/file"};
    assert_false(report_write(&r, &where));
}

PLAY_TESTS
