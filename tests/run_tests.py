# SPDX-License-Identifier: BSD-2-Clause
"""Runs the tests of a file, or its main() where it has one.

run_tests.py FILE ARGUMENTS_OF_THE_FILE.. [CLASS[.TEST]..]: of these classes alone
TEST_FAILFAST in the environment: the first failure ends it"""
import importlib
import os
import sys
import unittest

del sys.argv[0]
folder, name = os.path.split(sys.argv[0])
sys.path[0] = folder
module = importlib.import_module(name.removesuffix(".py"))
if hasattr(module, "main"):
    sys.exit(module.main())
chosen = [word for word in sys.argv[1:]
          if isinstance(getattr(module, word.split(".")[0], None), type)]
unittest.main(module, argv=[name, *chosen],
              failfast="TEST_FAILFAST" in os.environ)
