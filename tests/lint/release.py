# SPDX-License-Identifier: BSD-2-Clause
"""What must hold for a library that is given to users, beyond every build (binary.py). It needs no
other library, and no symbol newer than the oldest C library supported, because the loader ends
every program that it cannot serve. It has the notes that let a process keep its protections. It
names no folder of the building machine, and stays small."""

import argparse
import pathlib
import re

import lint

NEEDED = {'libc.so.6', 'libdl.so.2', 'libpthread.so.0'}
NOTES = {'x86_64': ('SHSTK',), 'aarch64': ('BTI', 'PAC')}
MACHINE = {'x86_64': 'X86-64', 'aarch64': 'AArch64'}
# Places that every machine has, and those that the debug information gives to the sources.
PLACES = ('/usr/src', '/proc/', '/sys/', '/dev/', '/tmp')
BYTES_MAX = 1 << 20
# What musl lacks must be a weak reference: musl ends a program at a strong one.
NOT_IN_MUSL = {'__cxa_at_quick_exit', '__register_atfork', 'dladdr1', 'dlmopen', 'dlvsym',
               'fcntl64', 'gnu_get_libc_version', '__memcpy_chk', '__snprintf_chk',
               '__vsnprintf_chk'}


def facts_of(readelf, library, debug):
    def read(*flags, file=library):
        return lint.output_of(readelf, *flags, file)
    return {'header': read('-hW'), 'dynamic': read('-dW'), 'segments': read('-lW'),
            'notes': read('-nW'), 'symbols': read('--dyn-syms', '-W'), 'sections': read('-SW'),
            'link': read('-W', '--string-dump=.gnu_debuglink'),
            'debug notes': read('-nW', file=debug), 'debug sections': read('-SW', file=debug),
            'folders': '\n'.join(full_names(debug) + full_names(library)),
            'bytes': library.stat().st_size}


def full_names(file):
    """Two parts at least: single ones happen in any data."""
    found = re.findall(rb'\0(/[A-Za-z][\w.+-]{2,}(?:/[\w .+-]+)+)(?=\0)', file.read_bytes())
    return sorted({name.decode() for name in found})


def build_id(notes):
    found = re.search(r'Build ID: (\w+)', notes)
    return found and found[1]


def check(facts, arch, oldest):
    found = []

    def want(holds, complaint):
        if not holds:
            found.append(complaint)

    want(MACHINE[arch] in facts['header'], f'not for {arch}')
    needed = set(re.findall(r'\(NEEDED\).*\[(.*?)\]', facts['dynamic']))
    want(needed <= NEEDED, f'needs {", ".join(sorted(needed - NEEDED))}')
    want(not re.search(r'\((RPATH|RUNPATH|TEXTREL)\)', facts['dynamic']),
         'a search path of its own, or relocations in its code')
    for flag in ('NOW', 'NODELETE'):
        want(re.search(rf'\(FLAGS(_1)?\).*\b{flag}\b', facts['dynamic']), f'no -z {flag.lower()}')
    want(not re.search(r'\((INIT|FINI)(_ARRAY)?\)', facts['dynamic']), 'code that runs at load')
    want('GNU_RELRO' in facts['segments'], 'no relocations that become read-only')
    stack = re.search(r'GNU_STACK\s.*', facts['segments'])
    want(stack and 'E' not in stack[0].split()[-2], 'an executable stack')
    want(not re.search(r'LOAD\s.*\bRWE\b', facts['segments']), 'code that can be written to')
    properties = ''.join(re.findall(r'Properties:.*', facts['notes']))
    for note in NOTES[arch]:
        want(note in properties, f'no note {note}')
    versions = re.findall(r'(\S+)@GLIBC_(\d+(?:\.\d+)+)', facts['symbols'])
    want(len(versions) > 50, 'the versions of its symbols were not read')
    for name, version in versions:
        want(tuple(map(int, version.split('.'))) <= oldest,
             f'needs {name}@GLIBC_{version}, newer than {".".join(map(str, oldest))}')
    for name in re.findall(r'GLOBAL\s+DEFAULT\s+UND\s+(\w+)', facts['symbols']):
        want(name not in NOT_IN_MUSL, f'{name} is a strong reference, and musl lacks it')
    want('.debug_info' not in facts['sections'], 'debug information inside')
    want('.debug_info' in facts['debug sections'], 'no debug information beside it')
    want('libgpucache.so.debug' in facts['link'], 'no name of the debug information')
    want(build_id(facts['notes']) and build_id(facts['notes']) == build_id(facts['debug notes']),
         'the debug information has another build id')
    want('/usr/src/' in facts['folders'], 'the folders in its debug information were not read')
    for name in facts['folders'].splitlines():
        want(name.startswith(PLACES), f'a folder of the building machine: {name}')
    want(facts['bytes'] <= BYTES_MAX, f'{facts["bytes"]} bytes, at most {BYTES_MAX}')
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('library', type=pathlib.Path)
    parser.add_argument('--debug', type=pathlib.Path, required=True)
    parser.add_argument('--arch', choices=NOTES, required=True)
    parser.add_argument('--glibc', required=True, help='the oldest version')
    parser.add_argument('--readelf', required=True)
    options = parser.parse_args()
    oldest = tuple(map(int, options.glibc.split('.')))
    facts = facts_of(options.readelf, options.library, options.debug)

    def doctored(what, old, new):
        """The same library, with other words in what readelf says of it."""
        text = re.sub(old, new, facts[what])
        return [] if text == facts[what] else check({**facts, what: text}, options.arch, oldest)

    other = 'x86_64' if options.arch == 'aarch64' else 'aarch64'
    lint.verdict(check(facts, options.arch, oldest), {
        'another machine': check(facts, other, oldest),
        'another library': doctored('dynamic', r'libdl\.so\.2', 'libm.so.6'),
        'a search path': doctored('dynamic', r'\(SONAME\)', '(RUNPATH)'),
        'lazy binding': doctored('dynamic', r'\bNOW\b|BIND_NOW', ''),
        'unloadable': doctored('dynamic', 'NODELETE', ''),
        'a constructor': doctored('dynamic', r'\(SONAME\)', '(INIT_ARRAY)'),
        'no RELRO': doctored('segments', 'GNU_RELRO', 'NOTE'),
        'an executable stack': doctored('segments', r'(GNU_STACK .*)RW ', r'\1RWE'),
        'writable code': doctored('segments', r'R E', 'RWE'),
        'no notes': doctored('notes', 'Properties:.*', ''),
        'a newer symbol': doctored('symbols', r'secure_getenv@GLIBC_[\d.]+',
                                   'fstat64@GLIBC_2.33'),
        'unread symbols': doctored('symbols', '@GLIBC', '@'),
        'a strong reference': doctored('symbols', r'WEAK(\s+DEFAULT\s+UND dlvsym)',
                                       r'GLOBAL\1'),
        'debug information': doctored('sections', r'\.dynamic', '.debug_info'),
        'lost debug information': doctored('debug sections', r'\.debug_info', '.data'),
        'no link to it': doctored('link', 'debug', 'other'),
        'that of another build': doctored('debug notes', 'Build ID: .', 'Build ID: '),
        'a folder of a user': doctored('folders', '/usr/src', '/elsewhere'),
        'a large file': check({**facts, 'bytes': BYTES_MAX + 1}, options.arch, oldest)})


main()
