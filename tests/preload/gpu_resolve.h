/* SPDX-License-Identifier: BSD-2-Clause */
/* How a program of the driver API gets at a driver function: DRIVER(cuMemAlloc) is the function
 * that cuda.h means by that name, with its type. gpu_resolve.c has the routes; the build defines
 * one ROUTE_..., and ROUTE_LINKED needs no look-up at all. */
#pragma once

#include <cuda.h>

#define RESOLVE_STRING(text) #text
#define RESOLVE_NAME(function) RESOLVE_STRING(function)

/* The driver's function of that exported name, never NULL: a missing one ends the program. */
void (*gpu_resolve(const char *name))(void);

#ifdef ROUTE_LINKED
#define DRIVER(function) function
#else
#define DRIVER(function) ((__typeof__(&(function)))gpu_resolve(RESOLVE_NAME(function)))
#endif
