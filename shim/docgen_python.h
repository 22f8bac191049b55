/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The part of docgen that prints a module of Python for the tool (scripts/gpucache). The module has
 * the tables of options, statistics, counters and commands, and the layout of a process's page.
 */
#ifndef SHIM_DOCGEN_PYTHON_H
#define SHIM_DOCGEN_PYTHON_H

/* Prints the module to stdout. Returns the exit status: 1, with a message, if a field of
 * shim/page/layout.h is missing in the layout. */
int docgen_python(void);

#endif
