# SPDX-License-Identifier: BSD-2-Clause
"""Every function of the driver's headers that names device memory, itself or in a structure, is a
use or a question of the gate (shim/park/gate.h). Or it is here, with the reason why it may pass
while memory is away."""
import argparse
import pathlib
import re

import lint

HEADERS = ('cuda.h', 'cudaEGL.h', 'cudaGL.h', 'cudaVDPAU.h')

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

DECLARATION = re.compile(r'\bCUresult\s+CUDAAPI\s+(cu\w+)\s*\(([^;{]*)\)\s*;')
BODY = r'\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}'
STRUCT = re.compile(r'\btypedef\s+(?:struct|union)\s+\w*\s*' + BODY + r'\s*(\w+)\s*;')
ALIAS = re.compile(r'\btypedef\s+(?:const\s+)?(\w+)\s+(\w+)\s*;')
RENAMED = re.compile(r'#\s*define\s+(cu\w+)\s+(?:__CUDA_API_\w+\()?(cu\w+)')
SUBMITS = re.compile(r'^SUBMIT\(\s*(\w+)', re.MULTILINE)
PAIR = re.compile(r'^SUBMIT_PAIR\(\s*(\w+)\s*,\s*\w+\s*,\s*(\w+)', re.MULTILINE)
ROW = re.compile(r'^HOOK_(?:NAMES|QUESTION)\(\s*(\w+)', re.MULTILINE)
WRAPPER = re.compile(r'^CUresult (cu\w+)\([^{;]*\)\n\{\n(.*?)^\}', re.MULTILINE | re.DOTALL)


def holders(code):
    """The types by which a function names device memory."""
    types = {'CUdeviceptr', 'CUdeviceptr_v1', 'CUdeviceptr_v2'}
    grown = True
    while grown:
        words = re.compile(r'\b(' + '|'.join(types) + r')\b')
        found = {name for body, name in STRUCT.findall(code) if words.search(body)}
        found |= {name for of, name in ALIAS.findall(code) if of in types}
        grown = not found <= types
        types |= found
    return re.compile(r'\b(' + '|'.join(sorted(types)) + r')\b')


def namers(texts):
    """The exported names of the functions that name device memory. In the first part of a header
    macros rename them; in the second, after the macros are undefined, they are as they stand."""
    code = re.sub(r'\s+', ' ', ' '.join(lint.code_of(text) for text in texts))
    types = holders(code)
    names = set()
    for text in texts:
        first, _, second = text.partition('#undef cu')
        renamed = dict(RENAMED.findall(first))
        for part, names_of in ((first, renamed), (second, {})):
            part = re.sub(r'\s+', ' ', lint.code_of(part))
            names |= {names_of.get(name, name) for name, params in DECLARATION.findall(part)
                      if types.search(params)}
    # Functions that take addresses of either side by a plain pointer
    return names | {'cuMemHostGetFlags'}


def gated(tables, wrappers):
    names = set(SUBMITS.findall(tables)) | set(ROW.findall(tables))
    for pair in PAIR.findall(tables):
        names.update(pair)
    return names | {name for name, body in WRAPPER.findall(wrappers)
                    if 'gate_use_begin(' in body or 'gate_ask_begin(' in body}


def check(texts, tables, wrappers, passes):
    known = gated(tables, wrappers)
    found = []
    for name in sorted(namers(texts)):
        plain = re.sub(r'_pt(sz|ds)$', '', name)
        if plain in passes and name in known:
            found.append(f'{name} waits at the gate, and is said to pass')
        elif plain not in passes and name not in known:
            found.append(f'{name} names device memory: it is no use, and no reason is given')
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('include', type=pathlib.Path, help="folder of the driver's headers")
    folder = parser.parse_args().include
    texts = [(folder / name).read_text(errors='replace')
             for name in HEADERS if (folder / name).exists()]
    tables = '\n'.join(lint.code_of((lint.ROOT / 'shim' / name).read_text())
                       for name in ('driver/submit.def', 'driver/passed.def'))
    wrappers = '\n'.join(lint.sources('shim/entry', suffixes=('.c',)).values())
    if len(namers(texts)) < 100:
        lint.verdict([f'{folder}: {len(namers(texts))} functions name memory: nothing was read'],
                     {})
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
