# SPDX-License-Identifier: BSD-2-Clause
"""Every function of the driver's headers that names device memory, itself or in a structure, is a
use or a question of the gate (shim/park/gate.h). Or it is here, with the reason why it may pass
while memory is away."""
import re

import driver_headers as headers
import lint

GIVES = 'gives the address of memory that is no pool\'s, or that is new'
FREES = 'frees: a record of ours, or memory that is no pool\'s'
MAPS = 'for memory that the program maps itself; the driver sees no address of a pool (map.c)'
RECORD = 'gives back what was set before (measured on an H100: also of an address that is away)'
MANAGED = 'for managed memory (measured on an H100: the same answer for an address that is away)'
SHORT = 'has an address of 32 bits, which no pool has'
PASSES = {
    'cuExternalMemoryGetMappedBuffer': GIVES,
    'cuGLMapBufferObject': GIVES,
    'cuGLMapBufferObject_v2': GIVES,
    'cuGLMapBufferObjectAsync': GIVES,
    'cuGLMapBufferObjectAsync_v2': GIVES,
    'cuGraphAddMemAllocNode': GIVES,
    'cuGraphicsResourceGetMappedPointer': GIVES,
    'cuGraphicsResourceGetMappedPointer_v2': GIVES,
    'cuIpcOpenMemHandle': GIVES,
    'cuIpcOpenMemHandle_v2': GIVES,
    'cuLibraryGetGlobal': GIVES,
    'cuLibraryGetManaged': GIVES,
    'cuMemAddressReserve': GIVES,
    'cuMemAlloc': GIVES,
    'cuMemAlloc_v2': GIVES,
    'cuMemAllocAsync': GIVES,
    'cuMemAllocFromPoolAsync': GIVES,
    'cuMemAllocManaged': GIVES,
    'cuMemAllocPitch': GIVES,
    'cuMemAllocPitch_v2': GIVES,
    'cuMemPoolImportPointer': GIVES,
    'cuModuleGetGlobal': GIVES,
    'cuModuleGetGlobal_v2': GIVES,
    'cuGraphAddMemFreeNode': FREES,
    'cuIpcCloseMemHandle': FREES,
    'cuMemFree': FREES,
    'cuMemFree_v2': FREES,
    'cuMemFreeAsync': FREES,
    'cuMemAddressFree': MAPS,
    'cuMemMap': MAPS,
    'cuMemSetAccess': MAPS,
    'cuMemUnmap': MAPS,
    'cuMulticastBindAddr': MAPS,
    'cuMulticastBindAddr_v2': MAPS,
    'cuGraphBatchMemOpNodeGetParams': RECORD,
    'cuGraphMemAllocNodeGetParams': RECORD,
    'cuGraphMemFreeNodeGetParams': RECORD,
    'cuGraphMemcpyNodeGetParams': RECORD,
    'cuGraphMemsetNodeGetParams': RECORD,
    'cuGraphNodeGetParams': RECORD,
    'cuSurfObjectGetResourceDesc': RECORD,
    'cuTexObjectGetResourceDesc': RECORD,
    'cuTexRefGetAddress': RECORD,
    'cuTexRefGetAddress_v2': RECORD,
    'cuMemAdvise': MANAGED,
    'cuMemAdvise_v2': MANAGED,
    'cuMemRangeGetAttribute': MANAGED,
    'cuMemRangeGetAttributes': MANAGED,
    'cuMemGetAddressRange': SHORT,
    'cuMemHostGetDevicePointer': SHORT,
    'cuTexRefSetAddress': SHORT,
    'cuTexRefSetAddress2D': SHORT,
    'cuMemPoolExportPointer': 'for memory of the driver\'s own pools',
    'cuSurfObjectCreate': 'for arrays, which are no pool\'s',
}

RENAMED = re.compile(r'#\s*define\s+(cu\w+)\s+(?:__CUDA_API_\w+\()?(cu\w+)')
WRAPPER = re.compile(r'^CUresult (cu\w+)\([^{;]*\)\n\{\n(.*?)^\}', re.MULTILINE | re.DOTALL)


def namers(texts):
    """The exported names of the functions that name device memory. In the first part of a header
    macros rename them; in the second, after the macros are undefined, they are as they stand."""
    types = headers.holders(' '.join(map(headers.flat, texts)), 'CUdeviceptr', 'CUdeviceptr_v1',
                            'CUdeviceptr_v2')
    names = set()
    for text in texts:
        first, _, second = text.partition('#undef cu')
        renamed = dict(RENAMED.findall(first))
        for part, names_of in ((first, renamed), (second, {})):
            names |= {names_of.get(name, name) for name, params
                      in headers.DECLARATION.findall(headers.flat(part)) if types.search(params)}
    # Functions that take addresses of either side by a plain pointer
    return names | {'cuMemHostGetFlags'}


def gated(tables, wrappers):
    names = headers.listed(tables, 'HOOK_NAMES|HOOK_QUESTION')
    return names | {name for name, body in WRAPPER.findall(wrappers)
                    if 'gate_use_begin(' in body or 'gate_ask_begin(' in body}


def check(texts, tables, wrappers, passes):
    return headers.complaints(
        namers(texts), gated(tables, wrappers), passes, 'waits at the gate, and is said to pass',
        'names device memory: it is no use, and no reason is given')


def main():
    texts, tables = headers.read(lambda texts: len(namers(texts)), 'submit.def', 'passed.def')
    wrappers = '\n'.join(lint.sources('shim/entry', suffixes=('.c',)).values())
    new = ['CUresult CUDAAPI cuNew(CUdeviceptr at);']
    held = ['typedef struct n_st { int n; union { CUdeviceptr at; } of; } n_v1; typedef n_v1 n; '
            'CUresult CUDAAPI cuNew(const n *p);']
    ungated = wrappers.replace('rc = gate_ask_begin(&use, dptr)', 'rc = CUDA_SUCCESS')
    lint.verdict(
        check(texts, tables, wrappers, PASSES),
        {'a row gone': check(texts, tables.replace('cuMemcpyHtoD_v2,', 'x,'), wrappers, PASSES),
         'a row that only passes': check(texts, tables.replace('HOOK_NAMES(cuGraphAddMemcpyNode,',
                                                               'HOOK_PASSED(x,'), wrappers, PASSES),
         'a wrapper without a gate': check(texts, tables, ungated, PASSES),
         'a new function': check(texts + new, tables, wrappers, PASSES),
         'memory in a structure': check(texts + held, tables, wrappers, PASSES),
         'a reason for nothing': check(texts, tables, wrappers,
                                       {**PASSES, 'cuGraphAddMemcpyNode': RECORD})})


main()
