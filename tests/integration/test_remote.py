"""The remote tier on two real daemons: what left the disk of one comes back from the other with the same tokens, and whatever is wrong with the store is computed instead."""
import glob
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from support import KVASIR, Daemon
from test_sessions import STORY, chat, first_turn, kill, saved, second_turn

SECRET = "extents-secret-of-a-test"
OTHERS = [STORY.replace("harbour", f"harbour of {name}") for name in ("Bergen", "Calais", "Dover", "Esbjerg", "Gdansk", "Hull", "Ostend", "Malmo")]


def sha(secret):
    return hashlib.sha256(secret.encode()).hexdigest()


class Store(Daemon):
    """A daemon that keeps extents for others."""

    def __init__(self, *args, **kw):
        config = {"auth": {"tokens": [{"name": "peer", "sha256": sha(SECRET), "rights": ["extents"]}, {"name": "reader", "sha256": sha("reader"), "rights": ["viewer"]}]}}
        super().__init__("--set", "extents.serve=true", "--set", "extents.reserve_bytes=0", *args, config=config, **kw)

    def files(self):
        return sorted(f for f in glob.glob(os.path.join(self.state, "extents", "*")) if len(os.path.basename(f)) == 64)

    def call(self, method, path="", body=None, token=SECRET):
        return self.request(method, "/v1/extents" + path, body, {"Authorization": f"Bearer {token}"} if token else {})


class Remote(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Daemon("--set", "engine.prefix_reuse=false") as plain:
            cls.answer, cls.first, _ = chat(plain, first_turn(), "s")
            cls.second = chat(plain, second_turn(cls.answer), "s")[1]

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvasir-remote-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.failures = {}
        self.token = os.path.join(self.folder, "token")
        with open(self.token, "w") as f:
            f.write(SECRET + "\n")

    def client(self, url, *more, state="state", **kw):
        os.makedirs(os.path.join(self.folder, state), exist_ok=True)
        settings = {"engine.prefix_reuse": "false", "tiers.disk.path": os.path.join(self.folder, state, "disk"), "tiers.disk.capacity_bytes": "4MiB", "tiers.disk.reserve_bytes": "0",
                    "tiers.remote.url": url, "tiers.remote.token_file": self.token, "tiers.remote.timeout_ms": "2000"}
        settings.update(m.split("=", 1) for m in more)
        return Daemon(*(a for k, v in settings.items() for a in ("--set", f"{k}={v}")), state=os.path.join(self.folder, state), **kw)

    def tier(self, d):
        return next(t for t in d.get("/api/v1/tiers")[1]["tiers"] if t["name"] == "remote")

    def until(self, ask, good, times=20000):
        for _ in range(times):
            value = ask()
            if good(value):
                return value
        raise AssertionError(f"it did not come about: {value}")

    def crowd_out(self, d):
        """The first turn of session s, and others' until the disk has nothing of it; what left is in the store."""
        self.assertEqual(chat(d, first_turn(), "s")[1], self.first)
        saved(d, "s")
        for i, story in enumerate(OTHERS):
            chat(d, first_turn(story), f"other{i}")
            saved(d, f"other{i}")
            if d.get("/api/v1/sessions/s")[1]["held_blocks"] == 0:
                break
        self.assertEqual(d.get("/api/v1/sessions/s")[1]["held_blocks"], 0)
        return self.until(lambda: self.tier(d), lambda t: t["transfers_in_flight"] == 0 and t["scratch_bytes"] == 0 and t["objects"] > 0)

    def resumes(self, d):
        """The second turn with the recompute's tokens; the session's row after it."""
        self.assertEqual(chat(d, second_turn(self.answer), "s")[1], self.second)
        return saved(d, "s")

    def test_a_turn_resumes_from_the_store_alone(self):
        with Store() as store:
            with self.client(store.url) as d:
                tier = self.crowd_out(d)
                self.assertEqual(tier["objects"], len(store.files()))
                self.assertEqual((tier["breaker"], tier["failures"]), ("closed", 0))
            shutil.rmtree(os.path.join(self.folder, "state", "disk"))
            with self.client(store.url) as d:  # it knows nothing but its key
                row = self.resumes(d)
                tier = self.tier(d)
                self.assertGreater(row["restored_tokens"], 0)
                self.assertEqual(tier["hits"] * 64, row["restored_tokens"])
                self.assertIn("restored from the remote tier,", d.get("/api/v1/receipts?kind=TRANSFER&session=s")[1]["receipts"][0]["detail"])
                self.assertEqual(tier["failures"], 0)

    def test_what_is_wrong_with_the_store_is_computed(self):
        """Objects with a flipped byte and cut short; another key; another tenant; a wrong token; no server at all."""
        with Store() as store:
            with self.client(store.url) as d:
                self.crowd_out(d)
            shutil.copytree(os.path.join(store.state, "extents"), os.path.join(self.folder, "kept"))
            for name, spoil in (("flipped", lambda b: b[:700] + bytes([b[700] ^ 1]) + b[701:]), ("short", lambda b: b[:-100])):  # every byte: tests/unit/service/test_remote.c
                with self.subTest(name):
                    for f in store.files():
                        with open(f, "rb") as g:
                            whole = g.read()
                        with open(f, "wb") as g:
                            g.write(spoil(whole))
                    tier, reasons = self.asked_anew(store.url)
                    self.assertEqual((tier["hits"], tier["refused"], tier["failures"]), (0, 1, 1))
                    self.assertEqual(reasons, ["SHORT_COPY" if name == "short" else "CHECKSUM_MISMATCH"])
                    self.put_back(store)
            with self.subTest("another key"):
                tier, reasons = self.asked_anew(store.url, state="another")
                self.assertEqual((tier["hits"], tier["misses"], tier["failures"], reasons), (0, 1, 0, []))
            with self.subTest("another tenant"):
                tenants = {"auth": {"tokens": [{"name": t, "sha256": sha(t), "rights": ["infer"], "tenant": t} for t in ("globex",)]}}
                with self.client(store.url, config=tenants) as d:
                    body = {"messages": second_turn(self.answer), "max_tokens": 24, "temperature": 0, "kvasir": {"session": "s"}}
                    status, _, raw = d.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer globex"})
                    self.assertEqual(status, 200, raw)
                    self.assertEqual((self.tier(d)["hits"], self.tier(d)["misses"]), (0, 1))
                self.forget_disk()
            with self.subTest("wrong token"):
                for token in ("nobody", "reader"):
                    self.give_token(token)
                    tier, reasons = self.asked_anew(store.url)
                    self.assertEqual((tier["hits"], reasons, tier["last_failure"]["reason"]), (0, ["FORBIDDEN"], "FORBIDDEN"))
                self.give_token(SECRET)
            tier, reasons = self.asked_anew(store.url)
            self.assertGreater(tier["hits"], 0)  # nothing of it spoiled what was right
        with self.subTest("no server"):
            tier, reasons = self.asked_anew(store.url)
            self.assertEqual((tier["hits"], reasons), (0, ["REMOTE_UNAVAILABLE"]))

    def asked_anew(self, url, *more, state="state"):
        """The second turn on a daemon with an empty disk: the same tokens; the tier's row and the reasons of failures."""
        self.forget_disk(state)
        with self.client(url, *more, state=state) as d:
            self.resumes(d)
            reasons = [f["reason"] for f in d.get("/api/v1/failures")[1]["failures"]]  # of this run and the ones before, the newest first
            new = reasons[:len(reasons) - self.failures.get(state, 0)]
            self.failures[state] = len(reasons)
            return self.tier(d), new

    def forget_disk(self, state="state"):
        shutil.rmtree(os.path.join(self.folder, state, "disk"), ignore_errors=True)

    def give_token(self, token):
        with open(self.token, "w") as f:
            f.write(token)

    def put_back(self, store):
        for f in glob.glob(os.path.join(self.folder, "kept", "*")):
            with open(f, "rb") as g:
                self.assertEqual(store.call("PUT", "/" + os.path.basename(f), g.read())[0], 204)

    def test_slow_and_dying_servers_cost_their_time_and_no_more(self):
        """Between both daemons something that holds answers back, or dies in the middle of one."""
        with Store() as store:
            with self.client(store.url) as d:
                self.crowd_out(d)
            for how, reason in (("stall", "REMOTE_TIMEOUT"), ("cut", "SHORT_COPY"), ("end", "REMOTE_UNAVAILABLE")):
                with self.subTest(how), Between(store.port, how) as between:
                    tier, reasons = self.asked_anew(between.url, "tiers.remote.timeout_ms=300")
                    self.assertEqual((tier["hits"], reasons), (0, [reason]))

    def test_three_failures_open_the_breaker_and_an_answer_closes_it(self):
        with Store() as store, Between(store.port, "stall") as between:
            with self.client(between.url, "tiers.remote.timeout_ms=100", "tiers.remote.pause_ms=4000") as d:
                for i in range(3):
                    chat(d, first_turn(f"Word {i} " * 100), f"x{i}")
                tier = self.tier(d)
                self.assertEqual(tier["breaker"], "open")
                failures, skipped = tier["failures"], tier["skipped"]
                self.assertGreaterEqual(failures, 3)
                chat(d, first_turn("Another word " * 100), "y")
                tier = self.tier(d)
                self.assertGreater(tier["skipped"], skipped)
                self.assertEqual(tier["failures"], failures)
                between.how = None
                time.sleep(4)  # the pause is a time
                chat(d, first_turn("A third word " * 100), "z")
                self.assertEqual(self.tier(d)["breaker"], "closed")

    def test_a_full_server_refuses_and_a_small_one_lets_the_oldest_go(self):
        with Store("--set", "extents.object_bytes=1KiB") as store:
            with self.client(store.url) as d:
                self.assertEqual(chat(d, first_turn(), "s")[1], self.first)
                for i, story in enumerate(OTHERS[:6]):
                    chat(d, first_turn(story), f"other{i}")
                    saved(d, f"other{i}")
                tier = self.until(lambda: self.tier(d), lambda t: t["scratch_bytes"] == 0 and t["failures"] > 0)
                self.assertEqual((tier["objects"], tier["last_failure"]["reason"]), (0, "BODY_TOO_LARGE"))
                self.resumes(d)
        store = Store("--set", "extents.capacity_bytes=64KiB")
        self.addCleanup(store.kill)
        body = os.urandom(20000)  # five pages: three of them fit
        names = [hashlib.sha256(bytes([i])).hexdigest() for i in range(4)]
        for n in names[:3]:
            self.assertEqual(store.call("PUT", "/" + n, body)[0], 204)
        self.assertEqual(store.call("GET", "/" + names[0])[2], body)  # used: now the second is the oldest
        self.assertEqual(store.call("PUT", "/" + names[3], body)[0], 204)
        self.assertEqual([store.call("HEAD", "/" + n)[0] for n in names], [200, 404, 200, 200])
        self.assertEqual(store.call("PUT", "/" + names[1], os.urandom(70000))[0], 507)
        self.assertEqual(store.call("PUT", "/" + "G" * 64, body)[0], 400)
        self.assertEqual(store.call("PUT", "/" + names[1], b"")[0], 400)
        self.assertEqual([store.call(m, "/" + names[0], token=t)[0] for m in ("GET", "PUT", "DELETE") for t in ("reader", None)], [403] * 6)
        state = store.state
        open(os.path.join(state, "extents", "notes"), "w").close()
        open(os.path.join(state, "extents", "writing-7"), "w").close()
        kill(store)
        with Store("--set", "extents.capacity_bytes=64KiB", state=state) as again:
            self.assertEqual([again.call("HEAD", "/" + n)[0] for n in names], [200, 404, 200, 200])
            status, facts = again.request("GET", "/v1/extents", None, {"Authorization": f"Bearer {SECRET}"})[::2]
            self.assertEqual((status, b'"objects":3' in facts, b'"bytes":60000' in facts), (200, True, True))
            self.assertEqual(sorted(set(os.listdir(os.path.join(state, "extents"))) - set(names)), ["notes"])

    def test_dropping_a_session_erases_what_the_store_has_of_it(self):
        store = Store()
        self.addCleanup(store.kill)
        with self.client(store.url, "tiers.remote.timeout_ms=500") as d:
            self.crowd_out(d)
            mine = set(store.files())
            status, row = d.post("/api/v1/sessions/s/drop")
            self.assertEqual(status, 200, row)
            self.assertGreater(len(mine - set(store.files())), 0)
            self.assertEqual(d.get("/api/v1/sessions/other0")[1]["state"], "PAUSED_HOST")
            kill(store)
            status, answer = d.post("/api/v1/sessions/other0/drop")
            self.assertEqual((status, answer["error"]["code"]), (503, "REMOTE_UNAVAILABLE"))
            self.assertIn("again", answer["error"]["hint"])

    def test_the_failure_lab_checks_a_silent_store(self):
        with Store() as store:
            with self.client(store.url, "faults.enabled=true") as d:
                status, fault = d.post("/api/v1/faults/remote_timeout/run")
                self.assertEqual((status, fault["last"]["pass"]), (200, True), fault)
                self.assertIn("answer", [c["what"] for c in fault["last"]["checks"]])
                self.assertEqual([f["reason"] for f in d.get("/api/v1/failures")[1]["failures"]], ["REMOTE_TIMEOUT"])
                self.assertEqual(self.tier(d)["breaker"], "closed")  # whoever was not named is still served by the store
                self.assertEqual(self.tier(d)["capability"]["checksum"], "aes-256-gcm")
                done = subprocess.run([KVASIR, "--url", d.url, "doctor", "--state", d.state], capture_output=True, text=True, timeout=30)
                self.assertIn("remote tier", done.stdout)

class Between(threading.Thread):
    """Hands requests on to a server, and its answers back: not at all (stall), the beginning of a long one (cut), or the end of the connection instead (end)."""

    def __init__(self, port, how):
        super().__init__(daemon=True)
        self.to, self.how, self.stop = port, how, threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join()

    def run(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        with c, socket.create_connection(("127.0.0.1", self.to)) as s:
            threading.Thread(target=self.pump, args=(c, s), daemon=True).start()
            try:
                while data := s.recv(65536):
                    if self.how == "stall":
                        self.stop.wait(10)
                    if self.how == "end":
                        c.shutdown(socket.SHUT_RDWR)
                        return
                    if self.how == "cut" and len(data) > 1000:
                        c.sendall(data[:1000])
                        c.shutdown(socket.SHUT_RDWR)
                        return
                    c.sendall(data)
            except OSError:
                pass

    @staticmethod
    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


if __name__ == "__main__":
    unittest.main()
