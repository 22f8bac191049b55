/* SPDX-License-Identifier: BSD-2-Clause */
/* Profilers name a library in CUDA_INJECTION64_PATH. The first cuInit that succeeds loads it and
 * calls its InitializeInjection, once and without the lock of the driver. */
#pragma once

void inject(void);
