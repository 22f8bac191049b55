/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See report.h. Holds the layout and the few figures that are derived from others. The rows come
 * from the .def tables. All numbers are printed as integers, because the decimal point of printf
 * depends on the locale. No state, no lock.
 */
#include "shim/stats/report.h"

#include "pool/bits.h"
#include "shim/process/program.h"
#include "shim/process/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef GPUCACHE_VERSION
#error "the build defines GPUCACHE_VERSION, a string"
#endif

enum report_kind { GAUGE, PEAK, COUNTER, AT_PEAK };
enum report_unit { BYTES, COUNT, NS };

struct report_row {
    const char *field;
    enum report_kind kind;
    enum report_unit unit;
};

static const struct report_row rows[] = {
#define POOL_STAT(field, kind, unit, help) {#field, kind, unit},
#include "pool/stats.def"
#undef POOL_STAT
#define ASYNC_STAT(field, kind, unit, help) {#field, kind, unit},
#include "shim/stats/async_stats.def"
#undef ASYNC_STAT
};

enum {
    NUM_ROWS = sizeof rows / sizeof rows[0],
    FIRST_ASYNC_ROW = NUM_ROWS - (int)(sizeof(struct async_stats) / sizeof(uint64_t)),
};

static const char *const counter_fields[NUM_COUNTERS] = {
#define COUNTER(name, field, help) #field,
#include "shim/stats/counters.def"
#undef COUNTER
};

static void copy_stats(const struct report_pool *p, uint64_t values[NUM_ROWS])
{
    size_t i = 0;

#define POOL_STAT(field, kind, unit, help) values[i++] = p->stats.field;
#include "pool/stats.def"
#undef POOL_STAT
#define ASYNC_STAT(field, kind, unit, help) values[i++] = p->async.field;
#include "shim/stats/async_stats.def"
#undef ASYNC_STAT
}

static uint64_t reported_idle_bytes(const struct pool_stats *s)
{
    return minus_u64(s->reserved_bytes, s->allocated_bytes + s->pending_bytes);
}

static uint64_t calls_saved(const struct pool_stats *s)
{
    return minus_u64(s->num_allocs + s->num_frees, s->num_device_alloc + s->num_device_free);
}

static uint64_t call_ns(const struct report *r)
{
    return r->driver_call_ns ? r->driver_call_ns : REPORT_DRIVER_CALL_NS;
}

static const char *or_unknown(const char *text)
{
    return text && text[0] ? text : "unknown";
}

static struct figure fixed(uint64_t value, uint64_t unit, unsigned decimals, const char *suffix)
{
    struct figure f = text_fixed(value, unit, decimals);
    size_t used = strlen(f.text);

    snprintf(f.text + used, sizeof f.text - used, " %s", suffix);
    return f;
}

static struct figure count_figure(uint64_t value)
{
    char digits[24];
    struct figure f;
    size_t used = 0;
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value);

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            f.text[used++] = ',';
        f.text[used++] = digits[i];
    }
    f.text[used] = '\0';
    return f;
}

static struct figure unit_figure(uint64_t value, enum report_unit unit)
{
    static const char *const suffixes[] = {"KiB", "MiB", "GiB", "TiB"};
    unsigned power = 0;
    struct figure f;

    if (unit == COUNT)
        return count_figure(value);
    if (unit == NS) {
        if (value >= 1000000000)
            return fixed(value, 1000000000, 2, "s");
        if (value >= 1000000)
            return fixed(value, 1000000, 2, "ms");
        return fixed(value, 1000, 2, "us");
    }
    if (value < 1024) {
        snprintf(f.text, sizeof f.text, "%" PRIu64 " B", value);
        return f;
    }
    while (power < 3 && value >> (10 * (power + 2)))
        power++;
    return fixed(value, UINT64_C(1) << (10 * (power + 1)), 2, suffixes[power]);
}

/* The words of a field's name, without what says its kind before and its unit behind. */
static struct figure label(const char *field)
{
    static const char *const heads[] = {"num_", "at_peak_"};
    static const char *const tails[] = {"_bytes", "_ns"};
    static const char *const said[] = {"", " time"};
    const char *tail = "";
    struct figure f;
    size_t n;

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        if (strncmp(field, heads[i], strlen(heads[i])) == 0)
            field += strlen(heads[i]);
    n = strlen(field);
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        size_t m = strlen(tails[i]);

        if (n > m && strcmp(field + n - m, tails[i]) == 0) {
            n -= m;
            tail = said[i];
            break;
        }
    }
    snprintf(f.text, sizeof f.text, "%.*s%s", n < 24 ? (int)n : 24, field, tail);
    for (char *c = f.text; *c; c++)
        if (*c == '_')
            *c = ' ';
    return f;
}

enum { WIDTH = 72 };

static void add_rule(struct text *t, char c)
{
    char rule[WIDTH + 1];

    memset(rule, c, WIDTH);
    rule[WIDTH] = '\0';
    text_add(t, "+%s+\n", rule);
}

static void add_row(struct text *t, const char *name, const char *a, const char *b)
{
    text_add(t, "| %-26s | %19s | %19s |\n", name, a, b);
}

/* Text from outside, broken into lines. A control character becomes '?'. */
static void add_words(struct text *t, const char *words)
{
    while (*words) {
        size_t n = strlen(words), room = WIDTH - 2;
        char line[WIDTH];

        if (n > room) {
            for (n = room; n > 0 && words[n] != ' '; n--)
                ;
            if (!n)
                n = room;
        }
        for (size_t i = 0; i < n; i++)
            line[i] = (unsigned char)words[i] < ' ' || words[i] == 127 ? '?' : words[i];
        line[n] = '\0';
        text_add(t, "| %-*s |\n", WIDTH - 2, line);
        for (words += n; *words == ' '; words++)
            ;
    }
}

/* What the reserved memory was used for at its peak. Adds nothing while the pool has not grown for
 * a request. */
static void add_peak_text(struct text *t, const uint64_t v[NUM_ROWS], uint64_t peak_bytes)
{
    bool is_known = false;

    for (size_t i = 0; i < NUM_ROWS; i++)
        is_known |= rows[i].kind == AT_PEAK && v[i];
    if (!is_known)
        return;
    add_rule(t, '-');
    add_row(t, "when reserved peaked", unit_figure(peak_bytes, BYTES).text, "");
    for (size_t i = 0; i < NUM_ROWS; i++)
        if (rows[i].kind == AT_PEAK)
            add_row(t, label(rows[i].field).text, unit_figure(v[i], rows[i].unit).text, "");
}

static void add_pool_text(struct text *t, const struct report *r, const struct report_pool *p)
{
    uint64_t v[NUM_ROWS];
    char words[512];

    copy_stats(p, v);
    snprintf(words, sizeof words, "device %d: %s", p->device, or_unknown(p->name));
    add_words(t, words);
    snprintf(words, sizeof words, "%s backing: %s", or_unknown(p->backing), or_unknown(p->reason));
    add_words(t, words);

    add_rule(t, '-');
    add_row(t, "", "now", "peak");
    for (size_t i = 0; i < NUM_ROWS; i++) {
        bool has_peak = i + 1 < NUM_ROWS && rows[i + 1].kind == PEAK;
        if (rows[i].kind != GAUGE || (!v[i] && (i >= FIRST_ASYNC_ROW || !has_peak)))
            continue;
        add_row(t, label(rows[i].field).text, unit_figure(v[i], rows[i].unit).text,
                has_peak ? unit_figure(v[i + 1], rows[i].unit).text : "");
    }
    add_row(t, "idle", unit_figure(reported_idle_bytes(&p->stats), BYTES).text, "");
    add_peak_text(t, v, p->stats.reserved_peak_bytes);

    add_rule(t, '-');
    for (size_t i = 0; i < NUM_ROWS; i++)
        if (rows[i].kind == COUNTER && v[i])
            add_row(t, label(rows[i].field).text, unit_figure(v[i], rows[i].unit).text, "");
    if (p->stats.num_allocs) {
        uint64_t saved = calls_saved(&p->stats);

        add_row(t, "hit rate", fixed(p->stats.num_hits * 100, p->stats.num_allocs, 1, "%").text,
                "");
        add_row(t, "driver calls saved", count_figure(saved).text, "");
        snprintf(words, sizeof words, "%s a call", unit_figure(call_ns(r), NS).text);
        add_row(t, "time saved, at least", unit_figure(saved * call_ns(r), NS).text, words);
    }
}

/* Not inlined: the rows need much of the stack, too. */
static __attribute__((noinline)) void add_head(struct text *t, const struct report *r)
{
    char words[384]; /* a name of 255 bytes and 100 more */
    char program[PROGRAM_NAME_MAX];

    add_rule(t, '=');
    snprintf(words, sizeof words, "libgpucache %s, process %ld (%s), %s%s", GPUCACHE_VERSION,
             (long)getpid(), program_name(program),
             r->elapsed_ns ? unit_figure(r->elapsed_ns, NS).text : "no pool",
             r->running ? ", still running then" : "");
    add_words(t, words);
    add_rule(t, '=');
}

size_t report_text(const struct report *r, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};
    bool any = false;

    add_head(&t, r);
    for (size_t i = 0; i < r->num_pools; i++) {
        add_pool_text(&t, r, &r->pools[i]);
        add_rule(&t, '=');
    }
    for (size_t i = 0; i < NUM_COUNTERS; i++) {
        uint64_t value = counter_get((enum counter)i);

        if (value) {
            add_row(&t, label(counter_fields[i]).text, count_figure(value).text, "");
            any = true;
        }
    }
    if (any)
        add_rule(&t, '=');
    return t.used_bytes;
}

/* Shares of the device's memory are bytes here. No limit is null. */
static void add_limits(struct text *t, const struct pool_config *c)
{
    const char *comma = "";

    text_add(t, ",\"limits\":{");
#define ADD_NUMBER(name, value)                                                                    \
    if ((value) == UINT64_MAX)                                                                     \
        text_add(t, "%s\"%s\":null", comma, name);                                                 \
    else                                                                                           \
        text_add(t, "%s\"%s\":%" PRIu64, comma, name, value);                                      \
    comma = ",";
#define ADD_BYTES ADD_NUMBER
#define ADD_LIMIT ADD_NUMBER
#define ADD_SECONDS ADD_NUMBER
#define ADD_BACKING(name, value)
#define ADD_REUSE(name, value)
#define ADD_SWITCH(name, value)
#define POOL_OPTION(field, name, type, value, live, help) ADD_##type(#field, c->field)
#include "pool/config.def"
#undef POOL_OPTION
    text_add(t, "}");
}

static void add_options(struct text *t, const struct options *o)
{
    text_add(t, ",\"options\":{");
    for (size_t i = 0; i < num_option_rows; i++) {
        size_t n = options_show(o, i, NULL, 0);
        char *value = malloc(n + 1);

        if (value)
            options_show(o, i, value, n + 1);
        text_add(t, i ? "," : "");
        text_add_json_string(t, option_rows[i].env, value);
        free(value);
    }
    text_add(t, "}");
}

static void add_flush(struct text *t, const struct report_flush *f)
{
    text_add(t, ",\"flush\":{\"count\":%" PRIu64 ",", f->count);
    text_add_json_string(t, "reason", f->reason);
    text_add(t, ",\"unix_ns\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"ns\":%" PRIu64 "}", f->unix_ns,
             f->bytes, f->ns);
}

static void add_park(struct text *t, const struct report_park *p)
{
    text_add(t, ",\"park\":{");
    text_add_json_string(t, "state", p->state);
    text_add(t, ",\"since_unix_ns\":%" PRIu64 ",\"needs_bytes\":%" PRIu64 ",\"whole\":%s}",
             p->since_unix_ns, p->needs_bytes, p->whole ? "true" : "false");
}

static void add_process(struct text *t, const struct report *r)
{
    text_add(t, ",\"uid\":%ld,\"signal\":%d,\"running\":%s", (long)geteuid(), r->signal,
             r->running ? "true" : "false");
    if (r->command) {
        text_add(t, ",");
        text_add_json_string(t, "command", r->command);
    }
    if (r->options)
        add_options(t, r->options);
    if (r->park)
        add_park(t, r->park);
    if (r->flush)
        add_flush(t, r->flush);
}

size_t report_json(const struct report *r, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};
    char program[PROGRAM_NAME_MAX];

    text_add(&t, "{\"library\":\"libgpucache\",\"version\":\"%s\",\"pid\":%ld,", GPUCACHE_VERSION,
             (long)getpid());
    text_add_json_string(&t, "program", program_name(program));
    text_add(&t, ",\"elapsed_ns\":%" PRIu64 ",\"driver_call_ns\":%" PRIu64 ",\"pools\":[",
             r->elapsed_ns, call_ns(r));
    for (size_t i = 0; i < r->num_pools; i++) {
        const struct report_pool *p = &r->pools[i];
        uint64_t v[NUM_ROWS];

        copy_stats(p, v);
        text_add(&t, "%s{\"device\":%d,", i ? "," : "", p->device);
        text_add_json_string(&t, "name", p->name);
        text_add(&t, ",");
        text_add_json_string(&t, "backing", p->backing);
        text_add(&t, ",");
        text_add_json_string(&t, "reason", p->reason);
        text_add(&t, ",");
        text_add_json_string(&t, "uuid", p->uuid);
        text_add(&t, ",\"total_bytes\":%" PRIu64, p->total_bytes);
        add_limits(&t, &p->config);
        for (size_t j = 0; j < NUM_ROWS; j++)
            text_add(&t, ",\"%s\":%" PRIu64, rows[j].field, v[j]);
        text_add(&t,
                 ",\"idle_bytes\":%" PRIu64 ",\"num_driver_calls_saved\":%" PRIu64
                 ",\"saved_ns\":%" PRIu64 "}",
                 reported_idle_bytes(&p->stats), calls_saved(&p->stats),
                 calls_saved(&p->stats) * call_ns(r));
    }
    text_add(&t, "],\"counters\":{");
    for (size_t i = 0; i < NUM_COUNTERS; i++)
        text_add(&t, "%s\"%s\":%" PRIu64, i ? "," : "", counter_fields[i],
                 counter_get((enum counter)i));
    text_add(&t, "},\"pools_left_out\":%zu", r->num_left_out);
    add_process(&t, r);
    text_add(&t, "}\n");
    return t.used_bytes;
}

bool report_write(const struct report *r, const struct option_stats *where)
{
    size_t (*format)(const struct report *, char *, size_t) =
        where->json ? report_json : report_text;
    int saved_errno = errno;
    bool done = false;

    /* Counters may grow between the two passes, so there is room for longer numbers. */
    size_t size_bytes = format(r, NULL, 0) + 64 * NUM_COUNTERS;
    char *text = malloc(size_bytes);
    if (text) {
        size_t n = format(r, text, size_bytes);
        done = n < size_bytes && log_put(where->path, text, n);
    }
    free(text);
    errno = saved_errno;
    return done;
}
