# SPDX-License-Identifier: BSD-2-Clause
"""The library prints no floating-point number: printf would print the decimal comma of the
program's locale. text_fixed (shim/process/text.h) prints decimals."""
import re

import lint

STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
FORMAT = re.compile(r"%[-+ #0']*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:L|l)?[aAeEfFgG](?!unction\b)")


def faults(sources):
    for path, text in sources.items():
        code = lint.code_of(text, keep_strings=True)
        for string in STRING.finditer(code):
            if FORMAT.search(string.group().replace('%%', '')):
                yield f'{path}:{lint.line_of(code, string.start())}: {string.group()}'


def main():
    for doctored in ('"%.1f MiB"', '"%*.*f"', '"100 %% of %g"', '"%Lf"'):
        assert list(faults({'doctored.c': f'log_info({doctored}, x);'})), doctored
    for fine in ('"%d of %u.%u"', '"100 %%f"', '"%5.3s"', '"%zu"', '".type x, %function"'):
        assert not list(faults({'fine.c': f'log_info({fine}, x);'})), fine
    sources = lint.sources('pool', 'shim')
    found = list(faults(sources))
    print('\n'.join(found) or f'no floating-point number is printed by {len(sources)} sources')
    return 1 if found else 0


if __name__ == '__main__':
    raise SystemExit(main())
