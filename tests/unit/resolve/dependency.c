/* SPDX-License-Identifier: BSD-2-Clause */
/* What only the plugin depends on: the next definition of one of its functions, and one of its own.
 */
int next_of_plugin(void);
int only_in_dependency(void);

int next_of_plugin(void)
{
    return 2;
}

int only_in_dependency(void)
{
    return 3;
}
