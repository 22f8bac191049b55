# SPDX-License-Identifier: BSD-2-Clause
"""Runs the tests of a file, or its main() where it has one. Exit status 77: all were skipped. What
was skipped beside tests that ran is told on stdout, for tests/skipped.py.

run_tests.py FILE ARGUMENTS_OF_THE_FILE.. [CLASS[.TEST]..]: of these classes alone
TEST_FAILFAST in the environment: the first failure ends it"""
import collections
import importlib
import os
import sys
import unittest


class Result(unittest.TextTestResult):
    num_done = 0

    def addSuccess(self, test):  # noqa: N802 # pylint: disable=C0103
        super().addSuccess(test)
        self.num_done += 1

    def addExpectedFailure(self, test, err):  # noqa: N802 # pylint: disable=C0103
        super().addExpectedFailure(test, err)
        self.num_done += 1

    def status(self):
        if not self.wasSuccessful():
            return 1
        if not self.num_done:
            return 77 if self.skipped else 5
        for why, number in sorted(
                collections.Counter(why for _, why in self.skipped).items()):
            print(f"skipped in part: {number} test{'s' * (number > 1)}: {why}")
        return 0


del sys.argv[0]
folder, name = os.path.split(sys.argv[0])
sys.path[0] = folder
module = importlib.import_module(name.removesuffix(".py"))
if hasattr(module, "main"):
    sys.exit(module.main())
chosen = [word for word in sys.argv[1:]
          if isinstance(getattr(module, word.split(".")[0], None), type)]
sys.exit(unittest.main(module, argv=[name, *chosen], exit=False,
                       testRunner=unittest.TextTestRunner(resultclass=Result),
                       failfast="TEST_FAILFAST" in os.environ).result.status())
