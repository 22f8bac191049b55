/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See word.h.
 */
#include "shim/option/word.h"

#include <string.h>

static char lower_letter(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

const char *word_skip_blanks(const char *text)
{
    while (is_blank(*text))
        text++;
    return text;
}

const char *word_skip(const char *text, const char *word)
{
    for (; *word; text++, word++)
        if (lower_letter(*text) != lower_letter(*word))
            return NULL;
    return text;
}

bool word_is(const char *text, const char *word)
{
    const char *rest = word_skip(text, word);

    return rest && !*rest;
}

bool word_is_off(const char *text)
{
    return word_is(text, "0") || word_is(text, "off") || word_is(text, "no") ||
           word_is(text, "none") || word_is(text, "false");
}

bool word_next_item(const char **text, char item[WORD_ITEM_BYTES], bool *bad)
{
    *bad = false;
    if (!*text)
        return false;
    const char *start = word_skip_blanks(*text), *end = strchr(start, ',');
    *text = end ? end + 1 : NULL;
    if (!end)
        end = start + strlen(start);
    while (end > start && is_blank(end[-1]))
        end--;
    if (start == end || end - start >= WORD_ITEM_BYTES) {
        *bad = true;
        return false;
    }
    memcpy(item, start, (size_t)(end - start));
    item[end - start] = '\0';
    return true;
}

bool word_only_item(const char *text, char item[WORD_ITEM_BYTES])
{
    bool bad;

    return word_next_item(&text, item, &bad) && !text;
}
