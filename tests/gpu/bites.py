#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs the canary in a way in which it has to fail. Succeeds only if it fails, with both kinds of
damage counted. bites.py LIBRARY_PATH CANARY [ARGUMENT..]"""
import os
import re
import subprocess
import sys

env = dict(os.environ, LD_LIBRARY_PATH=sys.argv[1], SIM_HAZARD="off")
result = subprocess.run(sys.argv[2:], env=env, capture_output=True, text=True, timeout=200)
print(result.stdout, result.stderr[-500:])
found = re.search(r"(\d+) overwritten, (\d+) seen early", result.stdout)
sys.exit(0 if result.returncode == 1 and found and int(found[1]) and int(found[2]) else 1)
