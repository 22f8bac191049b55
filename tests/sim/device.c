/* SPDX-License-Identifier: BSD-2-Clause */
/* The device table, the capacity, and the exported device functions. */
#include "tests/sim/device.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/physical.h"
#include "tests/sim/shared.h"

static struct device devices[DEVICES_MAX];

CUresult device_init(void)
{
    shared_open();
    return physical_init();
}

bool device_valid(CUdevice ordinal)
{
    return ordinal >= 0 && (uint64_t)ordinal < config.devices;
}

struct device *device_at(CUdevice ordinal)
{
    return &devices[ordinal];
}

bool device_take(CUdevice ordinal, uint64_t bytes)
{
    struct device *device = &devices[ordinal];
    device->used_bytes += bytes;
    shared_publish(ordinal, device->used_bytes);
    if (bytes <= config.capacity_bytes &&
        device->used_bytes + shared_others(ordinal) <= config.capacity_bytes)
        return true;
    device_give(ordinal, bytes);
    return false;
}

void device_give(CUdevice ordinal, uint64_t bytes)
{
    devices[ordinal].used_bytes -= bytes;
    shared_publish(ordinal, devices[ordinal].used_bytes);
}

uint64_t device_available(CUdevice ordinal)
{
    uint64_t used = devices[ordinal].used_bytes + shared_others(ordinal);
    return used < config.capacity_bytes ? config.capacity_bytes - used : 0;
}

static CUresult get_name(char *out, int length)
{
    snprintf(out, (size_t)length, "Simulated GPU");
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *out, CUdevice ordinal)
{
    memcpy(out->bytes, "simulated-gpu-00", sizeof out->bytes);
    out->bytes[15] = (char)('0' + ordinal % 10);
    out->bytes[14] = (char)('0' + ordinal / 10);
    return CUDA_SUCCESS;
}

static CUresult get_part_uuid(CUuuid *out, CUdevice ordinal)
{
    get_uuid(out, ordinal);
    if (config.mig)
        memcpy(out->bytes, "partition", 9);
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *out, CUdevice_attribute attribute, CUdevice ordinal)
{
    switch ((int)attribute) {
#define ATTRIBUTE(name, value)                                                                     \
    case CU_DEVICE_ATTRIBUTE_##name:                                                               \
        *out = (int)(value);                                                                       \
        break;
#include "tests/sim/attributes.def"
#undef ATTRIBUTE
    default:
        *out = 0;
        break;
    }
    return CUDA_SUCCESS;
}

static CUresult version(int *out)
{
    config_read();
    *out = (int)config.driver_version;
    return CUDA_SUCCESS;
}

#define OUT NEEDS(out != NULL, INVALID_VALUE)

API(cuDriverGetVersion, (int *out), OUT version(out))
API(cuDeviceGetCount, (int *out), OUT GIVE(out, (int)config.devices))
API(cuDeviceGet, (CUdevice * out, int ordinal), OUT NEEDS_DEVICE(ordinal) GIVE(out, ordinal))
API(cuDeviceGetName, (char *out, int length, CUdevice device),
    NEEDS(out != NULL && length > 0, INVALID_VALUE) NEEDS_DEVICE(device) get_name(out, length))
API(cuDeviceGetUuid, (CUuuid * out, CUdevice device),
    OUT NEEDS_DEVICE(device) get_uuid(out, device))
API(cuDeviceGetUuid_v2, (CUuuid * out, CUdevice device),
    OUT NEEDS_DEVICE(device) get_part_uuid(out, device))
API(cuDeviceTotalMem_v2, (size_t *out, CUdevice device),
    OUT NEEDS_DEVICE(device) GIVE(out, config.capacity_bytes))
API(cuDeviceGetAttribute, (int *out, CUdevice_attribute attribute, CUdevice device),
    OUT NEEDS(attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX, INVALID_VALUE)
        NEEDS_DEVICE(device) get_attribute(out, attribute, device))
