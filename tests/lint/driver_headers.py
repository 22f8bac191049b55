# SPDX-License-Identifier: BSD-2-Clause
"""What the lints of the driver's headers share: the functions that get something themselves or in a
structure, and those that the library's tables have."""
import argparse
import functools
import pathlib
import re

import lint

HEADERS = ('cuda.h', 'cudaEGL.h', 'cudaGL.h', 'cudaVDPAU.h', 'cudaProfiler.h')
LEAST = 100  # functions: with fewer, nothing was read

DECLARATION = re.compile(r'\bCUresult\s+CUDAAPI\s+(cu\w+)\s*\(([^;{]*)\)\s*;')
BODY = r'\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}'
STRUCT = re.compile(r'\btypedef\s+(?:struct|union)\s+\w*\s*' + BODY + r'\s*(\w+)\s*;')
ALIAS = re.compile(r'\btypedef\s+(?:const\s+)?(\w+)\s+(\w+)\s*;')
SUBMITS = re.compile(r'^SUBMIT\(\s*(\w+)', re.MULTILINE)
PAIR = re.compile(r'^SUBMIT_PAIR\(\s*(\w+)\s*,\s*\w+\s*,\s*(\w+)', re.MULTILINE)


@functools.cache
def flat(text):
    """C source without comments, on one line."""
    return re.sub(r'\s+', ' ', lint.code_of(text))


def holders(code, *types):
    """A pattern of the types by which a function gets one of these."""
    types, grown = set(types), True
    while grown:
        words = re.compile(r'\b(' + '|'.join(types) + r')\b')
        found = {name for body, name in STRUCT.findall(code) if words.search(body)}
        found |= {name for of, name in ALIAS.findall(code) if of in types}
        grown = not found <= types
        types |= found
    return re.compile(r'\b(' + '|'.join(sorted(types)) + r')\b')


def listed(tables, kinds):
    """The functions of submit.def, and of the rows of these kinds."""
    names = set(SUBMITS.findall(tables))
    names |= set(re.findall(rf'^(?:{kinds})\(\s*(\w+)', tables, re.MULTILINE))
    for pair in PAIR.findall(tables):
        names.update(pair)
    return names


def complaints(names, known, argued, both, neither):
    """Each function is known or argued for. both, neither: what is said of one that is not so."""
    found = []
    for name in sorted(names):
        plain = re.sub(r'_pt(sz|ds)$', '', name)
        if plain in argued and name in known:
            found.append(f'{name} {both}')
        elif plain not in argued and name not in known:
            found.append(f'{name} {neither}')
    return found


def read(count, *tables):
    """The texts of the headers in the folder that an argument names, and that of these tables.
    count: of such texts, how many functions it is about."""
    parser = argparse.ArgumentParser()
    parser.add_argument('include', type=pathlib.Path, help="folder of the driver's headers")
    folder = parser.parse_args().include
    texts = [(folder / name).read_text(errors='replace')
             for name in HEADERS if (folder / name).exists()]
    if count(texts) < LEAST:
        lint.verdict([f'{folder}: it is about {count(texts)} functions: nothing was read'], {})
    return texts, '\n'.join(lint.code_of((lint.ROOT / 'shim/driver' / name).read_text())
                            for name in tables)
