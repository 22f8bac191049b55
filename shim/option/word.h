/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The words of an option's value, and the items of one that is a list. Large and small letters are
 * the same, whatever the locale: strcasecmp and the functions of ctype.h depend on it. No state, no
 * lock.
 */
#ifndef SHIM_WORD_H
#define SHIM_WORD_H

#include <stdbool.h>

/* An item with its NUL. */
enum { WORD_ITEM_BYTES = 256 };

/* The text behind the blanks that it begins with: spaces, tabs and ends of lines. */
const char *word_skip_blanks(const char *text);
/* The rest of the text behind the word. NULL: the text does not begin with it. */
const char *word_skip(const char *text, const char *word);
/* Is the text this word, and nothing else? */
bool word_is(const char *text, const char *word);
/* Is it one of the words for "off"? */
bool word_is_off(const char *text);

/* Copies the next item of a list without the blanks around it. Moves *text behind the item's comma,
 * or sets it to NULL at the end. False: the list is at its end, or *bad is set and the item is
 * empty or too long. */
bool word_next_item(const char **text, char item[WORD_ITEM_BYTES], bool *bad);
/* Copies the item of a text that has one. False: it has a comma, or that item is bad. */
bool word_only_item(const char *text, char item[WORD_ITEM_BYTES]);

#endif
