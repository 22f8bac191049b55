#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs pair.py. Hundreds of tests start this: Python compiles a program at each start, and keeps
what it compiled of a module."""
import sys

import pair

if __name__ == "__main__":
    sys.exit(pair.main(sys.argv[1:]))
