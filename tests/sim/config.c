/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads config.def from the environment. */
#include "tests/sim/config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct config config;

bool config_parse_number(const char *text, uint64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    uint64_t value = strtoull(text, &end, 0);
    static const char suffixes[] = "KMGT";
    const char *suffix = *end != '\0' ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    if (suffix != NULL) {
        value <<= 10 * (suffix - suffixes + 1);
        end++;
    }
    if (*end != '\0')
        return false;
    *out = value;
    return true;
}

static uint64_t number(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    uint64_t value = fallback;
    if (text != NULL && !config_parse_number(text, &value))
        fprintf(stderr, "sim: %s=%s is not a number, using %llu\n", name, text,
                (unsigned long long)fallback);
    return value;
}

static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? strdup(text) : NULL;
}

void config_read(void)
{
    static bool done;
    if (done)
        return;
    done = true;
#define NUMBER(field, name, value, help) config.field = number(name, value);
#define TEXT(field, name, help) config.field = text_of(name);
#include "tests/sim/config.def"
    if (config.devices > 16)
        config.devices = 16;
    config.capacity_bytes = round_up(config.capacity_bytes, PAGE_BYTES);
}
