/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernel launches. */

#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/module.h"
#include "tests/sim/thread.h"

/* shape is grid x, y, z and block x, y, z. The parameters are read now. */
static CUresult launch_command(struct command *out, CUcontext context, CUfunction handle,
                               const unsigned *shape, void **params)
{
    CUfunction function = module_function(handle, context);
    REFUSE(function == NULL, INVALID_HANDLE);
    for (int i = 0; i < 6; i++)
        REFUSE(shape[i] == 0, INVALID_VALUE);
    REFUSE((uint64_t)shape[3] * shape[4] * shape[5] > 1024, INVALID_VALUE);
    REFUSE(function->kernel == KERNEL_COUNT, NOT_SUPPORTED);
    *out = (struct command){.kind = COMMAND_KERNEL, .launch.kernel = function->kernel};
    if (params == NULL) /* packed parameters are not simulated */
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < kernel_parameter_count(function->kernel); i++)
        memcpy(&out->launch.args[i], params[i], kernel_parameter_bytes(function->kernel, i));
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction handle, const unsigned *shape, CUstream stream_handle,
                       void **params, bool early)
{
    CUstream stream;
    struct command command;
    TRY(stream_resolve(stream_handle, &stream));
    /* A stream of a green context takes launches while the primary context is current, and the
     * other way round. */
    if (thread_current() == NULL ||
        context_owner(stream->context) != context_owner(thread_current()))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult rc = launch_command(&command, stream->context, handle, shape, params);
    if (rc == CUDA_SUCCESS && !stream->context->launched &&
        !context_take(stream->context, config.object_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->context->launched = stream->context->launched || rc == CUDA_SUCCESS;
    command.launch.early = early;
    return rc == CUDA_SUCCESS ? stream_submit(stream, &command) : rc;
}

static bool is_early(const CUlaunchConfig *launch_config)
{
    for (unsigned i = 0; i < launch_config->numAttrs; i++)
        if (launch_config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
            launch_config->attrs[i].value.programmaticStreamSerializationAllowed)
            return true;
    return false;
}

#define SHAPE ((const unsigned[]){gx, gy, gz, bx, by, bz})

API_BOTH(cuLaunchKernel, cuLaunchKernel_ptsz,
         (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
          unsigned bz, unsigned shared_bytes, CUstream stream, void **params, void **extra),
         launch(function, SHAPE, STREAM(stream), params, false))
API_BOTH(cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
         (const CUlaunchConfig *config_value, CUfunction function, void **params, void **extra),
         config_value == NULL
             ? CUDA_ERROR_INVALID_VALUE
             : launch(function,
                      (const unsigned[]){config_value->gridDimX, config_value->gridDimY,
                                         config_value->gridDimZ, config_value->blockDimX,
                                         config_value->blockDimY, config_value->blockDimZ},
                      STREAM(config_value->hStream), params, is_early(config_value)))
