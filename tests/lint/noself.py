# SPDX-License-Identifier: BSD-2-Clause
"""The library never calls what it exports: a driver function only as real.f or real_f, the C library's
dlsym only through symbol_lookup. Otherwise a call of ours would come back to us."""
import re

import lint

NAME = r'(cu[A-Z]\w*|cuda(?!Error_t)[A-Z]\w*|dlsym|setenv|putenv|unsetenv|clearenv)'
CALL = re.compile(rf'(?<![\w.>]){NAME}\s*\(')
# At the start of a line, behind its type: a declaration or a definition.
DEFINITION = re.compile(
    rf'^(?:SHIM_EXPORT\s+)?(?:CUresult|cudaError_t|int|void)\s+\**{NAME}$')


def check(files):
    found = []
    for path, text in files.items():
        code = lint.code_of(text)
        for match in CALL.finditer(code):
            line_start = code.rfind('\n', 0, match.start()) + 1
            if DEFINITION.match(code[line_start:match.end(1)]):
                continue
            found.append(f'{path}:{lint.line_of(code, match.start())}: calls {match[1]} itself')
    return found


lint.verdict(
    check(lint.sources('shim', suffixes=('.c', '.h'))),
    {'a call of a wrapped function': check({'shim/x.c': '    rc = cuMemFree_v2(p);\n'}),
     'a call of a function that is not wrapped': check({'shim/x.c': '    cuCtxGetCurrent(&c);\n'}),
     'a call of dlsym': check({'shim/x.c': '    f = dlsym(handle, "f");\n'}),
     'a call of the runtime': check({'shim/x.c': '    return cudaMalloc(p, 1);\n'}),
     'a call of setenv': check({'shim/x.c': '    setenv("A", "b", 1);\n'}),
     'a call on a line of its own': check({'shim/x.c': 'x =\ncuMemFree_v2(p);\n'})})
