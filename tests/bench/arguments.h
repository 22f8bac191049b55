/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The options of the programs here: a table says what each is and where it goes.
 */
#ifndef TESTS_BENCH_ARGUMENTS_H
#define TESTS_BENCH_ARGUMENTS_H

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* One of flag, text, count, large, real, or check alone, says of which type the option is. The last
 * one of a table has no name. */
struct argument {
    const char *name;
    bool *flag;
    const char **text;
    unsigned *count; /* from 1 to most */
    uint64_t *large; /* from 1 on */
    double *real;    /* above 0, at most `most` */
    double most;
    bool (*check)(const char *words);
};

static inline bool argument_large(const char *words, uint64_t *number)
{
    char *end;

    errno = 0;
    *number = strtoull(words, &end, 10);
    return *words >= '0' && *words <= '9' && !*end && !errno && *number;
}

static inline bool argument_real(const char *words, double most, double *number)
{
    char *end;

    *number = strtod(words, &end);
    return end != words && !*end && isfinite(*number) && *number > 0 && *number <= most;
}

static inline bool argument_take(const struct argument *argument, const char *words)
{
    uint64_t number;

    if (argument->flag)
        return *argument->flag = true;
    if (argument->text)
        *argument->text = words;
    if (argument->large)
        return argument_large(words, argument->large);
    if (argument->count) {
        bool good = argument_large(words, &number);

        *argument->count = (unsigned)number;
        return good && number <= (uint64_t)argument->most;
    }
    if (argument->real)
        return argument_real(words, argument->most, argument->real);
    return !argument->check || argument->check(words);
}

/* Reads the options; optind is then the first other argument. False, and a line about it, where one
 * is not understood. */
static inline bool arguments_parse(int argc, char **argv, const struct argument *arguments)
{
    enum { ARGUMENTS_MAX = 32 };
    struct option longs[ARGUMENTS_MAX] = {0};

    for (int i = 0; i < ARGUMENTS_MAX - 1 && arguments[i].name; i++)
        longs[i] = (struct option){.name = arguments[i].name,
                                   .has_arg = arguments[i].flag ? no_argument : required_argument,
                                   .val = i};
    for (int i; (i = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (i == '?')
            return false;
        if (!argument_take(&arguments[i], optarg)) {
            fprintf(stderr, "%s: %s is not understood\n", argv[0], optarg);
            return false;
        }
    }
    return true;
}

#endif
