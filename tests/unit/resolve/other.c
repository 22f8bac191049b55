/* SPDX-License-Identifier: BSD-2-Clause */
/* Another library that happens to have a function with a driver function's name. */
int cuMemAlloc_v2(void);

int cuMemAlloc_v2(void)
{
    return 4242;
}
