/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See command.h: the parser of requests and the making of replies. No state.
 */
#include "shim/command/command.h"

#include "shim/process/decimal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct verb_row {
    const char *verb, *parameters;
} rows[] = {
#define COMMAND(name, when, parameters, help) {#name, parameters},
#include "shim/command/command.def"
#undef COMMAND
};

enum { NUM_ROWS = sizeof rows / sizeof rows[0] };

const char *command_value(const struct command *c, const char *name)
{
    for (size_t i = 0; i < c->num_words; i++)
        if (strcmp(c->words[i].name, name) == 0)
            return c->words[i].value;
    return NULL;
}

enum page_reply command_error(struct command_reply *reply, enum page_reply code, const char *format,
                              ...)
{
    char words[512];
    va_list args;

    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    reply->text.used_bytes = 0;
    text_add(&reply->text, "{");
    text_add_json_string(&reply->text, "error", words);
    text_add(&reply->text, "}");
    return code;
}

bool command_number(const struct command *c, const char *name, uint64_t most, uint64_t *out,
                    struct command_reply *reply)
{
    const char *value = command_value(c, name), *p = value;
    uint64_t v;

    if (!value)
        return true;
    if (!decimal_read(&p, &v) || *p || v > most) {
        command_error(reply, PAGE_REPLY_BAD, "%s=%.40s is not a number from 0 to %" PRIu64, name,
                      value, most);
        return false;
    }
    *out = v;
    return true;
}

bool command_device(const char *gpu, const struct report_pool *pools, size_t num_pools, int *device)
{
    const char *p = gpu;
    uint64_t n = UINT64_MAX;
    bool is_number = decimal_read(&p, &n) && !*p;

    for (size_t i = 0; i < num_pools; i++)
        if (is_number ? (uint64_t)pools[i].device == n : strcasecmp(pools[i].uuid, gpu) == 0) {
            *device = pools[i].device;
            return true;
        }
    return false;
}

/* The next word of the text, which ends at `end`. NULL: there is none. */
static char *next_word(char **text, const char *end)
{
    char *p = *text;

    while (p < end && *p == ' ')
        p++;
    if (p == end)
        return NULL;
    *text = p;
    while (*text < end && **text != ' ')
        ++*text;
    if (*text < end)
        *(*text)++ = '\0';
    return p;
}

enum takes { NOT_TAKEN, MAY_BE, MUST_BE };

/* Does a row's text of parameters have one of this name? */
static enum takes takes(const char *parameters, const char *name)
{
    size_t n = strlen(name);

    for (const char *p = parameters; *p; p += strcspn(p, " "), p += *p == ' ') {
        bool optional = *p == '[';

        if (strncmp(p, "NAME=VALUE ...", 14) == 0)
            return MAY_BE;
        if (strncmp(p + optional, name, n) == 0 && p[optional + n] == '=')
            return optional ? MAY_BE : MUST_BE;
    }
    return NOT_TAKEN;
}

/* The first parameter that must be there and is not. NULL: there is none. */
static const char *find_missing(const char *parameters, const struct command *c)
{
    for (const char *p = parameters; *p; p += strcspn(p, " "), p += *p == ' ') {
        size_t n = strcspn(p, "= ");
        bool found = *p == '[' || p[n] != '=' || strncmp(p, "NAME=VALUE", 10) == 0;

        for (size_t i = 0; i < c->num_words && !found; i++)
            found = strlen(c->words[i].name) == n && memcmp(c->words[i].name, p, n) == 0;
        if (!found)
            return p;
    }
    return NULL;
}

static int find_verb(const char *verb)
{
    for (int i = 0; verb && i < NUM_ROWS; i++)
        if (strcmp(rows[i].verb, verb) == 0)
            return i;
    return -1;
}

int command_parse(char *text, size_t size_bytes, struct command *out, struct command_reply *reply)
{
    const char *end = text + size_bytes;

    for (size_t i = 0; i < size_bytes; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 127) {
            command_error(reply, PAGE_REPLY_BAD, "a control character");
            return -1;
        }
    *out = (struct command){.verb = next_word(&text, end)};
    int row = find_verb(out->verb);
    if (row < 0) {
        command_error(reply, PAGE_REPLY_BAD, "no verb \"%.40s\"", out->verb ? out->verb : "");
        return -1;
    }
    for (char *word; (word = next_word(&text, end)) != NULL;) {
        char *value = strchr(word, '=');

        if (value)
            *value++ = '\0';
        if (!value || out->num_words == COMMAND_WORDS_MAX || command_value(out, word) ||
            takes(rows[row].parameters, word) == NOT_TAKEN) {
            command_error(reply, PAGE_REPLY_BAD,
                          "%s: \"%.40s\" is unknown, too many, or no "
                          "NAME=VALUE; it takes: %s",
                          out->verb, word, rows[row].parameters);
            return -1;
        }
        out->words[out->num_words++] = (struct command_word){word, value};
    }
    const char *missing = find_missing(rows[row].parameters, out);
    if (missing) {
        command_error(reply, PAGE_REPLY_BAD, "%s: %.*s is missing", out->verb,
                      (int)strcspn(missing, " "), missing);
        return -1;
    }
    return row;
}
