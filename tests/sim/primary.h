/* SPDX-License-Identifier: BSD-2-Clause */
/* Counted use of primary contexts. Driver lock. */
#ifndef SIM_PRIMARY_H
#define SIM_PRIMARY_H

#include "tests/sim/driver.h"

CUresult primary_retain(CUcontext *out, CUdevice ordinal);
CUresult primary_release(CUdevice ordinal);

#endif
