# SPDX-License-Identifier: BSD-2-Clause
"""Every function of the driver's headers that takes a stream, itself or in a structure, is in a
table of wrapped functions. Or it is here, with the reason why it may go by unseen."""
import re

import driver_headers as headers
import lint

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
    'cuStreamCopyAttributes': 'copies what cuStreamSetAttribute has set, which is seen',
    'cuStreamUpdateCaptureDependencies': EDGES,
    'cuStreamUpdateCaptureDependencies_v2': EDGES,
    'cuGLMapBufferObjectAsync': GL,
    'cuGLMapBufferObjectAsync_v2': GL,
    'cuGLUnmapBufferObjectAsync': GL,
    'cuGraphInstantiateWithParams': GRAPH,
}

PER_THREAD = re.compile(r'#\s*define\s+cu\w+\s+__CUDA_API_(PTSZ|PTDS)\((cu\w+)\)')
HOOKS = r'HOOK(?:_(?!CALLED|PASSED|NAMES|QUESTION)\w+)?'


def takers(code):
    """Names of the functions that take a stream, those with per-thread default streams too."""
    types = headers.holders(code, 'CUstream')
    names = {name for name, params in headers.DECLARATION.findall(code) if types.search(params)}
    per_thread = {f'{name}_{kind.lower()}'
                  for kind, name in PER_THREAD.findall(code) if name in names}
    return names | per_thread


def check(code, tables, argued):
    return headers.complaints(
        takers(code), headers.listed(tables, HOOKS), argued,
        'is wrapped, and argued to need it not',
        'takes a stream: it is in no table, and not argued for')


def main():
    texts, tables = headers.read(lambda texts: len(takers(headers.flat(' '.join(texts)))),
                                 'submit.def', 'hooks.def', 'passed.def')
    code = headers.flat(' '.join(texts))
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
