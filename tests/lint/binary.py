# SPDX-License-Identifier: BSD-2-Clause
"""What must hold for a library that is loaded into every process of a user. It needs nothing but
the C library, runs no code at load, and has no executable stack. All references are bound at load,
and none is to CUDA. No thread-local data that the C library allocates at a thread's first access,
inside the program's call. It asks for no symbol version after GLIBC_2.28. Where the C library lacks
a version that a preloaded library asks for, the loader ends every program."""

import argparse
import re

import lint

NEEDED = re.compile(r'libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux[-\w]*\.so\.[12]')
# Functions of the C run-time's own that stand in .init_array and .fini_array.
ARRAY_ENTRIES = 1
FORBIDDEN_REFERENCE = re.compile(
    r'(cu[A-Z]\w*|cuda[A-Z]\w*|dlsym|exit|_exit|abort|quick_exit)(@|$)'
)

OLDEST = (2, 28)
# These are older than OLDEST, but were in libpthread and libdl. With the move into libc.so.6 (2.32
# to 2.34) they got a new version, which a build on such a machine cannot avoid. A build on an older
# one has the old.
MOVED = re.compile(r'(dladdr1?|dlclose|dlerror|dlinfo|dlm?open|dlvsym|sem_(?!clock)\w+|'
                   r'pthread_(?!\w*clock|attr_[gs]etsigmask)\w+)@GLIBC_2\.3[234]')


def host_is_x86(readelf, library):
    return 'X86-64' in lint.output_of(readelf, '-hW', library)


def check(readelf, nm, library, word_bytes=8):
    found = []
    dynamic = lint.output_of(readelf, '-dW', library)
    for name in re.findall(r'\(NEEDED\).*\[(.*?)\]', dynamic):
        if not NEEDED.fullmatch(name):
            found.append(f'needs {name}')
    for tag in ('INIT_ARRAYSZ', 'FINI_ARRAYSZ', 'PREINIT_ARRAYSZ'):
        size = re.search(rf'\({tag}\)\s+(\d+)', dynamic)
        if size and int(size[1]) > ARRAY_ENTRIES * word_bytes:
            found.append(f'runs code of its own at load or unload: {tag} is {size[1]}')
    flags = ' '.join(re.findall(r'\((?:FLAGS|FLAGS_1)\)\s+(.*)', dynamic))
    for flag in ('NOW', 'NODELETE'):
        if flag not in flags:
            found.append(f'not linked with -z {flag.lower()}')
    if re.search(r'\(TEXTREL\)', dynamic):
        found.append('relocations in its code')
    if re.search(r'\((RPATH|RUNPATH)\)', dynamic):
        found.append('a search path of its own')
    if 'TLSDESC' in lint.output_of(readelf, '-rW', library):
        found.append('thread-local data without tls_model("initial-exec")')
    stack = re.search(r'GNU_STACK\s.*', lint.output_of(readelf, '-lW', library))
    if not stack or 'E' in stack[0].split()[-2]:
        found.append('wants an executable stack')
    if host_is_x86(readelf, library) and 'SHSTK' not in \
            lint.output_of(readelf, '-nW', library):
        found.append('takes the shadow stack from the process that loads it')
    asked = lint.output_of(nm, '-D', '--undefined-only', '--with-symbol-versions', library)
    for line in asked.splitlines():
        name = re.search(r'[UwVvi] (.*)', line)[1].split()[0]
        if FORBIDDEN_REFERENCE.match(name):
            found.append(f'refers to {name}')
        if name.startswith('__tls_get_addr'):
            found.append('thread-local data without tls_model("initial-exec")')
        found += too_new(name)
    return found


def too_new(name):
    """name: SYMBOL or SYMBOL@VERSION"""
    version = re.search(r'@GLIBC_(\d+)\.(\d+)', name)
    if version and (int(version[1]), int(version[2])) > OLDEST and not MOVED.match(name):
        return [f'needs {name}, newer than GLIBC_{OLDEST[0]}.{OLDEST[1]}']
    return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('library')
    parser.add_argument('--cc', nargs='+', required=True)
    parser.add_argument('--nm', required=True)
    parser.add_argument('--readelf', required=True)
    options = parser.parse_args()
    good = ('-Wl,-z,now', '-Wl,-z,nodelete')
    if host_is_x86(options.readelf, options.library):
        good += ('-Wl,-z,shstk',)

    def doctored(source, *flags):
        return check(options.readelf, options.nm,
                     lint.shared_object(options.cc, source, '-w', *flags))

    if doctored('int x;', *good):
        lint.verdict([f'finds fault with a sound library: {doctored("int x;", *good)}'], {})
    lint.verdict(
        check(options.readelf, options.nm, options.library),
        {'a second library needed': doctored('int x;', *good, '-Wl,--no-as-needed', '-lm'),
         'a constructor': doctored('__attribute__((constructor)) void f(void) {}', *good),
         'a destructor': doctored('__attribute__((destructor)) void f(void) {}', *good),
         'lazy binding': doctored('int x;', *good, '-Wl,-z,lazy'),
         'unloadable': doctored('int x;', *(f for f in good if 'nodelete' not in f)),
         'an executable stack': doctored('int x;', *good, '-Wl,-z,execstack'),
         'a reference to the driver': doctored('int cuInit(int); int f(void) { return cuInit(0); }',
                                               *good),
         **({'no shadow stack': doctored('int x;', *good[:2], '-fcf-protection=none')}
            if len(good) > 2 else {}),
         'a reference to a newer C library': too_new('fstat64@GLIBC_2.33'),
         'a waiting function that moved when it was young': too_new('sem_clockwait@GLIBC_2.34'),
         'one that the headers slip in': too_new('__isoc23_strtol@GLIBC_2.38'),
         'a newer version of one that moved': too_new('pthread_create@GLIBC_2.40'),
         'thread-local data that is allocated late': doctored(
             '__thread int x; int *f(void) { return &x; }', *good),
         'a call of exit': doctored('void exit(int); void f(void) { exit(0); }', *good),
         'a call of dlsym': doctored('void *dlsym(void *, char *); void *f(void) '
                                     '{ return dlsym(0, "x"); }', *good)})


main()
