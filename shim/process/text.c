/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See text.h. No state, no lock.
 */
#include "shim/process/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

struct figure text_fixed(uint64_t value, uint64_t unit, unsigned decimals)
{
    uint64_t scale = decimals == 2 ? 100 : 10;
    struct figure f;

    snprintf(f.text, sizeof f.text, "%" PRIu64 ".%0*" PRIu64, value / unit, (int)decimals,
             value % unit * scale / unit);
    return f;
}

void text_add(struct text *t, const char *format, ...)
{
    size_t room = t->used_bytes < t->size_bytes ? t->size_bytes - t->used_bytes : 0;
    va_list args;

    va_start(args, format);
    int n = vsnprintf(room ? t->out + t->used_bytes : NULL, room, format, args);
    va_end(args);
    if (n > 0)
        t->used_bytes += (size_t)n;
}

/* The length of the well-formed UTF-8 sequence at s. 0: there is none. */
static size_t utf8_length(const unsigned char *s)
{
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
               : (s[0] & 0xf0) == 0xe0       ? 3
               : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                             : 0;

    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    /* overlong forms, surrogates, above U+10FFFF */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

void text_add_json_string(struct text *t, const char *name, const char *value)
{
    text_add(t, "\"%s\":\"", name);
    for (const unsigned char *s = (const unsigned char *)(value ? value : ""); *s;) {
        size_t n = utf8_length(s);

        if (!n)
            text_add(t, "\\ufffd");
        else if (*s < ' ' || *s == 127)
            text_add(t, "\\u%04x", *s);
        else if (*s == '"' || *s == '\\')
            text_add(t, "\\%c", *s);
        else
            text_add(t, "%.*s", (int)n, (const char *)s);
        s += n ? n : 1;
    }
    text_add(t, "\"");
}
