# SPDX-License-Identifier: BSD-2-Clause
"""What the lints share: reading C without its comments and strings, running tools, and one rule. A
lint must find the fault in a doctored copy before its silence on the real thing counts."""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


FOLDERS = []


def code_of(text, keep_strings=False):
    """C source with comments (and strings) blanked out; line numbers stay."""
    def blank(match):
        token = match.group()
        if token[0] == '/':
            return re.sub(r'[^\n]', ' ', token)
        return token if keep_strings else token[0] + ' ' * (len(token) - 2) + token[-1]
    return TOKEN.sub(blank, text)


def sources(*folders, suffixes=('.c', '.h', '.def')):
    """{path relative to the root: text} of the sources below some folders of the repository."""
    found = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob('*')):
            if path.suffix in suffixes and path.is_file():
                found[str(path.relative_to(ROOT))] = path.read_text()
    return found


def line_of(text, offset):
    return text.count('\n', 0, offset) + 1


def output_of(*command):
    return subprocess.run([str(c) for c in command], check=True, text=True, errors='replace',
                          stdout=subprocess.PIPE).stdout


def shared_object(cc, source, *flags, version_script=None):
    """A shared object made of a few lines of C; stays until the process ends."""
    folder = tempfile.TemporaryDirectory()
    FOLDERS.append(folder)
    path = pathlib.Path(folder.name) / 'doctored.so'
    if version_script:
        script = path.with_suffix('.map')
        script.write_text(version_script)
        flags += (f'-Wl,--version-script={script}',)
    subprocess.run([*cc, '-shared', '-fPIC', '-x', 'c', '-', '-o', str(path), *flags],
                   input=source, text=True, check=True)
    return path


def verdict(real, doctored):
    """real: complaints about the repository. doctored: {what is wrong: complaints about a copy with
    that fault}. Ends the process: 0 if the first is empty and none of the others is."""
    failed = False
    for complaint in real:
        print(complaint)
        failed = True
    for fault, complaints in doctored.items():
        if complaints:
            print(f'would find: {fault}: {complaints[0]}')
        else:
            print(f'this lint does not bite: {fault} goes unnoticed')
            failed = True
    sys.exit(1 if failed else 0)
