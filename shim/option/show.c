/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See show.h. Numbers are printed as integers, because the decimal point of printf depends on the
 * locale.
 */
#include "shim/option/show.h"

#include "shim/process/clock.h"
#include "shim/process/text.h"

#include <inttypes.h>
#include <signal.h>

static size_t show_word(const char *word, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};

    text_add(&t, "%s", word);
    return t.used_bytes;
}

/* With at most six decimals, and none that are zero at the end. */
static void add_fraction(struct text *t, uint64_t whole, uint64_t millionths)
{
    unsigned digits = 6;

    text_add(t, "%" PRIu64, whole);
    for (; millionths && millionths % 10 == 0; digits--)
        millionths /= 10;
    if (millionths)
        text_add(t, ".%0*" PRIu64, (int)digits, millionths);
}

/* In the largest unit that the time is a whole number of. A fraction of a millisecond has the
 * precision of the clock. */
static void add_time(struct text *t, uint64_t ns)
{
    if (!ns)
        text_add(t, "0");
    else if (ns % (3600 * SEC_NS) == 0)
        text_add(t, "%" PRIu64 "h", ns / (3600 * SEC_NS));
    else if (ns % (60 * SEC_NS) == 0)
        text_add(t, "%" PRIu64 "m", ns / (60 * SEC_NS));
    else if (ns % SEC_NS == 0)
        text_add(t, "%" PRIu64 "s", ns / SEC_NS);
    else {
        add_fraction(t, ns / MS_NS, ns % MS_NS);
        text_add(t, "ms");
    }
}

static void add_bytes(struct text *t, uint64_t bytes)
{
    static const char *const suffixes[] = {"", "K", "M", "G", "T"};
    unsigned power = 0;

    while (bytes && power < 4 && bytes % 1024 == 0) {
        bytes /= 1024;
        power++;
    }
    text_add(t, "%" PRIu64 "%s", bytes, suffixes[power]);
}

static void add_size(struct text *t, const struct option_size *size, bool is_limit)
{
    if (size->is_share) {
        add_fraction(t, size->share_ppm / 10000, size->share_ppm % 10000 * UINT64_C(100));
        text_add(t, "%%");
    } else if (is_limit && size->bytes == UINT64_MAX) {
        text_add(t, "none");
    } else {
        add_bytes(t, size->bytes);
    }
}

static size_t show_sizes(const struct option_bytes *value, bool is_limit, char *out,
                         size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};

    add_size(&t, &value->others, is_limit);
    for (unsigned i = 0; i < OPTION_DEVICES; i++) {
        if (value->named >> i & 1) {
            text_add(&t, ",%u=", i);
            add_size(&t, &value->device[i], is_limit);
        }
    }
    return t.used_bytes;
}

size_t show_BYTES(const struct option_bytes *value, char *out, size_t size_bytes)
{
    return show_sizes(value, false, out, size_bytes);
}

size_t show_LIMIT(const struct option_bytes *value, char *out, size_t size_bytes)
{
    return show_sizes(value, true, out, size_bytes);
}

size_t show_SWITCH(bool on, char *out, size_t size_bytes)
{
    return show_word(on ? "on" : "off", out, size_bytes);
}

size_t show_SECONDS(uint64_t ns, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};

    add_time(&t, ns);
    return t.used_bytes;
}

size_t show_BACKING(enum pool_backing value, char *out, size_t size_bytes)
{
    return show_word(parse_backing_words[value], out, size_bytes);
}

size_t show_REUSE(enum pool_reuse value, char *out, size_t size_bytes)
{
    return show_word(parse_reuse_words[value], out, size_bytes);
}

size_t show_TRACE_ON(enum trace_on value, char *out, size_t size_bytes)
{
    return show_word(parse_trace_on_words[value], out, size_bytes);
}

size_t show_TRACE_STACKS(const struct option_trace_stacks *value, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};

    text_add(&t, "%u%s", value->frames, value->python ? ",python" : "");
    return t.used_bytes;
}

size_t show_SIGNAL(int number, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};

    if (!number)
        text_add(&t, "none");
    else if (number == SIGUSR1)
        text_add(&t, "USR1");
    else if (number == SIGUSR2)
        text_add(&t, "USR2");
    else if (number == SIGRTMIN)
        text_add(&t, "RTMIN");
    else
        text_add(&t, "RTMIN+%d", number - SIGRTMIN);
    return t.used_bytes;
}

size_t show_EMPTY_CACHE(const struct empty_cache *value, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};
    const char *comma = "";

    if (!value->now && !value->on_oom && !value->every_ns)
        return show_word("off", out, size_bytes);
    if (value->now) {
        text_add(&t, "1");
        comma = ",";
    }
    if (value->on_oom) {
        text_add(&t, "%soom", comma);
        comma = ",";
    }
    if (value->every_ns) {
        text_add(&t, "%severy:", comma);
        add_time(&t, value->every_ns);
    }
    if (value->device >= 0)
        text_add(&t, ",device=%d", value->device);
    if (value->keep_bytes) {
        text_add(&t, ",keep=");
        add_bytes(&t, value->keep_bytes);
    }
    return t.used_bytes;
}

size_t show_PARK(const struct option_park *value, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};

    const char *comma = "";

    if (value->off || (!value->idle_ns && !value->lend_ns && !value->retain_bytes))
        return show_word(value->off ? "off" : "ask", out, size_bytes);
    if (value->idle_ns) {
        text_add(&t, "idle:");
        add_time(&t, value->idle_ns);
        comma = ",";
    }
    if (value->lend_ns) {
        text_add(&t, "%slend:", comma);
        add_time(&t, value->lend_ns);
        comma = ",";
    }
    if (value->retain_bytes) {
        text_add(&t, "%sretain:", comma);
        add_bytes(&t, value->retain_bytes);
    }
    return t.used_bytes;
}

static void add_path(struct text *t, const char *path)
{
    if (path[0])
        text_add(t, ":%s", path);
}

size_t show_STATS(const struct option_stats *value, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};

    if (!value->at_exit)
        return show_word("off", out, size_bytes);
    text_add(&t, value->json ? "exit-json" : "exit");
    add_path(&t, value->path);
    return t.used_bytes;
}

size_t show_LOG(const struct option_log *value, char *out, size_t size_bytes)
{
    struct text t = {out, size_bytes, 0};

    text_add(&t, "%s", log_level_words[value->level]);
    add_path(&t, value->path);
    return t.used_bytes;
}

size_t show_PATH(const struct option_path *value, char *out, size_t size_bytes)
{
    return show_word(value->path[0] ? value->path : "none", out, size_bytes);
}

size_t show_PLACE(const struct option_place *value, char *out, size_t size_bytes)
{
    return show_word(value->path[0] ? value->path : "host", out, size_bytes);
}

size_t show_DIR(const struct option_dir *value, char *out, size_t size_bytes)
{
    return show_word(value->none ? "none" : value->path, out, size_bytes);
}

size_t show_GLOBS(const struct option_globs *value, char *out, size_t size_bytes)
{
    return show_word(value->list, out, size_bytes);
}
