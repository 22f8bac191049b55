/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A tool of the build: prints the .def tables as documentation, and the list of exported symbols.
 * It runs on the building machine and is not installed.
 *
 *   docgen --options|--stats|--counters=markdown|roff|help
 *   docgen --symbols
 *   docgen --python         prints a module of Python with the tables and the layout of a page
 *   docgen --fill FILE      prints FILE with tables (roff) for its lines @OPTIONS@, @STATS@ and
 *                           @COUNTERS@, and the version for each @VERSION@
 */
#include "shim/docgen_python.h"
#include "shim/driver/hooks.h" /* before any header that could include cuda.h */
#include "shim/option/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum format { MARKDOWN, ROFF, HELP };

struct entry {
    const char *name;
    const char *note; /* unit and kind */
    const char *help;
};

static const struct entry stats[] = {
#define UNIT_BYTES "bytes"
#define UNIT_COUNT "number"
#define UNIT_NS "nanoseconds"
#define KIND_GAUGE "now"
#define KIND_PEAK "peak"
#define KIND_COUNTER "total"
#define KIND_AT_PEAK "at the peak"
#define POOL_STAT(field, kind, unit, help) {#field, UNIT_##unit ", " KIND_##kind, help},
#include "pool/stats.def"
#undef POOL_STAT
#define ASYNC_STAT(field, kind, unit, help) {#field, UNIT_##unit ", " KIND_##kind, help},
#include "shim/stats/async_stats.def"
#undef ASYNC_STAT
};

static const struct entry counters[] = {
#define COUNTER(name, field, help) {#field, "number, total", help},
#include "shim/stats/counters.def"
#undef COUNTER
};

static void put_markdown(const char *text)
{
    for (; *text; text++) {
        if (strchr("|*<_", *text))
            putchar('\\');
        putchar(*text);
    }
}

/* Prints text as roff, and `stop` and a newline behind it. Each sentence begins a line. No line is
 * a control line, no character is an escape, and a reader can copy a minus sign. */
static void put_roff(const char *text, const char *stop)
{
    int column = 0;

    while (*text) {
        int n = (int)strcspn(text, " ");
        bool ends_sentence = n > 1 && text[n - 1] == '.';

        if (column && column + 1 + n > 76) {
            putchar('\n');
            column = 0;
        }
        column += printf("%s", column ? " " : strchr(".'", *text) ? "\\&" : "") + n;
        for (int i = 0; i < n; i++)
            fputs(text[i] == '\\' ? "\\e" : text[i] == '-' ? "\\-" : (char[]){text[i], 0}, stdout);
        for (text += n; *text == ' '; text++)
            ;
        if (ends_sentence && *text) {
            putchar('\n');
            column = 0;
        }
    }
    puts(stop);
}

/* Prints text in lines of at most 79 letters, `indent` blanks included. */
static void put_wrapped(const char *text, int indent)
{
    int room = 79 - indent;

    while (*text) {
        int n = (int)strlen(text);

        if (n > room) {
            for (n = room; n > 0 && text[n] != ' '; n--)
                ;
            if (!n)
                n = (int)strcspn(text, " ");
        }
        printf("%*s%.*s\n", indent, "", n, text);
        for (text += n; *text == ' '; text++)
            ;
    }
}

static void print_options(enum format format)
{
    if (format == MARKDOWN)
        puts("| variable | default | live | it takes | meaning |\n|---|---|---|---|---|");
    for (size_t i = 0; i < num_option_rows; i++) {
        const struct option_row *o = &option_rows[i];
        const char *value = o->value[0] ? o->value : "unset";

        switch (format) {
        case MARKDOWN:
            printf("| `%s` | %s | %s | ", o->env, value, o->fixed ? "" : "yes");
            put_markdown(o->allowed);
            fputs(" | ", stdout);
            put_markdown(o->help);
            puts(" |");
            break;
        case ROFF:
            printf(".TP\n.B %s\n", o->env);
            put_roff(o->help, ".");
            puts("It takes");
            put_roff(o->allowed, ";");
            puts("default:");
            put_roff(value, ".");
            if (o->fixed)
                put_roff("Fixed while the program runs:", "");
            put_roff(o->fixed ? o->fixed : "It can change while the program runs", ".");
            break;
        case HELP:
            printf("  %s (default: %s%s)\n", o->env, value, o->fixed ? "" : ", live");
            put_wrapped(o->help, 6);
            break;
        }
    }
}

static void print_entries(const struct entry *entries, size_t num_entries, enum format format)
{
    if (format == MARKDOWN)
        puts("| field | unit | meaning |\n|---|---|---|");
    for (size_t i = 0; i < num_entries; i++) {
        const struct entry *e = &entries[i];

        switch (format) {
        case MARKDOWN:
            printf("| `%s` | %s | ", e->name, e->note);
            put_markdown(e->help);
            puts(" |");
            break;
        case ROFF:
            printf(".TP\n.B %s\n", e->name);
            put_roff(e->help, ".");
            printf("(%s)\n", e->note);
            break;
        case HELP:
            printf("  %s (%s)\n", e->name, e->note);
            put_wrapped(e->help, 6);
            break;
        }
    }
}

static void print_symbols(void)
{
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group) puts(#symbol);
#include "shim/driver/hooks.def"
#define SUBMIT(symbol, pfn, params, args, stream, flags) puts(#symbol);
#include "shim/driver/submit.def"
#define EXPORT(symbol, what) puts(#symbol);
#include "shim/exports.def"
}

static bool print_table(const char *table, enum format format)
{
    if (strcmp(table, "options") == 0)
        print_options(format);
    else if (strcmp(table, "stats") == 0)
        print_entries(stats, sizeof(stats) / sizeof(stats[0]), format);
    else if (strcmp(table, "counters") == 0)
        print_entries(counters, sizeof(counters) / sizeof(counters[0]), format);
    else
        return false;
    return true;
}

static void put_line(const char *line)
{
    static const char mark[] = "@VERSION@";
    const char *at;

    while ((at = strstr(line, mark)) != NULL) {
        printf("%.*s%s", (int)(at - line), line, GPUCACHE_VERSION);
        line = at + sizeof(mark) - 1;
    }
    fputs(line, stdout);
}

static int fill(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[1024];

    if (!f) {
        perror(path);
        return 1;
    }
    while (fgets(line, sizeof(line), f)) {
        if (strcmp(line, "@OPTIONS@\n") == 0)
            print_table("options", ROFF);
        else if (strcmp(line, "@STATS@\n") == 0)
            print_table("stats", ROFF);
        else if (strcmp(line, "@COUNTERS@\n") == 0)
            print_table("counters", ROFF);
        else
            put_line(line);
    }
    fclose(f);
    return 0;
}

static int usage(void)
{
    fputs("usage: docgen --options|--stats|--counters=markdown|roff|help | --symbols | --python | "
          "--fill FILE\n",
          stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static const char *const formats[] = {
        [MARKDOWN] = "markdown", [ROFF] = "roff", [HELP] = "help"};
    char *word;

    if (argc == 3 && strcmp(argv[1], "--fill") == 0)
        return fill(argv[2]);
    if (argc != 2 || strncmp(argv[1], "--", 2) != 0)
        return usage();
    if (strcmp(argv[1], "--symbols") == 0) {
        print_symbols();
        return 0;
    }
    if (strcmp(argv[1], "--python") == 0)
        return docgen_python();
    word = strchr(argv[1], '=');
    if (word) {
        *word++ = '\0';
        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
            if (strcmp(word, formats[i]) == 0 && print_table(argv[1] + 2, (enum format)i))
                return 0;
    }
    return usage();
}
