/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A tool of the build, which runs on the building machine and is not installed.
 *
 *   docgen --symbols    prints the list of exported symbols
 *   docgen --python     prints a module of Python, for the tool (scripts/gpucache) and the
 *                       documentation (scripts/docs-from-tables): the tables of options,
 * statistics, counters and commands, and the layout of a process's page. Each table is a list of
 * dictionaries, whose values are strings. The layout of a record is a dictionary of its fields.
 */
#include "shim/driver/hooks.h" /* before any header that could include cuda.h */
#include "shim/option/options.h"
#include "shim/page/layout.h"
#include "shim/trace/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

static void put_pair(const char *name, const char *text)
{
    printf("\"%s\": \"", name);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    fputs("\", ", stdout);
}

/* A row of a table: pairs of a name and a text, with NULL behind the last. */
static void put_row(const char *const pairs[])
{
    fputs("    {", stdout);
    for (; *pairs; pairs += 2)
        put_pair(pairs[0], pairs[1]);
    puts("},");
}

/* "fixed": why the option cannot change while the program runs; "": it can. */
static void put_option_row(const struct option_row *o, const char *type)
{
    put_row((const char *[]){"env", o->env, "type", type, "default", o->value, "fixed",
                             o->fixed ? o->fixed : "", "allowed", o->allowed, "help", o->help,
                             NULL});
}

static void print_tables(void)
{
    size_t i = 0;

    puts("OPTIONS = [");
#define OPTION_ROW(type)                                                                           \
    put_option_row(&option_rows[i], type);                                                         \
    i++;
#define POOL_OPTION(field, name, type, value, live, help) OPTION_ROW(#type)
#define SHIM_OPTION(field, env, type, value, live, help) OPTION_ROW(#type)
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
    puts("]\n\nSTATS = [");
#define POOL_STAT(field, kind, unit, help)                                                         \
    put_row((const char *[]){"name", #field, "kind", #kind, "unit", #unit, "help", help, NULL});
#include "pool/stats.def"
#undef POOL_STAT
#define ASYNC_STAT(field, kind, unit, help)                                                        \
    put_row((const char *[]){"name", #field, "kind", #kind, "unit", #unit, "help", help, NULL});
#include "shim/stats/async_stats.def"
#undef ASYNC_STAT
    puts("]\n\nCOUNTERS = [");
#define COUNTER(name, field, help) put_row((const char *[]){"name", #field, "help", help, NULL});
#include "shim/stats/counters.def"
#undef COUNTER
    puts("]\n\nCOMMANDS = [");
#define COMMAND(name, when, parameters, help)                                                      \
    put_row((const char *[]){"name", #name, "parameters", parameters, "help", help, NULL});
#include "shim/command/command.def"
#undef COMMAND
    puts("]\n\nTRACE_KINDS = [");
#define TRACE_KIND(name, number, a, b, aux, help)                                                  \
    put_row((const char *[]){"name", #name, "number", #number, "a", a, "b", b, "aux", aux, "help", \
                             help, NULL});
#include "shim/trace/kinds.def"
#undef TRACE_KIND
    puts("]\n");
}

/* Prints a field with its offset and its format for Python's struct. Returns its size. */
static size_t put_field(const char *name, size_t offset, size_t size_bytes, const char *format)
{
    printf("    \"%s\": (%zu, \"", name, offset);
    if (*format)
        printf("=%s\"),\n", format);
    else
        printf("=%zus\"),\n", size_bytes);
    return size_bytes;
}

#define IS_FIELD_OF(record, field, type)                                                           \
    __builtin_types_compatible_p(__typeof__(((struct record *)0)->field), type)
#define PUT_FIELD(record, field)                                                                   \
    put_field(#field, offsetof(struct record, field), sizeof(((struct record *)0)->field),         \
              IS_FIELD_OF(record, field, uint64_t)   ? "Q"                                         \
              : IS_FIELD_OF(record, field, uint32_t) ? "I"                                         \
                                                     : "")

static void print_page_constants(void)
{
    printf("PAGE_MAGIC = b\"%s\"\nPAGE_SUFFIX = \"%s\"\nPAGE_VERSION = %d\n", PAGE_MAGIC,
           PAGE_SUFFIX, PAGE_VERSION);
    printf("PAGE_BYTES = %zu\nPAGE_GPU_BYTES = %zu\nPAGE_PARK_BYTES = %zu\nPAGE_SLOT_BYTES = %zu\n",
           sizeof(struct page), sizeof(struct page_gpu), sizeof(struct page_park),
           sizeof(struct page_slot));
    printf("PAGE_GPUS_MAX = %d\nPAGE_SLOTS = %d\n", PAGE_GPUS_MAX, PAGE_SLOTS);
    printf("PAGE_REPLY_DONE = %d\nPAGE_REPLY_PARTLY = %d\nPAGE_REPLY_BAD = %d\n"
           "PAGE_REPLY_REFUSED = %d\n",
           PAGE_REPLY_DONE, PAGE_REPLY_PARTLY, PAGE_REPLY_BAD, PAGE_REPLY_REFUSED);
}

/* False: a field is missing here. */
static bool print_page_layout(void)
{
    size_t page = 0;

#define FIELD(field) page += PUT_FIELD(page, field)
    puts("\n# Name: offset in bytes, format of the module struct.\nPAGE = {");
    FIELD(magic);
    FIELD(version);
    FIELD(size_bytes);
    FIELD(pid);
    FIELD(start_ticks);
    FIELD(pid_namespace);
    FIELD(uid);
    FIELD(started_unix_ns);
    FIELD(library_version);
    FIELD(boot_id);
    FIELD(zero1);
    FIELD(sequence);
    FIELD(published_ns);
    FIELD(published_unix_ns);
    FIELD(num_gpus);
    FIELD(body_bytes);
    FIELD(asleep_since_ns);
    FIELD(needs_since_ns);
    FIELD(zero2);
    FIELD(doorbell);
    FIELD(zero3);
    FIELD(watched_until_ns);
    FIELD(zero4);
    FIELD(gpus);
    FIELD(parks);
    FIELD(zero5);
    FIELD(slots);
    FIELD(body);
#undef FIELD
    puts("}\n");
    return page == sizeof(struct page);
}

/* The same, of what a page has several of. */
static bool print_part_layouts(void)
{
    size_t gpu = 0, park = 0, slot = 0;

#define FIELD(field) gpu += PUT_FIELD(page_gpu, field)
    puts("PAGE_GPU = {");
    FIELD(uuid);
    FIELD(idle_bytes);
    FIELD(allocated_bytes);
    FIELD(reserved_bytes);
    FIELD(returned_ns);
    FIELD(regrown_ns);
    FIELD(async_idle_bytes);
#undef FIELD
#define FIELD(field) park += PUT_FIELD(page_park, field)
    puts("}\n\nPAGE_PARK = {");
    FIELD(away_bytes);
    FIELD(needs_bytes);
#undef FIELD
#define FIELD(field) slot += PUT_FIELD(page_slot, field)
    puts("}\n\nPAGE_SLOT = {");
    FIELD(ask_sequence);
    FIELD(ask_bytes);
    FIELD(reply_sequence);
    FIELD(reply_bytes);
    FIELD(reply_code);
    FIELD(parks_sequence);
    FIELD(reply_value);
    FIELD(ask);
    FIELD(reply);
#undef FIELD
    puts("}");
    return gpu == sizeof(struct page_gpu) && park == sizeof(struct page_park) &&
           slot == sizeof(struct page_slot);
}

/* The same. */
static bool print_trace_layout(void)
{
    size_t header = 0;

    printf("\nTRACE_MAGIC = b\"%s\"\nTRACE_VERSION = %d\nTRACE_CHUNK_MAGIC = 0x%x\n", TRACE_MAGIC,
           TRACE_VERSION, TRACE_CHUNK_MAGIC);
    printf("TRACE_BYTE_ORDER = 0x%x\nTRACE_HEADER_BYTES = %d\nTRACE_CHUNK_BYTES = %d\n",
           TRACE_BYTE_ORDER, TRACE_HEADER_BYTES, TRACE_CHUNK_BYTES);
    printf("TRACE_CHUNK_HEAD_BYTES = %zu\nTRACE_WIDE = 0x%x\nTRACE_STEP_SHIFT = %d\n",
           sizeof(struct trace_chunk), TRACE_WIDE, TRACE_STEP_SHIFT);
    printf("TRACE_UNIT_SHIFT = %d\nTRACE_TEXT_MAX = %d\n\nTRACE_HEADER = {\n", TRACE_UNIT_SHIFT,
           TRACE_TEXT_MAX);
#define FIELD(field) header += PUT_FIELD(trace_header, field)
    FIELD(magic);
    FIELD(version);
    FIELD(header_bytes);
    FIELD(chunk_bytes);
    FIELD(byte_order);
    FIELD(clock);
    FIELD(pid);
    FIELD(start_unix_ns);
    FIELD(start_ns);
    FIELD(start_ticks);
    FIELD(last_ns);
    FIELD(last_ticks);
    FIELD(boot_id);
    FIELD(library_version);
    FIELD(program);
    FIELD(command);
    FIELD(num_lost);
#undef FIELD
    puts("}");
    return header == sizeof(struct trace_header);
}

/* Returns the exit status: 1, with a message, if a field of a layout is missing. */
static int print_python(void)
{
    printf("# SPDX-License-"
           "Identifier: BSD-2-Clause\n"
           "\"\"\"Tables of libgpucache %s and the layouts of its pages and traces. "
           "Generated: docgen --python.\"\"\"\n\nVERSION = \"%s\"\n\n",
           GPUCACHE_VERSION, GPUCACHE_VERSION);
    print_tables();
    print_page_constants();
    if (print_page_layout() && print_part_layouts() && print_trace_layout())
        return 0;
    fputs("docgen: a field of shim/page/layout.h or shim/trace/format.h is missing\n", stderr);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--symbols") == 0) {
        print_symbols();
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--python") == 0)
        return print_python();
    fputs("usage: docgen --symbols | --python\n", stderr);
    return 2;
}
