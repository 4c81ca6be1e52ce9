"""Sessions on the real daemon: a conversation resumes from disk after kill -9 with the same tokens, and nobody else's rows are ever served."""
import glob
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

from support import KVASIR, ROOT, Daemon, environment

STORY = "The harbour keeps its own hours, and the lamps along the wall are lit by whoever comes first. " * 12


def chat(daemon, messages, session, **more):
    status, answer = daemon.post("/v1/chat/completions", {"messages": messages, "max_tokens": 24, "temperature": 0, "logprobs": True,
                                                          "kvasir": {"session": session}, **more})
    assert status == 200, answer
    choice = answer["choices"][0]
    tokens = [(t["token"], t["logprob"]) for t in choice["logprobs"]["content"]]
    return choice["message"]["content"], tokens, answer


def first_turn(story=STORY):
    return [{"role": "system", "content": story}, {"role": "user", "content": "Who lights the lamps?"}]


def second_turn(answer, story=STORY):
    return first_turn(story) + [{"role": "assistant", "content": answer}, {"role": "user", "content": "And who puts them out?"}]


def kill(daemon):
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()


def saved(daemon, session, deadline=20000):
    """The session's row once its last turn is saved. Asks again until it is: the state is waited for, not a time."""
    for _ in range(deadline):
        status, row = daemon.get(f"/api/v1/sessions/{session}")
        if status == 200 and row.get("state") in ("PAUSED_HOST", "TOKEN_ONLY"):
            return row
    raise AssertionError(f"session {session} was not saved: {row}")


def sha(secret):
    return hashlib.sha256(secret.encode()).hexdigest()


def damage(folder, rng, bits=6):
    """Flips a bit here and there in every segment."""
    for name in glob.glob(os.path.join(folder, "segment-*")):
        size = os.path.getsize(name)
        with open(name, "r+b") as f:
            for _ in range(bits if size > 8192 else 0):
                at = rng.randrange(4096, size)
                f.seek(at)
                byte = f.read(1)
                f.seek(at)
                f.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))


class WrongRows(unittest.TestCase):
    """Two tenants talk over near-identical texts while rows are saved, evicted, damaged and found again, faults strike, and another model of the same shape
    opens the same folder: every answer equals the one that a daemon without any tier or reuse computes. That each field of the identity is needed is
    tests/unit/residency/test_hunt.c's to show."""
    ROUNDS = 40 if os.environ.get("KVASIR_SOAK") else 3
    TENANTS = ("acme", "globex")
    MODELS = [os.path.join(ROOT, "models", f"kvasir-demo-{kind}.gguf") for kind in ("q8_0", "f16")]
    FAULTS = ("bit_flip", "truncation", "dropped_read", "lease_loss", "omitted_position", "corrupted_generation", "disk_full", "sync_failure", "block_reuse_before_callback",
              "completion_after_cancel", "clock_jump")

    def stories(self):
        words = STORY.split()
        near = []
        for at, word in ((None, None), (0, "That"), (70, "unlit"), (130, "nobody")):
            w = list(words)
            if at is not None:
                w[at] = word
            near.append(" ".join(w))
        return near

    def ask(self, d, tenant, messages, session):
        status, _, body = d.request("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 10, "temperature": 0, "logprobs": True,
                                                                     "kvasir": {"session": session}}, {"Authorization": f"Bearer {tenant}"})
        assert status == 200, body
        choice = json.loads(body)["choices"][0]
        return choice["message"]["content"], [(t["token"], t["logprob"]) for t in choice["logprobs"]["content"]]

    def arm(self, d, rng):
        for name in rng.sample(self.FAULTS, 6):
            body = {"count": rng.randrange(1, 4), "scope": {"tenant": rng.choice(self.TENANTS)}}
            status, _, raw = d.request("POST", f"/api/v1/faults/{name}", body, {"Authorization": "Bearer operator"})
            assert status == 200, raw

    def hits(self, d):
        _, _, body = d.request("GET", "/api/v1/faults", headers={"Authorization": "Bearer operator"})
        return sum(f["hits"] for f in json.loads(body)["faults"])

    def test_every_answer_is_the_uncached_one(self):
        tokens = [{"name": t, "sha256": sha(t), "rights": ["infer"], "tenant": t} for t in self.TENANTS]
        config = {"auth": {"mode": "token", "tokens": tokens + [{"name": "operator", "sha256": sha("operator"), "rights": ["viewer", "operator"]}]}}
        stories, expected, rng = self.stories(), {}, random.Random(7)
        # /readyz is open, so the helper's own check passes without a token.
        for model in self.MODELS:
            with Daemon("--set", "engine.prefix_reuse=false", config=config, model=model) as plain:
                for i, story in enumerate(stories):
                    answer, first = self.ask(plain, "acme", first_turn(story), f"s{i}")
                    expected[model, i] = (first, answer, self.ask(plain, "acme", second_turn(answer, story), f"s{i}")[1])
        self.assertNotEqual([expected[self.MODELS[0], i][0] for i in range(len(stories))], [expected[self.MODELS[1], i][0] for i in range(len(stories))])
        folder, state = tempfile.mkdtemp(prefix="kvasir-tier-"), tempfile.mkdtemp(prefix="kvasir-state-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.addCleanup(shutil.rmtree, state, ignore_errors=True)
        hits = failures = struck = 0
        for round_ in range(self.ROUNDS):
            reuse = "true" if round_ % 3 == 2 else "false"
            model = self.MODELS[round_ % 3 == 1]
            d = Daemon("--set", "faults.enabled=true", "--set", f"tiers.disk.path={folder}", "--set", "tiers.disk.capacity_bytes=24MiB", "--set", "tiers.disk.reserve_bytes=16MiB", "--set",
                       f"engine.prefix_reuse={reuse}", state=state, config=config, model=model)
            wrong = []
            if round_:
                self.arm(d, rng)

            def talk(tenant, order):
                for i in order:
                    session = f"{tenant}-{i}"
                    if self.ask(d, tenant, first_turn(stories[i]), session)[1] != expected[model, i][0]:
                        wrong.append((round_, tenant, i, "first turn"))
                    if self.ask(d, tenant, second_turn(expected[model, i][1], stories[i]), session)[1] != expected[model, i][2]:
                        wrong.append((round_, tenant, i, "second turn"))

            threads = [threading.Thread(target=talk, args=(t, rng.sample(range(len(stories)), len(stories)))) for t in self.TENANTS]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(wrong, [])
            _, _, body = d.request("GET", "/api/v1/tiers", headers={"Authorization": "Bearer operator"})
            disk = [t for t in json.loads(body)["tiers"] if t["name"] == "disk"][0]
            self.assertEqual(disk["bytes_in"] - disk["bytes_out"], disk["persistent_bytes"])
            self.assertLessEqual(disk["used_bytes"], disk["capacity_bytes"])
            hits, failures, struck = hits + disk["hits"], failures + disk["failures"], struck + self.hits(d)
            kill(d)
            damage(folder, rng)
        self.assertGreater(hits, 0)
        self.assertGreater(failures, 0, "no damage was ever met: the hunt did not hunt")
        self.assertGreater(struck, 3, "no fault struck")


class Sessions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Daemon() as plain:
            cls.answer, cls.first, _ = chat(plain, first_turn(), "reference")
            _, cls.second, _ = chat(plain, second_turn(cls.answer), "reference")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvasir-tier-")
        self.state = tempfile.mkdtemp(prefix="kvasir-state-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)

    def daemon(self, *more):
        return Daemon("--set", f"tiers.disk.path={self.folder}", "--set", "tiers.disk.capacity_bytes=64MiB", "--set", "tiers.disk.reserve_bytes=16MiB", *more, state=self.state)

    def restored(self, daemon, session):
        return daemon.get(f"/api/v1/sessions/{session}")[1]

    def test_a_conversation_survives_kill_9(self):
        a = self.daemon()
        answer, tokens, _ = chat(a, first_turn(), "c1")
        self.assertEqual(tokens, self.first)
        row = saved(a, "c1")
        self.assertEqual(row["reason"], "OK")
        self.assertGreater(row["saved_blocks"], 3)
        kill(a)
        with self.daemon() as b:
            _, tokens, _ = chat(b, second_turn(answer), "c1")
            self.assertEqual(tokens, self.second)
            row = self.restored(b, "c1")
            self.assertEqual(row["restores"], 1)
            self.assertGreater(row["restored_tokens"], 128)
            disk = [t for t in b.get("/api/v1/tiers")[1]["tiers"] if t["name"] == "disk"][0]
            self.assertGreater(disk["hits"], 0)
            self.assertEqual(disk["bytes_in"] - disk["bytes_out"], disk["persistent_bytes"])
            self.assertLessEqual(disk["used_bytes"], disk["capacity_bytes"])
            _, _, body = b.request("GET", "/metrics")
            self.assertIn(b'kvasir_tier_used_bytes{tier="disk"', body)

    def reconcile(self, daemon):
        """What came is what went and what is there, always; and every place says the same of it, once all have looked after the last change."""
        there = {"host": "used_bytes", "disk": "persistent_bytes"}
        for _ in range(3000):
            tiers = {t["name"]: t for t in daemon.get("/api/v1/tiers")[1]["tiers"]}
            for name, field in there.items():
                self.assertEqual(tiers[name]["bytes_in"] - tiers[name]["bytes_out"], tiers[name][field], name)
                self.assertLessEqual(tiers[name]["used_bytes"], tiers[name]["capacity_bytes"], name)
            metrics = daemon.request("GET", "/metrics")[2].decode()
            fields = [(name, field, metric) for name in there for field, metric in (("bytes_in", "in_bytes_total"), ("bytes_out", "out_bytes_total"), (there[name], there[name]),
                                                                                   ("hits", "hits_total"), ("misses", "misses_total"))]
            differ = [f for f in fields if f'kvasir_tier_{f[2]}{{tier="{f[0]}",emulated="false"}} {tiers[f[0]][f[1]]}\n' not in metrics]
            if not differ:
                break
        self.assertEqual(differ, [])
        told = subprocess.run([KVASIR, "--url", daemon.url, "--json", "tiers"], capture_output=True, text=True, timeout=30, env=environment())
        self.assertEqual(told.returncode, 0, told.stderr)
        told = {t["name"]: t for t in json.loads(told.stdout)["tiers"]}
        self.assertEqual([f for f in fields if told[f[0]][f[1]] != tiers[f[0]][f[1]]], [])
        return tiers["disk"]

    def test_counters_reconcile_also_after_a_restart(self):
        small = ("--set", "tiers.disk.capacity_bytes=20MiB")
        a = self.daemon(*small)
        for i in range(40):
            chat(a, first_turn(f"Night {i}. " + STORY), f"r{i}")
            saved(a, f"r{i}")
        before = self.reconcile(a)
        self.assertGreater(before["bytes_out"], 0)  # the cap was met
        kill(a)
        with self.daemon(*small) as b:
            after = self.reconcile(b)
            self.assertEqual(after["bytes_in"], after["persistent_bytes"])  # what the start found
            self.assertGreater(after["persistent_bytes"], 0)
            self.assertLessEqual(after["persistent_bytes"], before["persistent_bytes"])
            chat(b, first_turn("Night 39. " + STORY) + [{"role": "assistant", "content": "They do."}, {"role": "user", "content": "Who?"}], "r39")
            saved(b, "r39")
            self.assertGreater(self.reconcile(b)["hits"], 0)
            self.assertEqual(b.post("/api/v1/sessions/r39/drop")[0], 200)
            self.assertGreater(self.reconcile(b)["bytes_out"], 0)

    def test_names_and_pins_survive_kill_9(self):
        a = self.daemon()
        chat(a, first_turn(), "n1")
        chat(a, first_turn(STORY.replace("lamps", "bells")), "n2")
        before = saved(a, "n1")
        saved(a, "n2")
        self.assertEqual(a.post("/api/v1/sessions/n1/pin")[0], 200)
        kill(a)
        b = self.daemon()
        try:
            tool = lambda *words: subprocess.run([KVASIR, "--url", b.url, *words], capture_output=True, text=True, timeout=30, env=environment())
            listed = tool("sessions", "list")
            self.assertEqual(listed.returncode, 0, listed.stderr)
            for session in ("n1", "n2"):
                self.assertIn(session, listed.stdout)
            row = self.restored(b, "n1")
            for field in ("tenant", "saved_tokens", "saved_blocks", "held_blocks", "saved_bytes", "saves"):
                self.assertEqual(row[field], before[field], field)
            self.assertTrue(row["pinned"])
            self.assertFalse(self.restored(b, "n2")["pinned"])
            self.assertIn("CONFLICT", tool("sessions", "drop", "n1").stderr)
            self.assertEqual(tool("sessions", "drop", "n2").returncode, 0)
        finally:
            kill(b)
        with self.daemon() as c:
            self.assertTrue(self.restored(c, "n1")["pinned"])
            self.assertEqual(c.get("/api/v1/sessions/n2")[0], 404)

    def test_killed_while_saving(self):
        """However much of the turn reached the disk: the next one has the same tokens."""
        for _ in range(4):
            a = self.daemon()
            answer, _, _ = chat(a, first_turn(), "c2")
            kill(a)  # the save has just begun
        with self.daemon() as b:
            self.assertEqual(chat(b, second_turn(answer), "c2")[1], self.second)

    def test_damage_is_computed_again(self):
        with self.daemon() as a:
            answer, _, _ = chat(a, first_turn(), "c3")
            saved(a, "c3")
        for name in glob.glob(os.path.join(self.folder, "segment-*")):
            with open(name, "r+b") as f:
                size = os.path.getsize(name)
                for at in range(4096 * 3 + 77, size, size // 7):
                    f.seek(at)
                    byte = f.read(1)
                    f.seek(at)
                    f.write(bytes([byte[0] ^ 16]))
        with self.daemon() as b:
            self.assertEqual(chat(b, second_turn(answer), "c3")[1], self.second)

    def test_another_key_reads_nothing(self):
        with self.daemon() as a:
            answer, _, _ = chat(a, first_turn(), "c4")
            saved(a, "c4")
        os.unlink(os.path.join(self.state, "tier.key"))
        with self.daemon() as b:
            self.assertEqual(chat(b, second_turn(answer), "c4")[1], self.second)
            self.assertEqual(self.restored(b, "c4")["restored_tokens"], 0)

    def test_operators_see_pin_and_drop(self):
        with self.daemon() as d:
            chat(d, first_turn(), "c5")
            saved(d, "c5")
            tool = lambda *a: subprocess.run([KVASIR, "--url", d.url, *a], capture_output=True, text=True, timeout=30, env=environment())
            listed = tool("sessions", "list")
            self.assertEqual(listed.returncode, 0, listed.stderr)
            self.assertIn("PAUSED_HOST", listed.stdout)
            self.assertEqual(tool("sessions", "pin", "c5").returncode, 0)
            self.assertTrue(json.loads(tool("sessions", "show", "c5").stdout)["pinned"])
            refused = tool("sessions", "drop", "c5")
            self.assertEqual(refused.returncode, 1)
            self.assertIn("CONFLICT", refused.stderr)
            self.assertEqual(tool("sessions", "unpin", "c5").returncode, 0)
            self.assertEqual(tool("sessions", "drop", "c5").returncode, 0)
            disk = [t for t in d.get("/api/v1/tiers")[1]["tiers"] if t["name"] == "disk"][0]
            self.assertEqual(disk["persistent_bytes"], 0)
            again = tool("sessions", "drop", "c5")
            self.assertEqual(again.returncode, 1)
            self.assertIn("nothing of session c5 of tenant local is kept on disk", again.stderr)
            status, answer = d.post("/api/v1/sessions/c5/burn")
            self.assertEqual((status, answer["error"]["code"]), (404, "NOT_FOUND"))

    def test_a_dropped_session_is_served_from_nowhere(self):
        for make in (self.daemon, Daemon):
            with make() as d:
                text = "The river runs past the mill and the mill turns all night. " * 12
                ask = lambda **more: d.complete(text, max_tokens=2, **more)["usage"]["prompt_tokens_details"]["cached_tokens"]
                ask(kvasir={"session": "gone"})
                if make != Daemon:
                    saved(d, "gone")
                self.assertGreater(ask(), 0)  # memory has it
                status, answer = d.post("/api/v1/sessions/gone/drop")
                self.assertEqual(status, 200, answer)
                self.assertEqual(ask(), 0)
                row = d.get(f"/api/v1/receipts/{answer['receipt']}")[1]
                row = row.get("receipt", row)
                self.assertEqual((row["kind"], row["tenant"], row["session"]), ("DELETION", "local", "gone"))

    def test_without_a_disk_tier(self):
        with Daemon() as d:
            chat(d, first_turn(), "c6")
            status, answer = d.post("/api/v1/sessions/c6/pin")
            self.assertEqual((status, answer["error"]["code"]), (400, "UNSUPPORTED"))


if __name__ == "__main__":
    unittest.main()
