/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See setting.h. The words are those of shim/option.
 */
#include "scripts/replay/setting.h"

#include "shim/option/options.h"

#include <string.h>

#define LEAST "MAX_RESERVED=least"

enum { WORD_MAX = 256 };

static const char *take(struct setting *s, struct options *o, char *word)
{
    char *value = strchr(word, '=');
    if (!value)
        return "a setting is NAME=VALUE";
    if (!strcmp(word, LEAST)) {
        s->wants_least = true;
        return NULL;
    }
    *value++ = '\0';
    size_t row = options_find(word, strlen(word));
    if (row == NUM_OPTIONS || !option_is_of_pools(row))
        return "there is no such option of a pool";
    if (!options_set(o, row, value))
        return "the value is not understood";
    return o->backing == BACKING_DRIVER ? "there is no pool with BACKING=driver" : NULL;
}

static void take_defaults(struct options *o)
{
    for (size_t row = 0; row < NUM_OPTIONS && option_is_of_pools(row); row++)
        options_set(o, row, option_rows[row].value);
}

const char *setting_read(struct setting *s, const char *words, uint64_t gpu_bytes)
{
    static struct options o; /* large */
    const char *why = NULL;

    o = (struct options){0};
    *s = (struct setting){0};
    take_defaults(&o);
    while (*words && !why) {
        char word[WORD_MAX];
        size_t length = strcspn(words, " ");
        if (length >= sizeof word)
            return "the value is too long";
        memcpy(word, words, length);
        word[length] = '\0';
        if (length)
            why = take(s, &o, word);
        words += length + (words[length] == ' ');
    }
    options_pool_config(&o, 0, gpu_bytes, &s->config);
    return why;
}
