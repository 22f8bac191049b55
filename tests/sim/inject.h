/* SPDX-License-Identifier: BSD-2-Clause */
/* The library that CUDA_INJECTION64_PATH names, as profilers set it: loaded by the first cuInit that
 * succeeds, and told so by its InitializeInjection. Without the driver's lock; once. */
#pragma once

void inject(void);
