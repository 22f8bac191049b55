# SPDX-License-Identifier: BSD-2-Clause
"""The library exports exactly what its tables list, and under no version: a named version node
would keep references such as cudaMalloc@libcudart.so.13 from binding, silently."""

import argparse

import lint

# Of linker and C run-time, in some toolchains.
ALWAYS = {'_init', '_fini', '_edata', '_end', '__bss_start'}


def exported_names(nm, library):
    """Functions and data; a version node is itself an absolute symbol, not counted."""
    lines = lint.output_of(
        nm, '-D', '--defined-only', '--with-symbol-versions', library
    ).splitlines()
    return {line.split()[-1] for line in lines if line.split()[-2:-1] != ['A']}


def check(listed, exported):
    found = []
    for name in sorted(exported):
        plain, at, version = name.partition('@')
        if at:
            found.append(f'{plain} is exported under the version {version.lstrip("@")}')
        elif plain not in listed and plain not in ALWAYS:
            found.append(f'{name} is exported, but in no table')
    plain_names = {name.partition('@')[0] for name in exported}
    found += [f'{name} is in a table, but not exported' for name in sorted(listed - plain_names)]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('library')
    parser.add_argument('--cc', nargs='+', required=True)
    parser.add_argument('--nm', required=True)
    parser.add_argument('--docgen', required=True, help='prints the names in the tables')
    options = parser.parse_args()

    listed = set(lint.output_of(options.docgen, '--symbols').split())
    if len(listed) < 100:
        lint.verdict([f'the tables list {len(listed)} names only: they were not read'], {})

    def doctored(names, **more):
        source = ''.join(f'void {name}(void) {{}}\n' for name in sorted(names))
        return exported_names(
            options.nm, lint.shared_object(options.cc, source, '-w', '-fno-builtin', **more)
        )

    lint.verdict(
        check(listed, exported_names(options.nm, options.library)),
        {'one export too many': check(listed, doctored(listed | {'pool_alloc'})),
         'one export too few': check(listed, doctored(listed - {'cuMemFree_v2'})),
         'a version node': check(listed, doctored(
             listed, version_script='GPUCACHE_1 { global: *; };\n'))})


main()
