/* SPDX-License-Identifier: BSD-2-Clause */
/* What cuGetProcAddress knows of a function: the base name, the version that brought this variant,
 * enum function_flag, and the address. */
#ifndef SIM_PROC_H
#define SIM_PROC_H

struct proc_row {
    const char *base;
    int since;
    unsigned flags;
    void (*address)(void);
};

/* The functions that are found and not simulated (variants.def). The last row has a
 * base of NULL. */
extern const struct proc_row proc_unsimulated[];

#endif
