# SPDX-License-Identifier: BSD-2-Clause
"""Entry of the package and of the built tool, which is an archive with this file."""
import sys

from gpucache.cli import main

if __name__ == "__main__":
    sys.exit(main())
