# SPDX-License-Identifier: BSD-2-Clause
"""Includes and calls go only downwards, in the total order of layers.def, and the pool knows no
CUDA, no environment and no stdio. A call is an undefined symbol of one of the library's own object
files. `layers.py [--list] [BUILD]`: BUILD has the object files; --list prints all arrows that go
up, and exits."""
import collections
import fnmatch
import json
import os
import pathlib
import re
import sys

import lint

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>)', re.MULTILINE)
SUFFIXES = ('.c', '.h', '.def', '.S')
# The objects that the library is made of; tests compile some of its sources once more.
OBJECTS = re.compile(r'(shim/lib[\w-]+\.(so|a)|pool/libpool\.a)\.p/.*\.o')
# A line of `nm -P`: a name and its kind.
SYMBOL = re.compile(r'^(\S+) ([A-Za-z])(?: |$)', re.MULTILINE)

# In the pool: the C library's streams, environment and process control, and everything of CUDA.
CUDA_HEADERS = re.compile(r'(cuda|driver_types|nv).*')
POOL_HEADERS = re.compile(r'stdio\.h|signal\.h|dlfcn\.h|unistd\.h')
POOL_WORDS = re.compile(
    r'\b(getenv|secure_getenv|setenv|putenv|exit|_exit|quick_exit|abort|'
    r'printf|fprintf|dprintf|fopen|puts|perror|system|signal|sigaction|fork|'
    r'CU[a-z]\w*|cu[A-Z]\w*|cuda[A-Z]\w*)\s*\('
)


class Order:
    """layers.def. lines: (its first words, its files in order). place: {file: number in the
    order}."""

    def __init__(self, text, files):
        self.files, self.lines, self.place, self.faults = files, [], {}, []
        self.sees, self.exceptions, self.without_cuda = [], [], []
        text = re.sub(r'/\*.*?\*/', '', text, flags=re.DOTALL)
        for line in re.sub(r'\n[ \t]+', ' ', text).splitlines():
            if line.strip():
                self.read(line.strip())
        missing = [
            path
            for path in files
            if path.startswith(('pool/', 'shim/', 'scripts/')) and path not in self.place
        ]
        self.faults += [f'{path}: has no place in the order' for path in missing]

    def read(self, line):
        head, colon, tail = line.partition(':')
        kind, _, rest = head.partition(' ')
        if kind in ('headers', 'sources', 'room'):
            paths = []
            for item in tail.split():
                paths += self.files_of(kind, rest, item)
            for path in paths:
                if path in self.place:
                    self.faults.append(f'{path}: has two places in the order')
                self.place[path] = len(self.place)
            self.lines.append((head, paths))
        elif kind == 'sees':
            self.sees.append((rest, tail.split()))
        elif head == 'without cuda':
            self.without_cuda += tail.split()
        elif kind in ('include', 'call') and ' -> ' in rest and tail.strip():
            self.exceptions.append((kind, *rest.split(' -> ')))
        else:
            self.faults.append(f'layers.def: what does this line say: {line}')

    def files_of(self, kind, folder, item):
        if '.' in item:
            names = [item]
        else:
            names = {
                'headers': ['.def', '.h'],
                'sources': ['.c'],
                'room': ['.def', '.h', '-*.S', '.c'],
            }[kind]
            names = [item + name for name in names]
        paths = [f'{folder}/{name}' for name in names]
        found = [found for path in paths
                 for found in (fnmatch.filter(sorted(self.files), path) if '*' in path
                               else [path] * (path in self.files))]
        if not found:
            self.faults.append(f'{folder}/{item}: stands in the order, and does not exist')
        return found

    def goes_up(self, source, target):
        return source != target and source in self.place and target in self.place and \
            self.place[target] >= self.place[source]

    def exception_of(self, kind, source, target):
        for exception in self.exceptions:
            if exception[0] == kind and fnmatch.fnmatch(source, exception[1]) and \
                    fnmatch.fnmatch(target, exception[2]):
                return exception
        return None


def includes(files, angled=False):
    """Each include by quotes, or by angles, as (where, file, included file)."""
    for path, text in files.items():
        code = lint.code_of(text, keep_strings=True)
        for match in INCLUDE.finditer(code):
            if match[1 + angled]:
                yield f'{path}:{lint.line_of(code, match.start())}', path, match[1 + angled]


def calls(symbols):
    """symbols: {source: what `nm -P` says of its object}. Each name that one takes from another, as
    (text, source, defining source)."""
    defined, wanted = {}, []
    for path, text in symbols.items():
        for name, kind in SYMBOL.findall(text):
            if kind == 'U':
                wanted.append((path, name))
            elif kind.isupper():
                defined[name] = path
    for path, name in wanted:
        if name in defined:
            yield f'{path}: {name}', path, defined[name]


def arrows_up(order, files, symbols):
    """Every arrow that goes up: (kind, where, file, other file)."""
    found = []
    for kind, arrows in ('include', includes(files)), ('call', calls(symbols)):
        for where, source, target in arrows:
            if order.goes_up(source, target):
                found.append((kind, where, source, target))
    return found


def arrow_text(exception):
    return '{} {} -> {}'.format(*exception)


def told(arrow):
    kind, where, _, target = arrow
    return (
        f'{where} goes up to {target}'
        if kind == 'call'
        else f'{where}: include of "{target}" goes up'
    )


def check_order(order, files, symbols):
    found, used = [], set()
    for arrow in arrows_up(order, files, symbols):
        exception = order.exception_of(arrow[0], *arrow[2:])
        used.add(exception)
        if not exception:
            found.append(told(arrow))
    return found, [exception for exception in order.exceptions if exception not in used]


def check_needed(exceptions):
    return [f'layers.def: nothing needs this line: {arrow_text(e)}' for e in exceptions]


def check_sees(order, files):
    """Folders: whatever the order says, what a folder's files may include at all."""
    found = []
    for where, path, quoted in includes(files):
        allowed = next(patterns for folder, patterns in order.sees if path.startswith(folder))
        if '/' not in quoted:
            found.append(f'{where}: "{quoted}" does not say its layer')
        elif not any(fnmatch.fnmatch(quoted, pattern) for pattern in allowed):
            found.append(f'{where}: may not include "{quoted}"')
    return found


def check_system(order, files):
    """Folders without CUDA, and what else the pool leaves to others."""
    found = []
    for path, text in files.items():
        pool = path.startswith('pool/')
        cuda = not path.startswith(tuple(order.without_cuda))
        for where, _, header in includes({path: text}, angled=True):
            if (
                CUDA_HEADERS.fullmatch(header)
                and not cuda
                or POOL_HEADERS.fullmatch(header)
                and pool
            ):
                found.append(f'{where}: may not include <{header}>')
        if pool:
            code = lint.code_of(text)
            for match in POOL_WORDS.finditer(code):
                where = f'{path}:{lint.line_of(code, match.start())}'
                found.append(f'{where}: the pool may not use {match[1]}')
    return found


def bites_of_cuda(order):
    return {f'{folder} includes CUDA': check_system(order, {f'{folder}x.c': '#include <cuda.h>\n'})
            for folder in order.without_cuda}


def read_symbols(build):
    """{source: what nm says of its object} of the library built in this folder."""
    found = {}
    for command in json.loads((build / 'compile_commands.json').read_text()):
        if OBJECTS.fullmatch(command['output']):
            if not (build / command['output']).exists():
                sys.exit(f'{build} has no object files: `ninja -C {build} quick` first')
            source = os.path.relpath(build / command['file'], lint.ROOT)
            found[source] = lint.output_of('nm', '-P', build / command['output'])
    return found


# The lint on doctored copies

def bites_of_lines(order):
    """For each line of the order: each of its files includes, and calls, the next file above, and
    that is found each time. Exceptions are for files, and are left out."""
    bites = {}
    paths = list(order.place)
    for head, members in order.lines:
        includes_found, calls_found = [], []
        for path in members:
            above = paths[order.place[path] + 1:order.place[path] + 2]
            if above:
                includes_found.append(arrows_up(order, {path: f'#include "{above[0]}"\n'}, {}))
            above = [
                other for other in paths[order.place[path] + 1 :] if other.endswith(('.c', '.S'))
            ][:1]
            if above and path.endswith(('.c', '.S')):
                calls_found.append(arrows_up(order, {}, {path: 'f U \n', above[0]: 'f T 0 1\n'}))
        bites[f'{head}: an include of the next file'] = includes_found and all(includes_found) and \
            [told(includes_found[0][0])]
        if calls_found:
            bites[f'{head}: a call of the next file'] = all(calls_found) and [
                told(calls_found[0][0])
            ]
    return bites


def bites_of_sees(order):
    """For each `sees` line: a file below the folder that includes each kind of header that it may
    not."""
    bites = {}
    headers = (
        'tests/gpu/x.h',
        'tests/misuse/x.h',
        'tests/sim/x.h',
        'shim/x.h',
        'pool/slab.h',
        'x.h',
    )
    for folder, patterns in order.sees:
        for header in headers:
            if not any(fnmatch.fnmatch(header, pattern) for pattern in patterns):
                bites[f'{folder} includes {header}'] = \
                    check_sees(order, {f'{folder}x.c': f'# include "{header}"\n'})
    return bites


def bites_of_exceptions(order, text, files, symbols):
    """For each exception: without it the arrows are found, and with nothing that needs it, it
    is."""
    bites = {}
    for exception in order.exceptions:
        name = arrow_text(exception)
        less = Order(text, files)
        less.exceptions.remove(exception)
        if exception[0] == 'include' or symbols:
            bites[f'no {name}'] = check_order(less, files, symbols)[0]
        idle = check_needed(check_order(order, {}, {})[1])
        bites[f'an idle {name}'] = [line for line in idle if line.endswith(name)]
    return bites


def print_arrows(order, files, symbols):
    plain, argued = [], collections.Counter()
    for arrow in arrows_up(order, files, symbols):
        exception = order.exception_of(arrow[0], *arrow[2:])
        if exception:
            argued[exception] += 1
        else:
            plain.append(told(arrow))
    print('\n'.join(sorted(plain) + order.faults))
    for exception, count in argued.items():
        print(f'argued, {count} times: {arrow_text(exception)}')
    print(f'{len(plain)} arrows go up that nothing argues for')


def main(arguments):
    listing = '--list' in arguments
    arguments = [a for a in arguments if a != '--list']
    text = (lint.ROOT / 'tests/lint/layers.def').read_text()
    files = lint.sources('pool', 'shim', 'scripts', 'tests', suffixes=SUFFIXES)
    symbols = read_symbols(pathlib.Path(arguments[0])) if arguments else {}
    order = Order(text, files)
    if listing:
        print_arrows(order, files, symbols)
        return
    up, idle = check_order(order, files, symbols)
    if not symbols:
        idle = [exception for exception in idle if exception[0] != 'call']
    real = (
        order.faults
        + up
        + check_needed(idle)
        + check_sees(order, files)
        + check_system(order, files)
    )
    doctored = bites_of_lines(order) | bites_of_sees(order) | bites_of_cuda(order) | \
        bites_of_exceptions(order, text, files, symbols)
    doctored |= {
        'a file that is not listed': Order(text, {**files, 'shim/process/x.c': ''}).faults,
        'a listed file that does not exist': Order('room shim/process: x\n', {}).faults,
        'a file that is listed twice': Order(
            'room shim/process: x x\n', {'shim/process/x.c': ''}
        ).faults,
        'an exception without a reason': Order('call a -> b\n', {}).faults,
        'an include without its layer': check_sees(order, {'shim/x.c': '#include "hooks.h"\n'}),
        'the pool includes stdio': check_system(order, {'pool/x.c': '#include <stdio.h>\n'}),
        'the pool prints': check_system(
            order, {'pool/x.c': 'int f(void)\n{\n    return printf("x");\n}\n'}
        ),
        'the pool reads the environment': check_system(
            order, {'pool/x.c': 'char *s = getenv("X");\n'}
        ),
    }
    lint.verdict(real, doctored)


main(sys.argv[1:])
