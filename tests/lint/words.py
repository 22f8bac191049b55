# SPDX-License-Identifier: BSD-2-Clause
"""Each thing has one name: the table "Words" of CONTRIBUTING.md has it, and the names that it had
before. No source has one of those. And no two files of the library define functions of one
name."""
import collections
import re
import sys

import lint

HEADING = '## Words'
DEFINITION = re.compile(r'^(?![\s#}])[^;{}=#]*?\b([a-z]\w*)\([^;{}]*\)\n\{', re.MULTILINE)


def table(text):
    """{old name: new name} of the table."""
    rows = {}
    for line in text.split(HEADING, 1)[1].split('\n## ', 1)[0].splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if line.startswith('| `') and len(cells) == 3:
            new = cells[0].strip('`')
            rows.update((old, new) for old in re.findall(r'`((?:\w+->)?\w+)`', cells[1]))
    return rows


def faults(rows, sources):
    pattern = re.compile(r'\b(' + '|'.join(map(re.escape, rows)) + r')\b')
    for path, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            for found in pattern.finditer(line):
                yield f'{path}:{number}: {found.group()} is called {rows[found.group()]}'


def twice(sources):
    files = collections.defaultdict(set)
    for path, text in sources.items():
        code = re.sub(r'__attribute__\(\(.*?\)\)', '', lint.code_of(text))
        for name in DEFINITION.findall(code):
            files[name].add(path)
    return [f'{name} is a function of {", ".join(sorted(paths))}'
            for name, paths in files.items() if len(paths) > 1]


def main():
    text = (lint.ROOT / 'CONTRIBUTING.md').read_text()
    doctored = f'{HEADING}\n\n| name | not | what |\n|-|-|-|\n| `new_name` | `old_name` | x |\n'
    assert table(doctored) == {'old_name': 'new_name'}
    assert list(faults(table(doctored), {'a.c': 'x = old_name(1);'})) == \
        ['a.c:1: old_name is called new_name']
    assert not list(faults(table(doctored), {'a.c': 'my_old_name, old_names, new_name'}))
    field = table(doctored.replace('old_name', 'p->old'))
    assert list(faults(field, {'a.c': 'q->old, old, p->old'})) == \
        ['a.c:1: p->old is called new_name']
    own = 'static int own(void)\n{\n}\n'
    assert twice({'a.c': own, 'b.c': own}) == ['own is a function of a.c, b.c']
    assert not twice({'a.c': own + own, 'b.c': own.replace('own', 'other')})
    rows = table(text)
    sources = lint.sources('pool', 'shim', 'scripts', 'tests')
    found = list(faults(rows, sources)) + twice(lint.sources('pool', 'shim'))
    print('\n'.join(found) or f'{len(rows)} earlier names are in none of {len(sources)} sources')
    return 1 if found or not rows else 0


if __name__ == '__main__':
    sys.exit(main())
