"""The main job, as a newcomer runs it: kvasird --demo --exit under the shipped release policy."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from support import KVASIRD, ROOT, START_S, environment, free_port


class Demo(unittest.TestCase):
    def test_three_rollouts_end_as_promised(self):
        p = subprocess.run([KVASIRD, "--demo", "--exit", "--listen", f"127.0.0.1:{free_port()}"], cwd=ROOT, capture_output=True, text=True, timeout=15 * START_S, env=environment())
        self.assertEqual(p.returncode, 0, p.stdout[-3000:] + p.stderr[-3000:])
        lines = p.stdout.splitlines()
        self.assertIn("http://127.0.0.1:", lines[0])
        self.assertIn("kvasir console", lines[1])
        last = json.loads(lines[-1])
        self.assertEqual([r["final_stage"] for r in last["rollouts"]], ["FULL", "FULL", "EXACT_BASELINE"])
        self.assertEqual([r["contract"] for r in last["rollouts"]], ["exact", "approximate", "approximate"])
        for r in last["rollouts"][:2]:
            self.assertEqual([t["to"] for t in r["transitions"] if t["to"] != t["from"]], ["SHADOW", "CANARY", "RAMP", "FULL"])
        failed = last["rollouts"][2]["transitions"][-1]
        self.assertIn(failed["from"], ("SHADOW", "CANARY"))
        self.assertIn("omitted_mass", failed["actor"] + failed["detail"])
        self.assertTrue(all(r["receipts"] > 0 for r in last["rollouts"]))
        session = last["interruption"]
        self.assertEqual((session["killed"], session["state"], session["action"], session["result_state"], session["bit_exact"]), (True, "PAUSED_HOST", "swap", "APPLIED", True))
        self.assertGreater(session["swapped_bytes"], 0)
        self.assertGreaterEqual(session["restored_tokens"], 64)
        self.assertGreater(session["tokens"], 0)
        self.assertTrue(any("SIGKILL" in line for line in lines))
        self.assertTrue(any("the same as without a kill" in line for line in lines))
        self.assertGreater(last["requests"], 100)
        self.assertEqual((last["failed_requests"], last["exact_mismatches"], last["baseline_digest_equal"], last["receipts_verified"]), (0, 0, True, True))

    def test_the_installed_program_finds_its_model(self):
        prefix = tempfile.mkdtemp(prefix="kvasir-test-")
        try:
            os.makedirs(os.path.join(prefix, "bin"))
            shutil.copy(KVASIRD, os.path.join(prefix, "bin"))
            models = os.path.join(prefix, "share", "kvasir", "models")
            os.makedirs(models)
            shutil.copy(os.path.join(ROOT, "models", "kvasir-demo-q8_0.gguf"), models)
            p = subprocess.Popen([os.path.join(prefix, "bin", "kvasird"), "--listen", "127.0.0.1:0"], cwd=prefix, stderr=subprocess.PIPE, text=True,
                                 env=environment(HOME=prefix, XDG_STATE_HOME=""))
            try:
                line = p.stderr.readline()
                while line and "serves" not in line:  # what its store says of the start may come before
                    line = p.stderr.readline()
                self.assertIn("serves kvasir-demo", line)
                self.assertIn(os.path.join(prefix, ".local/state/kvasir"), line)
            finally:
                p.terminate()
                self.assertEqual(p.wait(60), 0)
                p.stderr.close()
        finally:
            shutil.rmtree(prefix, ignore_errors=True)


if __name__ == "__main__":
    unittest.main()
