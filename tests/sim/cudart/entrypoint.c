/* SPDX-License-Identifier: BSD-2-Clause */
/* cudaGetDriverEntryPoint and its form with a version: the driver's own answer, asked with the
 * runtime's version where the caller names none. No state of its own. */
#include "tests/sim/cudart/cudart.h"

static cudaError_t find(bool per_thread, const char *symbol, void **function, unsigned version,
                        unsigned long long flags, enum cudaDriverEntryPointQueryResult *status)
{
    if (symbol == NULL || function == NULL)
        return cudaErrorInvalidValue;
    if (flags == cudaEnableDefault && per_thread)
        flags = cudaEnablePerThreadDefaultStream;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *answer = NULL;
    cudaError_t error = driver_lookup(symbol, &answer, (int)version, flags, &found);
    /* If the caller looks at the status, a name that the driver lacks is no error. */
    if (error == cudaErrorSymbolNotFound && status != NULL)
        error = cudaSuccess;
    if (error != cudaSuccess)
        return error;
    *function = answer;
    if (status != NULL)
        *status = answer != NULL ? cudaDriverEntryPointSuccess
                  : found == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      ? cudaDriverEntryPointVersionNotSufficent
                      : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

#if RUNTIME_VERSION >= 12050
static cudaError_t
cudaGetDriverEntryPointByVersion_flavour(bool per_thread, const char *symbol, void **function,
                                         unsigned version, unsigned long long flags,
                                         enum cudaDriverEntryPointQueryResult *status)
{
    return IN_DRIVER(find(per_thread, symbol, function, version, flags, status));
}
TWINS(cudaGetDriverEntryPointByVersion, ptsz,
      (const char *symbol, void **function, unsigned version, unsigned long long flags,
       enum cudaDriverEntryPointQueryResult *status),
      (symbol, function, version, flags, status))
#endif

static cudaError_t cudaGetDriverEntryPoint_flavour(bool per_thread, const char *symbol,
                                                   void **function, unsigned long long flags,
                                                   enum cudaDriverEntryPointQueryResult *status)
{
    if (RUNTIME_VERSION < 12000)
        status = NULL; /* there was no such parameter */
    return IN_DRIVER(find(per_thread, symbol, function, RUNTIME_VERSION, flags, status));
}
TWINS(cudaGetDriverEntryPoint, ptsz,
      (const char *symbol, void **function, unsigned long long flags,
       enum cudaDriverEntryPointQueryResult *status),
      (symbol, function, flags, status))
