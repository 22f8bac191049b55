/* SPDX-License-Identifier: BSD-2-Clause */
/* A library with every kind of symbol that a lookup by name tells apart; versions.map names the
 * versions. */
int two_versions_old(void);
int two_versions_new(void);
int hidden_version_old(void);
int weak_function(void);
int indirect_function(void);
extern int common_object;
extern _Thread_local int thread_object;

int two_versions_old(void)
{
    return 1;
}
int two_versions_new(void)
{
    return 2;
}
int hidden_version_old(void)
{
    return 3;
}
__asm__(".symver two_versions_old, two_versions@VERSIONS_1");
__asm__(".symver two_versions_new, two_versions@@VERSIONS_2");
__asm__(".symver hidden_version_old, hidden_version@VERSIONS_1");

__attribute__((weak)) int weak_function(void)
{
    return 4;
}

static int five(void)
{
    return 5;
}
/* clang does not count the use by name below. */
__attribute__((unused)) static int (*choose(void))(void)
{
    return five;
}
__attribute__((ifunc("choose"))) int indirect_function(void);

int common_object = 6;
_Thread_local int thread_object = 7;
