# SPDX-License-Identifier: BSD-2-Clause
"""What README.md, other pages for users and those below scripts/ name exists: each option, the
target of each relative link, and the heading that a link points at. The index of the recipes links
every page. Each row of SECURITY.md's table names a test that is there. README.md stays short."""

import pathlib
import re

import lint

OPTION = re.compile(r'\bGPUCACHE(?:_[A-Z0-9]+)*\b(?!_)')
LINK = re.compile(r'\]\(([^()\s]+)\)')
HEADING = re.compile(r'^#+ +(.*?) *$', re.MULTILINE)
FENCE = re.compile(r'^```.*?^```$', re.MULTILINE | re.DOTALL)
ROW = re.compile(
    r'^(?:POOL_OPTION\(\s*\w+\s*,\s*(\w+)|SHIM_OPTION\(\s*\w+\s*,\s*"(\w+)")', re.MULTILINE)
INDEX = 'scripts/recipes/README.md'
WORDS_MAX = 900  # of README.md, as wc -w counts them


def options_of(*tables):
    """The environment variables that are rows of the tables."""
    rows = [match for table in tables for match in ROW.finditer(table)]
    return {f'GPUCACHE_{row[1]}' if row[1] else row[2] for row in rows}


def anchors_of(text):
    """The names by which links reach the headings of a page."""
    headings = HEADING.findall(FENCE.sub('', text))
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


def target_of(page, link):
    """The file that a relative link names, from the root."""
    parts = []
    for part in (pathlib.PurePosixPath(page).parent / link).parts:
        if part == '..' and parts:
            parts.pop()
        else:
            parts.append(part)
    return '/'.join(parts)


def check_links(pages, exists, page):
    found = []
    prose = FENCE.sub(lambda block: '\n' * block[0].count('\n'), pages[page])
    for match in LINK.finditer(prose):
        link, _, anchor = match[1].partition('#')
        if '://' in match[1]:
            continue
        where = f'{page}:{lint.line_of(prose, match.start())}'
        target = target_of(page, link) if link else page
        if not exists(target):
            found.append(f'{where}: there is no {target}')
        elif anchor and target in pages and anchor not in anchors_of(pages[target]):
            found.append(f'{where}: {target} has no heading {anchor}')
    return found


def check_tests(text, known):
    """known: names of test files and programs, and the texts of tests."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if not line.startswith('|') or len(cells) != 4 or cells[3] in ('test', '---'):
            continue
        names = [name for name in re.findall(r'`([^`]+)`|\b(\w*_\w+_\w+)\b|: (\w+)', cells[3])]
        names = [one or two or three for one, two, three in names]
        if not names:
            found.append(f'SECURITY.md:{number}: no test is named')
        found += [f'SECURITY.md:{number}: there is no test {name}' for name in names
                  if not any(name in one for one in known)]
    return found


def check_length(text):
    number = len(text.split())
    return [f'README.md has {number} words, and {WORDS_MAX} are allowed'] * (number > WORDS_MAX)


def check(pages, options, exists):
    """pages: {path from the root: text}. exists: tells whether a path from the root is there."""
    found = []
    for page, text in pages.items():
        for match in OPTION.finditer(text):
            if match[0] not in options:
                line = lint.line_of(text, match.start())
                found.append(f'{page}:{line}: there is no option {match[0]}')
        found += check_links(pages, exists, page)
    linked = {target_of(INDEX, link) for link in LINK.findall(pages.get(INDEX, ''))}
    for page in sorted(pages):
        if page.startswith('scripts/recipes/') and page != INDEX and page not in linked:
            found.append(f'{INDEX}: does not link {page}')
    return found


def main():
    options = options_of(*lint.sources('pool', 'shim', suffixes=('.def',)).values())
    if len(options) < 15:
        lint.verdict([f'the tables have {len(options)} options only: they were not read'], {})
    pages = {name: (lint.ROOT / name).read_text()
             for name in ('README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'shim/README.md')}
    pages.update(lint.sources('scripts', suffixes=('.md',)))
    known = [part for path, text in lint.sources('tests', suffixes=('.c', '.py', '.build')).items()
             for part in (path, text)]

    def exists(path):
        return (lint.ROOT / path).exists()

    def doctored(text, **more):
        return check({INDEX: text, **more}, {'GPUCACHE', 'GPUCACHE_STATS'}, {INDEX}.__contains__)

    lint.verdict(
        check(pages, options, exists) + check_tests(pages['SECURITY.md'], known)
        + check_length(pages['README.md']) + check_length('a | ' * (WORDS_MAX // 2))
        + doctored('`GPUCACHE=0`, [a](#b-c)\n# B, c\n[d](https://e)\n'),
        {'an option that does not exist': doctored('`GPUCACHE_STATISTICS=exit`\n'),
         'an option with another ending': doctored('`GPUCACHE_STAT_FILE`\n'),
         'an option in a block of code': doctored('```sh\nGPUCACHE_STATSX=1 ./a\n```\n'),
         'a link to no file': doctored('[a](a.md)\n'),
         'a link to a file beside the folder': doctored('[a](../README.md)\n'),
         'a link to no heading': doctored('# A heading\n[a](#another)\n'),
         'a heading in a block of code': doctored('```sh\n# a\n```\n[a](#a)\n'),
         'a page that is too long': check_length('a ' * (WORDS_MAX + 1)),
         'a threat without a test': check_tests('| a | b | c | |\n', known),
         'a threat whose test is not there': check_tests('| a | b | c | `x`: no_such_' + 'test |\n',
                                                         known),
         'a page that the index forgets': doctored('', **{'scripts/recipes/x.md': '# X\n'})})


main()
