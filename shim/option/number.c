/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See number.h.
 */
#include "shim/option/number.h"

#include "shim/option/word.h"
#include "shim/process/clock.h"
#include "shim/process/decimal.h"

#include <stddef.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)
#define MILLION UINT64_C(1000000)

struct unit {
    const char *word;
    uint64_t factor; /* at most TIB or an hour, so its product with millionths fits */
};

/* A number with its fraction in millionths. */
struct quantity {
    uint64_t whole, millionths;
};

/* Moves *text to the unit. Drops further digits of the fraction. */
static bool read_quantity(const char **text, struct quantity *out)
{
    uint64_t scale = MILLION;

    if (!decimal_read(text, &out->whole))
        return false;
    out->millionths = 0;
    const char *p = *text;
    if (*p == '.' && p[1] >= '0' && p[1] <= '9') {
        for (p++; *p >= '0' && *p <= '9'; p++) {
            scale /= 10;
            out->millionths += scale * (uint64_t)(*p - '0');
        }
    }
    *text = word_skip_blanks(p);
    return true;
}

/* False: there is no such unit, the product does not fit, or it would be a fraction of a byte. */
static bool scale(const struct quantity *v, const char *unit, const struct unit *units,
                  size_t num_units, uint64_t *out)
{
    uint64_t whole;

    for (size_t i = 0; i < num_units; i++)
        if (word_is(unit, units[i].word)) {
            uint64_t factor = units[i].factor;
            return !(factor == 1 && v->millionths) &&
                   !__builtin_mul_overflow(v->whole, factor, &whole) &&
                   !__builtin_add_overflow(whole, factor * v->millionths / MILLION, out);
        }
    return false;
}

bool number_time(const char *text, uint64_t *out_ns)
{
    static const struct unit units[] = {{"", SEC_NS},         {"ms", MS_NS},
                                        {"s", SEC_NS},        {"m", 60 * SEC_NS},
                                        {"min", 60 * SEC_NS}, {"h", 3600 * SEC_NS}};
    char item[WORD_ITEM_BYTES];
    const char *p = item;
    struct quantity v;
    uint64_t ns = 0;

    if (!word_only_item(text, item))
        return false;
    if (!word_is(item, "none") &&
        !(read_quantity(&p, &v) && scale(&v, p, units, sizeof units / sizeof *units, &ns)))
        return false;
    *out_ns = ns;
    return true;
}

bool number_size(const char *text, struct option_size *out)
{
    static const struct unit units[] = {{"", 1},      {"b", 1},    {"k", KIB},   {"kb", KIB},
                                        {"kib", KIB}, {"m", MIB},  {"mb", MIB},  {"mib", MIB},
                                        {"g", GIB},   {"gb", GIB}, {"gib", GIB}, {"t", TIB},
                                        {"tb", TIB},  {"tib", TIB}};
    struct option_size size = {0};
    struct quantity v;

    if (!read_quantity(&text, &v))
        return false;
    if (word_is(text, "%")) {
        if (v.whole > 100 || (v.whole == 100 && v.millionths))
            return false;
        size.is_share = true;
        size.share_ppm = (uint32_t)(v.whole * 10000 + v.millionths / 100);
    } else if (!scale(&v, text, units, sizeof units / sizeof *units, &size.bytes)) {
        return false;
    }
    *out = size;
    return true;
}
