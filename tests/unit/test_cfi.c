/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/trace/cfi.c: the rules of all code of some objects are those that readelf prints. */
#include "shim/trace/cfi.c"
#include "tests/unit/cases.h"

enum { LINE_BYTES = 512, COLUMNS = 24, SIGNAL_ROWS_MOST = 4 };

#if defined(__x86_64__)
struct wanted {
    const char *path;
    uintptr_t base;
};

static int find_libc(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct place o = {.address = (uintptr_t)__errno_location};
    *(struct wanted *)arg = (struct wanted){info->dlpi_name, info->dlpi_addr};
    return find_code(info, &o);
}

static int find_program(struct dl_phdr_info *info, size_t size, void *arg)
{
    static char path[LINE_BYTES];
    ssize_t size_bytes = readlink("/proc/self/exe", path, sizeof path - 1);
    *(struct wanted *)arg = (struct wanted){path, info->dlpi_addr};
    return size_bytes > 0;
}

static int split(char *line, char *out[COLUMNS])
{
    int count = 0;
    for (char *rest = line, *word; count < COLUMNS && (word = strtok_r(rest, " \n", &rest));)
        out[count++] = word;
    return count;
}

static int column(char *const heads[COLUMNS], int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(heads[i], name) == 0)
            return i;
    return -1;
}

/* As readelf writes it: c-16, and u for what stays. */
static bool is_same(enum saved how, int64_t offset, const char *word)
{
    char mine[32];
    snprintf(mine, sizeof mine, "c%+lld", (long long)offset);
    return how == SAVED_AT    ? strcmp(mine, word) == 0
           : how == SAVED_NOT ? strcmp(word, "u") == 0
                              : word[0] != 'c';
}

/* Compares a row. False: there is none here. */
static bool compare(uintptr_t base, char *words[COLUMNS], int rbp, int ret)
{
    struct place o = {.address = base + strtoul(words[0], NULL, 16)};
    struct row row;
    char cfa[32] = "exp";
    if (!dl_iterate_phdr(find_place, &o) || !find_row(&o, &row))
        return false;
    const char *name = row.cfa_register == RBP ? "rbp" : row.cfa_register == RSP ? "rsp" : NULL;
    if (row.cfa_is_known && name)
        snprintf(cfa, sizeof cfa, "%s+%lld", name, (long long)row.cfa_offset);
    if (((name || !row.cfa_is_known) && strcmp(cfa, words[1]) != 0) ||
        (rbp > 0 && !is_same(row.rbp, row.rbp_offset, words[rbp])) ||
        (ret > 0 && row.ret != SAVED_ELSEWHERE && !is_same(row.ret, row.ret_offset, words[ret])))
        fail_msg("at %s: %s, not %s", words[0], cfa, words[1]);
    return true;
}

static void compare_all(int find(struct dl_phdr_info *, size_t, void *), unsigned least)
{
    static char heads_line[LINE_BYTES];
    char line[LINE_BYTES], command[600], *heads[COLUMNS], *words[COLUMNS];
    struct wanted its = {0};
    unsigned rows = 0, none = 0;
    int num_heads = 0;
    assert_true(dl_iterate_phdr(find, &its));
    snprintf(command, sizeof command, "readelf -wF %s 2>/dev/null", its.path);
    FILE *said = popen(command, "r");
    assert_non_null(said);
    while (fgets(line, sizeof line, said)) {
        bool is_row = strspn(line, "0123456789abcdef") == 16 && !strstr(line, "cie=") &&
                      !strstr(line, "CIE") && !strchr(line, '(');
        if (strstr(line, " LOC ")) {
            strcpy(heads_line, line);
            num_heads = split(heads_line, heads);
        } else if (is_row && num_heads && split(line, words) == num_heads) {
            rows++;
            none += !compare(its.base, words, column(heads, num_heads, "rbp"),
                             column(heads, num_heads, "ra"));
        }
    }
    pclose(said);
    if (!rows)
        skip(); /* no readelf */
    assert_true(rows >= least);
    assert_true(none <= SIGNAL_ROWS_MOST);
}

TEST_IS(the_c_librarys, compare_all(find_libc, 1000))
TEST_IS(our_own, compare_all(find_program, 20))
#endif

TEST(code_that_no_call_stands_before_has_none)
{
    struct cfi_rule rule;
    static char data[16];
    assert_int_equal(cfi_find((uintptr_t)data + 8, &rule), CFI_NO_CALL);
    assert_int_equal(cfi_find((uintptr_t)cfi_find, &rule), CFI_NO_CALL);
    assert_int_equal(cfi_find(1, &rule), CFI_NO_CALL);
    assert_int_not_equal(cfi_find((uintptr_t)__builtin_return_address(0), &rule), CFI_NO_CALL);
}

PLAY_TESTS
