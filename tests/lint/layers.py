# SPDX-License-Identifier: BSD-2-Clause
"""Who may include whom, and what the pool may not touch. The names of includes say their layer."""
import re

import lint

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>)', re.MULTILINE)

# Folder: what its files may include by quotes. The first that matches counts.
LAYERS = (
    ('pool/', r'pool/.*'),
    # Besides the pool's face, three leaves without state: arithmetic, host memory, waiting.
    ('shim/', r'shim/.*|pool/(pool|backend|bits|host|spin)\.h|pool/(config|stats)\.(h|def)'),
    ('tests/sim/', r'tests/(sim/.*|preload/kernels\.h)'),
    ('tests/preload/', r'tests/preload/.*'),
    ('tests/misuse/', r'tests/(misuse|preload)/.*'),
    ('tests/gpu/', r'tests/(gpu|preload)/.*|tests/sim/cudart/entries\.def'),
    ('tests/', r'(tests|shim|pool)/.*'),
)
# In the pool: the C library's streams, environment and process control, and everything of CUDA.
POOL_HEADERS = re.compile(r'stdio\.h|signal\.h|dlfcn\.h|unistd\.h|(cuda|driver_types|nv).*')
POOL_WORDS = re.compile(
    r'\b(getenv|secure_getenv|setenv|putenv|exit|_exit|quick_exit|abort|printf|fprintf|dprintf|fopen|'
    r'puts|perror|system|signal|sigaction|fork|CU[a-z]\w*|cu[A-Z]\w*|cuda[A-Z]\w*)\s*\(')


def check(files):
    found = []
    for path, text in files.items():
        allowed = next(pattern for folder, pattern in LAYERS if path.startswith(folder))
        code = lint.code_of(text, keep_strings=True)
        for match in INCLUDE.finditer(code):
            where = f'{path}:{lint.line_of(code, match.start())}'
            quoted, angled = match.groups()
            if quoted and '/' not in quoted:
                found.append(f'{where}: "{quoted}" does not say its layer')
            elif quoted and not re.fullmatch(allowed, quoted):
                found.append(f'{where}: may not include "{quoted}"')
            elif angled and path.startswith('pool/') and POOL_HEADERS.fullmatch(angled):
                found.append(f'{where}: the pool may not include <{angled}>')
        if path.startswith('pool/'):
            code = lint.code_of(text)
            for match in POOL_WORDS.finditer(code):
                found.append(f'{path}:{lint.line_of(code, match.start())}: the pool may not use '
                             f'{match[1]}')
    return found


lint.verdict(
    check(lint.sources('pool', 'shim', 'tests')),
    {'the pool includes the shim': check({'pool/x.c': '#include "shim/driver/hooks.h"\n'}),
     'the pool includes CUDA': check({'pool/x.c': '#include <cuda.h>\n'}),
     'the pool prints': check({'pool/x.c': 'int f(void)\n{\n    return printf("x");\n}\n'}),
     'the pool reads the environment': check({'pool/x.c': 'char *s = getenv("X");\n'}),
     'the shim looks into the pool': check({'shim/x.c': '#include "pool/slab.h"\n'}),
     'an include without its layer': check({'shim/x.c': '#include "hooks.h"\n'}),
     'the simulator knows the pool': check({'tests/sim/x.c': '#include "pool/pool.h"\n'}),
     'the simulator knows the shim': check({'tests/sim/lib/x.c': '# include "shim/driver/hooks.def"\n'}),
     'a test program knows the library': check({'tests/preload/x.c': '#include "shim/driver/hooks.h"\n'})})
