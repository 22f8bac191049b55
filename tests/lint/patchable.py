# SPDX-License-Identifier: BSD-2-Clause
"""Some libraries patch the entries of allocation functions, so these begin with instructions that
can be moved. UCX replaces the first five bytes by a jump. It knows pushes, the frame pointer's move
and the making of a frame. Where it meets another instruction it gives up on CUDA as a whole. x86-64
only."""

import argparse
import re

import lint

NAMES = (
    'cuMemAlloc_v2', 'cuMemAllocPitch_v2', 'cuMemFree_v2', 'cuMemFreeAsync', 'cuMemFreeAsync_ptsz',
    'cuMemAllocManaged', 'cuMemAllocAsync', 'cuMemAllocAsync_ptsz', 'cuMemAllocFromPoolAsync',
    'cuMemAllocFromPoolAsync_ptsz', 'cudaMalloc', 'cudaFree')
MOVABLE = re.compile(r'push\s+%r\w+|mov\s+%rsp,%rbp|sub\s+\$0x\w+,%rsp|mov\s+\$0x\w+,%\w+')
JUMP_BYTES = 5


def check(objdump, library, names=NAMES):
    found = []
    text = lint.output_of(objdump, '-d', '-w', '--section=.text', library)
    for name in names:
        start = text.find(f'<{name}>:\n')
        if start < 0:
            found.append(f'{name} has no code')
            continue
        size = 0
        for line in text[start:].splitlines()[1:]:
            _, code, *instruction = line.split('\t')
            instruction = instruction[0].strip() if instruction else ''
            if not MOVABLE.fullmatch(instruction):
                found.append(f'{name} has "{instruction}" in its first {JUMP_BYTES} bytes')
                break
            size += len(code.split())
            if size >= JUMP_BYTES:
                break
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('library')
    parser.add_argument('--cc', nargs='+', required=True)
    parser.add_argument('--objdump', required=True)
    options = parser.parse_args()

    def doctored(body):
        source = f'__asm__(".globl f\\n.type f, %function\\nf:\\n{body}\\n");'
        return check(options.objdump, lint.shared_object(options.cc, source, '-w'), ('f',))

    good = doctored(r'push %rbp\nmov %rsp,%rbp\npush %rbx\nret')
    if good:
        lint.verdict([f'finds fault with a sound entry: {good[0]}'], {})
    lint.verdict(
        check(options.objdump, options.library),
        {'a landing pad': doctored(r'endbr64\npush %rbp\nmov %rsp,%rbp\npush %rbx\nret'),
         'a test of an argument': doctored(r'test %rdi,%rdi\nje 1f\n1: ret'),
         'a call too early': doctored(r'push %rbp\nmov %rsp,%rbp\ncall *(%rax)\nret'),
         'a function too short': doctored('ret')})


main()
