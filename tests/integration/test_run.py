"""tests/run.py names every failure in its last lines: what each kind of test prints when it fails is read right."""
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests"))
import run  # noqa: E402

CHECK = """98%: Checks: 50, Failures: 1, Errors: 1
tests/unit/service/test_x.c:319:F:pauses:a_movement_keeps_to_its_cap:1: Assertion 'moved <= cap' failed: moved == 2, cap == 1
tests/unit/service/test_x.c:12:E:core:falls:0: (after this point) Received signal 11 (Segmentation fault)
"""
PYTHON = """import unittest

class A(unittest.TestCase):
    @classmethod
    def tearDownClass(cls):
        raise OSError("it stays")
    def differ(self):
        self.assertEqual(1, 2, "two" + chr(10) + "lines")
    def test_differs(self):
        "What a docstring says."
        self.differ()
    @unittest.skip("no reason")
    def test_skipped(self):
        pass
    def test_sub(self):
        with self.subTest(i=1):
            raise ValueError("bad")
"""
NODE = """import assert from 'node:assert/strict';
import { test } from 'node:test';
const differ = () => assert.equal(1, 2, 'the numbers\\nare not one');
test('differs', async () => {
  await Promise.resolve();
  differ();
});
test('passes', () => {});
test('left out', { skip: 'no reason' }, () => {});
"""


class Failures(unittest.TestCase):
    def lines(self, find, output):
        return [run.short(f"{test}: {what}") for test, what in find(output)]

    def output(self, name, source, *command):
        with open(os.path.join(self.folder, name), "w") as f:
            f.write(source)
        # Outside the runner that runs this very test: node's tells those inside itself to say nothing.
        env = {k: v for k, v in os.environ.items() if k != "NODE_TEST_CONTEXT"}
        p = subprocess.run([*command, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, env=env)
        self.assertNotEqual(p.returncode, 0)
        return p.stdout

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        patch = mock.patch.object(run, "ROOT", self.folder)
        patch.start()
        self.addCleanup(patch.stop)

    def test_checks_lines(self):
        self.assertEqual(self.lines(run.check_failures, CHECK), [
            "pauses/a_movement_keeps_to_its_cap:1: tests/unit/service/test_x.c:319: Assertion 'moved <= cap' failed: moved == 2, cap == 1",
            "core/falls:0: tests/unit/service/test_x.c:12: (after this point) Received signal 11 (Segmentation fault)"])

    def test_unittests_blocks_skips_and_a_run_that_was_cut_off(self):
        output = self.output("test_x.py", PYTHON, sys.executable, "-m", "unittest", "-v")
        self.assertEqual(self.lines(run.python_failures, output), [
            "ERROR test_sub (test_x.A.test_sub) (i=1): test_x.py:17: ValueError: bad",
            "ERROR tearDownClass (test_x.A): test_x.py:6: OSError: it stays",
            "FAIL test_differs (test_x.A.test_differs): test_x.py:11: AssertionError: 1 != 2 : two lines",
            "test_skipped (test_x.A.test_skipped): skipped 'no reason'"])
        cut = "test_a (test_x.A.test_a) ... ok\ntest_b (test_x.A.test_b) ... \nran longer than 900 s"
        self.assertEqual([test for test, _ in run.python_failures(cut)], ["test_b (test_x.A.test_b)"])

    def test_nodes_points(self):
        output = self.output("x.test.mjs", NODE, "node", "--test", "--test-reporter=tap")
        self.assertEqual(self.lines(run.node_failures, output), ["differs: x.test.mjs:6: the numbers are not one 1 !== 2", "left out: SKIP no reason"])
        broken = self.output("y.test.mjs", "import './none.mjs';\n", "node", "--test", "--test-reporter=tap")
        self.assertIn("y.test.mjs: Error [ERR_MODULE_NOT_FOUND]: Cannot find module", self.lines(run.node_failures, broken)[0])

    def test_they_stand_before_the_last_line(self):
        tally = run.Tally()
        with mock.patch("builtins.print") as printed:
            tally.add("unit", 48, 2, 1.0, CHECK, run.check_failures)
            tally.add("fuzz/x", 0, 1, 1.0, "no line of a known kind\n", run.whole)
            self.assertEqual(tally.end(0), 1)
        said = [call.args[0] for call in printed.call_args_list]
        self.assertEqual(said[-1], "48 passed, 3 failed")
        self.assertRegex(said[-4], "^FAILED unit pauses/a_movement")
        self.assertEqual(said[-2], "FAILED fuzz/x: no line of a known kind")


if __name__ == "__main__":
    unittest.main()
