# SPDX-License-Identifier: BSD-2-Clause
"""What the tests of the benchmarks share."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os

import bench_results
import bench_store


def script(path):
    """A script without an ending, as a module."""
    loader = importlib.machinery.SourceFileLoader("script", path)
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader("script", loader))
    loader.exec_module(made)
    return made


def published(folder, *files):
    """What --results says of files with these rows, and the page that it makes."""
    names = []
    for number, rows in enumerate(files):
        names.append(os.path.join(folder, f"{number}.json"))
        bench_store.save(names[-1], rows)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = bench_results.publish(names, folder)
    with open(os.path.join(folder, bench_results.PAGE)) as file:
        return status, said.getvalue(), file.read()
