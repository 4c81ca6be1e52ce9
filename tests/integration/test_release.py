"""Releases on the real daemon: kill -9 around a rollback, receipts of a stopped server, policies offline, the release fixture."""
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import unittest

from support import KVASIR, ROOT, Daemon


def kvasir(*args):
    p = subprocess.run([KVASIR, *args], capture_output=True, text=True, timeout=60, cwd=ROOT)
    return p.returncode, p.stdout, p.stderr


def start_quest(d):
    status, r = d.post("/api/v1/rollouts", {"name": "quest-64", "pipeline": "quest", "params": {"budget_rows": 64}, "contract": "approximate"})
    assert status == 201, r
    return r["id"]


def wait_stage(d, rollout, stage):
    """Follows the event stream until the rollout is at this stage."""
    if d.get(f"/api/v1/rollouts/{rollout}")[1]["stage"] == stage:
        return
    for event, data, _ in d.events():
        if event == "rollout" and data["id"] == rollout and data["stage"] == stage:
            return
    raise AssertionError(f"{rollout} never came to {stage}")


class Restarts(unittest.TestCase):
    def setUp(self):
        self.state = tempfile.mkdtemp(prefix="kvasir-release-")
        self.addCleanup(shutil.rmtree, self.state, True)

    def test_an_acknowledged_rollback_survives_kill(self):
        d = Daemon(state=self.state)
        rollout = start_quest(d)
        wait_stage(d, rollout, "SHADOW")
        status, answer = d.post(f"/api/v1/rollouts/{rollout}/rollback", {"reason": "test"})
        self.assertEqual(status, 200)
        self.assertTrue(answer["rollback"]["fenced"] and answer["rollback"]["durable"])
        d.kill()  # at once: the control thread may or may not have recorded it
        again = Daemon(state=self.state)
        _, r = again.get(f"/api/v1/rollouts/{rollout}")
        self.assertEqual((r["stage"], r["live"]), ("EXACT_BASELINE", False))
        self.assertEqual(r["transitions"][-1]["reason"], "OPERATOR_ROLLBACK")
        _, v = again.get("/api/v1/receipts/verify")
        self.assertTrue(v["verified"], v)
        again.stop()

    def test_a_drain_can_be_rolled_back_and_cut_off(self):
        for word in ("route", "SIGUSR1"):
            state = os.path.join(self.state, word)
            d, got = Daemon("--set", "engine.drain_timeout_ms=120000", state=state), []
            rollout = start_quest(d)
            wait_stage(d, rollout, "SHADOW")
            asks = threading.Thread(target=lambda: got.append(d.post("/v1/completions", {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True})))
            asks.start()
            d.wait_until(lambda: d.get("/api/v1/status")[1]["live"]["active"] == 1)
            d.signal(signal.SIGTERM)
            d.wait_line("draining")
            self.assertEqual(d.get("/readyz")[0], 503)
            self.assertEqual(d.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[1]["error"]["code"], "DRAINING")
            if word == "route":
                self.assertEqual(d.post(f"/api/v1/rollouts/{rollout}/rollback", {"reason": "test"})[0], 200)
            else:
                d.signal(signal.SIGUSR1)
                d.wait_line("SIGUSR1: all traffic is on the exact baseline")
            d.signal(signal.SIGTERM)
            d.wait_line("told to stop once more")
            asks.join(60)
            self.assertEqual(got[0][1]["error"]["code"], "DRAINING", got)
            self.assertEqual(d.process.wait(60), 0)
            d.stop()
            with Daemon(state=state) as again:
                self.assertEqual(again.get(f"/api/v1/rollouts/{rollout}")[1]["stage"], "EXACT_BASELINE")

    def test_a_killed_server_resumes_its_stage(self):
        d = Daemon(state=self.state)
        rollout = start_quest(d)
        wait_stage(d, rollout, "SHADOW")
        d.kill()
        again = Daemon(state=self.state)
        _, r = again.get(f"/api/v1/rollouts/{rollout}")
        self.assertEqual((r["stage"], r["live"]), ("SHADOW", True))
        again.stop()

    def test_the_command_line_names_the_new_rollout_and_takes_no_share_that_is_none(self):
        d = Daemon(state=self.state)
        rollout = start_quest(d)
        for share in ("fifty", "5O", "101", "-1", "nan"):
            status, out, err = kvasir("--url", d.url, "rollout", "ramp", share)
            self.assertEqual((status, out), (2, ""), (share, err))
        self.assertEqual(kvasir("--url", d.url, "rollout", "rollback", rollout)[0], 0)
        d.wait_until(lambda: kvasir("--url", d.url, "rollout", "retry", rollout)[1:] == ("r_000002: OFF 0 %\n", ""))
        status, out, err = kvasir("--url", d.url, "policy", "list")
        column = out.splitlines()[0].index("version")
        self.assertEqual({len(line[column:].split()[0]) for line in out.splitlines()[1:]}, {12}, out)
        d.stop()

    def test_receipts_of_a_stopped_server(self):
        d = Daemon(state=self.state)
        d.complete("The magic number", max_tokens=4)
        status, _, err = kvasir("receipts", "verify", "--state", self.state)
        self.assertEqual(status, 1)
        self.assertIn("STORE_LOCKED", err)
        d.stop()
        status, out, _ = kvasir("--json", "receipts", "verify", "--state", self.state)
        self.assertEqual(status, 0)
        self.assertGreater(json.loads(out)["rows"], 3)
        key = os.path.join(self.state, "elsewhere.key")
        os.rename(os.path.join(self.state, "receipts.key"), key)
        self.assertEqual(kvasir("receipts", "verify", "--state", self.state)[0], 1)
        self.assertEqual(kvasir("receipts", "verify", "--state", self.state, "--key", key)[0], 0)
        self.assertEqual(kvasir("receipts", "verify", "--key", key)[0], 2)
        with open(key + "2", "wb") as f:
            f.write(bytes(32))
        status, out, _ = kvasir("receipts", "verify", "--state", self.state, "--key", key + "2")
        self.assertEqual(status, 1, "a signature by another key was taken")
        os.rename(key, os.path.join(self.state, "receipts.key"))
        db = sqlite3.connect(os.path.join(self.state, "kvasir.db"))
        db.executescript("DROP TRIGGER receipts_no_update; UPDATE receipts SET tokens = tokens + 1 WHERE id = 3")
        db.close()
        status, out, _ = kvasir("--json", "receipts", "verify", "--state", self.state)
        self.assertEqual((status, json.loads(out)["at"]), (1, 3))


class Policies(unittest.TestCase):
    def test_shipped_policies_pass_with_their_tests(self):
        for kind in ("admission", "fallback", "release"):
            status, out, err = kvasir("--json", "policy", "check", f"policies/{kind}.lua")
            self.assertEqual(status, 0, err)
            answer = json.loads(out)
            self.assertEqual((answer["kind"], answer["tests"]["failed"]), (kind, 0))
            self.assertGreaterEqual(answer["tests"]["passed"], 4)

    def test_refusals_name_their_reason(self):
        cases = [("return {", "POLICY_PARSE"), ("return {}", "POLICY_SHAPE"), ("error('x')", "POLICY_FAULT"), ("while true do end", "POLICY_BUDGET"),
                 ("return {api=1,name='x',fallback=function() return {action='ACCEPT_APPROXIMATE'} end}", "POLICY_ILLEGAL")]
        for source, reason in cases:
            with tempfile.NamedTemporaryFile("w", suffix=".lua") as f:
                f.write(source)
                f.flush()
                status, _, err = kvasir("policy", "check", f.name)
                self.assertEqual(status, 1, source)
                self.assertIn(reason, err)
        self.assertEqual(kvasir("policy", "check", "/nonexistent.lua")[0], 1)
        self.assertEqual(kvasir("policy", "check")[0], 2)

    def test_a_failing_policy_test_is_told(self):
        with tempfile.TemporaryDirectory() as d:
            shutil.copy(os.path.join(ROOT, "policies", "release.lua"), d)
            os.mkdir(os.path.join(d, "test"))
            with open(os.path.join(d, "test", "release.lua"), "w") as f:
                f.write("return { never = function(p) assert(p.release('OFF', {}, { wait_over = true }).action == 'HOLD', 'it moved') end }")
            status, _, err = kvasir("policy", "check", os.path.join(d, "release.lua"))
            self.assertEqual(status, 1)
            self.assertIn("it moved", err)


class Fixture(unittest.TestCase):
    def test_every_mutation_is_refused_with_its_reason(self):
        status, out, err = kvasir("--json", "lab", "--fixture", "tests/fixtures/contract-9-release.json")
        self.assertEqual(status, 0, err)
        answer = json.loads(out)
        self.assertEqual((answer["accepted"], answer["wrong"]), (1, []))
        self.assertGreaterEqual(answer["rejected"], 35)


if __name__ == "__main__":
    unittest.main()
