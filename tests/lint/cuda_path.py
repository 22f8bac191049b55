# SPDX-License-Identifier: BSD-2-Clause
"""scripts/cuda-path finds the CUDA headers of Python packages wherever Python itself finds these:
what builds a wheel (`pip install .`) puts them into a folder of its own."""
import importlib.machinery
import importlib.util
import os
import sys
import tempfile

import lint

sys.dont_write_bytecode = True


def names_found(folder):
    loader = importlib.machinery.SourceFileLoader('cuda_path', str(lint.ROOT / 'scripts/cuda-path'))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('cuda_path', loader))
    loader.exec_module(module)
    return [path for path in module.candidates('') if path.startswith(folder)]


def main():
    with tempfile.TemporaryDirectory() as folder:
        headers = os.path.join(folder, 'nvidia', 'cu13')
        os.makedirs(headers)
        assert not names_found(folder)
        sys.path.append(folder)
        found = headers in names_found(folder)
    print('found' if found else 'the folders of sys.path are not looked into')
    return 0 if found else 1


if __name__ == '__main__':
    sys.exit(main())
