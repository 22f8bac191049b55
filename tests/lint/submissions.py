# SPDX-License-Identifier: BSD-2-Clause
"""Every function of the driver's headers that takes a stream, itself or in a structure, is in a
table of wrapped functions. Or it is here, with the reason why it may go by unseen."""
import argparse
import pathlib
import re

import lint

HEADERS = ('cuda.h', 'cudaEGL.h', 'cudaGL.h', 'cudaVDPAU.h', 'cudaProfiler.h')

ASKS = 'asks only'
WAITS = 'orders work or waits for it, and touches no memory'
EDGES = 'changes the edges of a capture'
GL = 'work on a buffer of OpenGL, which is no memory of the pool'
GRAPH = 'takes the memory of the graph itself; launches are seen'
ARGUED = {
    'cuEventRecord': WAITS,
    'cuEventRecordWithFlags': WAITS,
    'cuStreamWaitEvent': WAITS,
    'cuStreamQuery': WAITS,
    'cuStreamSynchronize': WAITS,
    'cuOccupancyMaxActiveClusters': ASKS,
    'cuOccupancyMaxPotentialClusterSize': ASKS,
    'cuStreamGetAttribute': ASKS,
    'cuStreamGetCaptureInfo': ASKS,
    'cuStreamGetCaptureInfo_v2': ASKS,
    'cuStreamGetCaptureInfo_v3': ASKS,
    'cuStreamGetCtx': ASKS,
    'cuStreamGetCtx_v2': ASKS,
    'cuStreamGetDevResource': ASKS,
    'cuStreamGetDevice': ASKS,
    'cuStreamGetFlags': ASKS,
    'cuStreamGetGreenCtx': ASKS,
    'cuStreamGetId': ASKS,
    'cuStreamGetPriority': ASKS,
    'cuStreamIsCapturing': ASKS,
    'cuStreamCopyAttributes': 'copies what cuStreamSetAttribute has set, which is seen',
    'cuStreamUpdateCaptureDependencies': EDGES,
    'cuStreamUpdateCaptureDependencies_v2': EDGES,
    'cuGLMapBufferObjectAsync': GL,
    'cuGLMapBufferObjectAsync_v2': GL,
    'cuGLUnmapBufferObjectAsync': GL,
    'cuGraphInstantiateWithParams': GRAPH,
}

DECLARATION = re.compile(r'\bCUresult\s+CUDAAPI\s+(cu\w+)\s*\(([^;{]*)\)\s*;')
STRUCT = re.compile(r'\btypedef\s+struct\s+\w+\s*\{([^{}]*)\}\s*(\w+)\s*;')
ALIAS = re.compile(r'\btypedef\s+(\w+)\s+(\w+)\s*;')
PER_THREAD = re.compile(r'#\s*define\s+cu\w+\s+__CUDA_API_(PTSZ|PTDS)\((cu\w+)\)')
ROW = re.compile(r'^(?:HOOK(?:_(?!CALLED|PASSED|NAMES|QUESTION)\w+)?|SUBMIT)\(\s*(\w+)',
                 re.MULTILINE)
PAIR = re.compile(r'^SUBMIT_PAIR\(\s*(\w+)\s*,\s*\w+\s*,\s*(\w+)', re.MULTILINE)


def holders(code):
    """The types by which a function gets a stream."""
    types = {'CUstream'}
    grown = True
    while grown:
        words = re.compile(r'\b(' + '|'.join(types) + r')\b')
        found = {name for body, name in STRUCT.findall(code) if words.search(body)}
        found |= {name for of, name in ALIAS.findall(code) if of in types}
        grown = not found <= types
        types |= found
    return re.compile(r'\b(' + '|'.join(sorted(types)) + r')\b')


def takers(code):
    """Names of the functions that take a stream, those with per-thread default streams too."""
    types = holders(code)
    names = {name for name, params in DECLARATION.findall(code) if types.search(params)}
    per_thread = {f'{name}_{kind.lower()}'
                  for kind, name in PER_THREAD.findall(code) if name in names}
    return names | per_thread


def check(code, tables, argued):
    wrapped = set(ROW.findall(tables))
    for pair in PAIR.findall(tables):
        wrapped.update(pair)
    found = []
    for name in sorted(takers(code)):
        plain = re.sub(r'_pt(sz|ds)$', '', name)
        if plain in argued and name in wrapped:
            found.append(f'{name} is wrapped, and argued to need it not')
        elif plain not in argued and name not in wrapped:
            found.append(f'{name} takes a stream: it is in no table, and not argued for')
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('include', type=pathlib.Path, help="folder of the driver's headers")
    folder = parser.parse_args().include
    texts = [(folder / name).read_text(errors='replace')
             for name in HEADERS if (folder / name).exists()]
    code = re.sub(r'\s+', ' ', ' '.join(lint.code_of(text) for text in texts))
    tables = '\n'.join(lint.code_of((lint.ROOT / 'shim' / name).read_text())
                       for name in ('driver/submit.def', 'driver/hooks.def',
                                    'driver/passed.def'))
    if len(takers(code)) < 100:
        lint.verdict([f'{folder}: {len(takers(code))} functions take a stream: nothing was read'],
                     {})
    new = 'CUresult CUDAAPI cuNew(int *n, CUstream *stream);'
    held = 'typedef struct n_st { CUstream s; } n_v1; typedef n_v1 n; CUresult CUDAAPI cuNew(n *p);'
    fewer = tables.replace('SUBMIT_PAIR(cuMemsetD8Async,', 'SUBMIT_PAIR(x,')
    lint.verdict(
        check(code, tables, ARGUED),
        {'a row gone': check(code, fewer, ARGUED),
         'a per-thread row gone': check(code, tables.replace('cuGraphLaunch_ptsz', 'x'), ARGUED),
         'a new function': check(code + new, tables, ARGUED),
         'a stream in a structure': check(code + held, tables, ARGUED),
         'an argument for nothing': check(code, tables, {**ARGUED, 'cuLaunchKernel': WAITS})})


main()
