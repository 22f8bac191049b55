# SPDX-License-Identifier: BSD-2-Clause
"""Makes a copy of the tool that has its modules compiled, beside their sources: compiled.py TOOL
COPY. Another Python than this one passes over what is compiled, and takes the sources."""
import importlib._bootstrap_external as external
import os
import sys
import zipfile

tool, copy = map(os.path.abspath, sys.argv[1:])
with zipfile.ZipFile(tool) as archive, open(copy, "wb") as file:
    file.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(file, "w") as packed:
        for info in archive.infolist():
            text = archive.read(info)
            packed.writestr(info, text)
            if info.filename.startswith("gpucache/") and info.filename.endswith(".py"):
                code = compile(text, os.path.join(copy, info.filename), "exec", dont_inherit=True)
                # With a hash that nobody compares: the source beside it is the one.
                packed.writestr(info.filename + "c",
                                external._code_to_hash_pyc(code, bytes(8), checked=False))
os.chmod(copy, 0o755)
