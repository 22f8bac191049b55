/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The request `set`: options change while the program runs. Each name is a matter of its own: what
 * cannot be done for one does not hinder the others. All state belongs to the control thread.
 *
 *   {"options":[{"name":"GPUCACHE_MAX_IDLE","old":"none","new":"1G"},
 *               {"name":"GPUCACHE_BACKING","why":"it cannot change while the program runs: ..."}]}
 *
 * old, new: the values that were and are in force, in the options' own syntax. The end of a long
 * value is left out. "note" beside them says what stands in the way of their effect. "left_out":
 * how many names were carried out, or not, for which the reply had no room.
 */
#include "shim/command/command.h"
#include "shim/context/context.h"
#include "shim/control/flush.h"
#include "shim/control/interim_report.h"
#include "shim/control/publish.h"
#include "shim/control/tracing.h"
#include "shim/option/in_force.h"
#include "shim/option/show.h"
#include "shim/park/asleep.h"
#include "shim/process/log.h"
#include "shim/trace/dump.h"
#include "shim/trace/file.h"
#include "shim/trace/trace.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN_BYTES = 300 };

static char old_text[SHOW_MAX_BYTES], new_text[SHOW_MAX_BYTES];

/* What came of one name. */
struct change {
    const char *name;
    bool done;
    enum page_reply code;
    const char *note; /* NULL: none */
    char why[512];    /* if not done */
};

static void refuse_change(struct change *g, enum page_reply code, const char *why, const char *more)
{
    g->code = code;
    snprintf(g->why, sizeof g->why, "%s%s", why, more);
}

/* Does MIN_FREE ask for all that a device has? */
static bool min_free_is_beyond(void)
{
    bool beyond = false;

    FOR_EACH_CONTEXT(c) {
        uint64_t total_bytes = c->backend.base.total_bytes;
        struct pool_config config;

        in_force_pool_config(c->device, total_bytes, &config);
        beyond = beyond || (total_bytes && config.min_free_bytes >= total_bytes);
    }
    return beyond;
}

/* The new value is in in_force(); makes it hold. act_on_trace does so for the trace. */
static void apply(struct change *g, size_t row)
{
    const struct option_log *log = &in_force()->log;

    if (option_is_of_pools(row)) {
        context_set_configs();
        flush_limits_changed();
        if (row == OPTION_ROW_min_free_bytes && min_free_is_beyond())
            g->note = "a device has no more than that: all idle memory is given back";
    } else if (row == OPTION_ROW_empty_cache) {
        if (!flush_policy_changed())
            g->note = "the process has no such device: nothing is given back";
    } else if (row == OPTION_ROW_empty_cache_file) {
        if (!flush_file_changed())
            g->note = "its folder does not exist; the file gives no memory back until you make it";
    } else if (row == OPTION_ROW_trace_stacks) {
        tracing_stacks_changed();
    } else if (row == OPTION_ROW_park || row == OPTION_ROW_park_to) {
        asleep_options_changed();
    } else if (row == OPTION_ROW_stats) {
        interim_report_start();
    } else if (row == OPTION_ROW_log && !log_configure(log->level, log->path)) {
        g->done = false;
        in_force_set(row, old_text);
        refuse_change(g, PAGE_REPLY_REFUSED, "the log had too many files already", "");
    }
}

static void note_change(const char *name)
{
    char text[TRACE_TEXT_MAX + 1];

    if (!trace_is_on())
        return;
    snprintf(text, sizeof text, "%s=%.900s", name, new_text);
    TRACE(OPTION, .text = text);
}

static void change_option(struct change *g, const struct command_word *word)
{
    size_t row = options_find(word->name, strlen(word->name));
    char more[128];

    *g = (struct change){.name = word->name};
    if (row == NUM_OPTIONS) {
        refuse_change(g, PAGE_REPLY_BAD, "there is no such option; the nearest is ",
                      options_nearest(word->name, strlen(word->name)));
        return;
    }
    const struct option_row *o = &option_rows[row];
    g->name = o->env;
    if (o->fixed) {
        refuse_change(g, PAGE_REPLY_REFUSED, "it cannot change while the program runs: ", o->fixed);
        return;
    }
    options_show(in_force(), row, old_text, sizeof old_text);
    g->done = in_force_set(row, word->value);
    if (!g->done) {
        snprintf(more, sizeof more, "\"%.40s\" is not understood: it takes ", word->value);
        refuse_change(g, PAGE_REPLY_BAD, more, o->allowed);
        return;
    }
    apply(g, row);
    options_show(in_force(), row, new_text, sizeof new_text);
    if (g->done)
        note_change(g->name);
    if (g->done)
        log_info("set by a request: %s=%.300s, was %.300s", g->name, new_text, old_text);
}

/* Does it change when or where a trace is written? */
static bool sets_trace(const struct command_word *word)
{
    static struct options scratch; /* large */
    size_t row = options_find(word->name, strlen(word->name));

    if (row != OPTION_ROW_trace && row != OPTION_ROW_trace_on)
        return false;
    in_force_copy(&scratch);
    return options_set(&scratch, row, word->value);
}

static bool is_last_of_trace(const struct command_word *word, size_t num_words)
{
    bool is_last = sets_trace(word);

    for (size_t i = 1; i < num_words; i++)
        is_last = is_last && !sets_trace(&word[i]);
    return is_last;
}

/* The request's words on the trace are all set by now. A trace that began between two of them would
 * make the file that is meant for the first dump. */
static void act_on_trace(struct change *g)
{
    static char note[TRACE_WHY_BYTES + 64];
    char why[TRACE_WHY_BYTES];

    if (!tracing_changed())
        g->note = "there is no trace: see the log";
    if (in_force()->trace_on != TRACE_ON_OOM || !*in_force()->trace.path ||
        trace_dump_may_begin(why))
        return;
    snprintf(note, sizeof note, "GPUCACHE_TRACE_ON=oom could make no record: %s", why);
    g->note = note;
}

static void add_value(struct text *t, const char *name, const char *value)
{
    char shown[SHOWN_BYTES + 4];
    bool cut = strlen(value) > SHOWN_BYTES;

    snprintf(shown, sizeof shown, "%.*s%s", SHOWN_BYTES, value, cut ? "..." : "");
    text_add(t, ",");
    text_add_json_string(t, name, shown);
}

/* False: there is no room. */
static bool add_change(struct text *t, const struct change *g, bool first)
{
    struct text before = *t;

    text_add(t, first ? "{" : ",{");
    text_add_json_string(t, "name", g->name);
    if (g->done) {
        add_value(t, "old", old_text);
        add_value(t, "new", new_text);
        if (g->note)
            add_value(t, "note", g->note);
    } else {
        add_value(t, "why", g->why);
    }
    text_add(t, "}");
    if (t->used_bytes + 64 < t->size_bytes)
        return true;
    *t = before;
    return false;
}

enum page_reply command_set(const struct command *c, struct command_reply *reply)
{
    enum page_reply code = PAGE_REPLY_DONE;
    size_t shown = 0;

    if (!c->num_words)
        return command_error(reply, PAGE_REPLY_BAD, "set: NAME=VALUE is missing");
    text_add(&reply->text, "{\"options\":[");
    for (size_t i = 0; i < c->num_words; i++) {
        static struct change g;

        change_option(&g, &c->words[i]);
        if (is_last_of_trace(&c->words[i], c->num_words - i))
            act_on_trace(&g);
        reply->value += g.done;
        if (!g.done && code != PAGE_REPLY_BAD)
            code = g.code;
        shown += add_change(&reply->text, &g, !shown);
    }
    if (shown < c->num_words)
        text_add(&reply->text, "],\"left_out\":%zu}", c->num_words - shown);
    else
        text_add(&reply->text, "]}");
    publish_soon();
    return code;
}
