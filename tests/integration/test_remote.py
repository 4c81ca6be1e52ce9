"""The remote tier on two real daemons: what left the disk of one comes back from the other with the same tokens, and whatever is wrong with the store is computed instead."""
import glob
import hashlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest

from support import KVASIR, Daemon, run
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
                    "tiers.remote.url": url, "tiers.remote.token_file": self.token, "tiers.remote.timeout_ms": "60000"}
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

    def fill(self, d):
        """The first turn of session s, and others' until the disk has nothing of it."""
        self.assertEqual(chat(d, first_turn(), "s")[1], self.first)
        saved(d, "s")
        for i, story in enumerate(OTHERS):
            chat(d, first_turn(story), f"other{i}")
            saved(d, f"other{i}")
            if d.get("/api/v1/sessions/s")[1]["held_blocks"] == 0:
                break
        self.assertEqual(d.get("/api/v1/sessions/s")[1]["held_blocks"], 0)

    def crowd_out(self, d):
        """The same, and what left is in the store."""
        self.fill(d)
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
            shutil.copytree(os.path.join(store.state, "extents"), os.path.join(self.folder, "kept"))
            for how, reason in (("stall", "REMOTE_TIMEOUT"), ("cut", "SHORT_COPY"), ("flip", "CHECKSUM_MISMATCH"), ("end", "REMOTE_UNAVAILABLE")):
                with self.subTest(how), Between(store.port, how) as between:
                    tier, reasons = self.asked_anew(between.url, *["tiers.remote.timeout_ms=300"] * (how == "stall"))
                    self.assertEqual((tier["hits"], reasons), (0, [reason]))
                    self.put_back(store)

    def test_three_failures_open_the_breaker_and_an_answer_closes_it(self):
        with Store() as store, Between(store.port, "stall") as between:
            with self.client(between.url, "tiers.remote.timeout_ms=100", "tiers.remote.pause_ms=3600000") as d:
                for i in range(3):
                    chat(d, first_turn(f"Word {i} " * 100), f"x{i}")
                tier = self.tier(d)
                self.assertEqual(tier["breaker"], "open")
                self.assertIn("tiers.remote.timeout_ms", tier["why"])
                failures, skipped = tier["failures"], tier["skipped"]
                self.assertGreaterEqual(failures, 3)
                chat(d, first_turn("Another word " * 100), "y")
                tier = self.tier(d)
                self.assertGreater(tier["skipped"], skipped)
                self.assertEqual(tier["failures"], failures)
            with self.client(between.url, "tiers.remote.timeout_ms=100", "tiers.remote.pause_ms=10", state="another") as d:
                for i in range(4):
                    chat(d, first_turn(f"Word {i} " * 100), f"x{i}")
                self.assertNotEqual(self.tier(d)["breaker"], "closed")
                between.how = None
                closed = (chat(d, first_turn(f"Word {i} again " * 100), f"y{i}") and self.tier(d) for i in range(50))  # under load an answer may be late once more
                tier = next(t for t in closed if t["breaker"] == "closed")
                self.assertIsNone(tier["why"])

    def test_a_full_server_refuses_and_a_small_one_lets_the_oldest_go(self):
        with Store("--set", "extents.object_bytes=1KiB") as store:
            with self.client(store.url, "tiers.remote.pause_ms=3600000") as d:
                self.assertEqual(chat(d, first_turn(), "s")[1], self.first)
                for i, story in enumerate(OTHERS[:6]):
                    chat(d, first_turn(story), f"other{i}")
                    saved(d, f"other{i}")
                tier = self.until(lambda: self.tier(d), lambda t: t["scratch_bytes"] == 0 and t["failures"] > 0)
                self.assertEqual((tier["objects"], tier["last_failure"]["reason"], tier["breaker"], tier["failures"]), (0, "BODY_TOO_LARGE", "full", 1))
                self.assertGreater(tier["skipped"], 0)  # one block was refused, and the others were not sent
                self.assertIn("extents.object_bytes", tier["why"])
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
        with self.client(store.url) as d:
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

    def test_over_https_only_from_whom_it_trusts(self):
        names = [os.path.join(self.folder, n) for n in ("store.key", "store.pem", "other.key", "other.pem")]
        for key, certificate in (names[:2], names[2:]):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", "/CN=store",
                            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True, capture_output=True)
        store = Store("--set", f"http.tls.key={names[0]}", "--set", f"http.tls.certificate={names[1]}", wait=False)
        self.addCleanup(store.kill)
        url = f"https://127.0.0.1:{store.wait_line(r'serves .* on https://[^/]*:([0-9]+)/').group(1)}"
        with self.client(url, f"tiers.remote.ca_file={names[1]}") as d:
            self.crowd_out(d)
            self.resumes(d)
            self.assertEqual((self.tier(d)["breaker"], self.tier(d)["why"], self.tier(d)["failures"]), ("closed", None, 0))
            self.assertGreater(self.tier(d)["hits"], 0)
        for more in ([f"tiers.remote.ca_file={names[3]}"], []):
            tier, reasons = self.asked_anew(url, *more)
            self.assertEqual((tier["hits"], set(reasons)), (0, {"REMOTE_UNAVAILABLE"}))
            self.assertIn("tiers.remote.ca_file", tier["why"])
        tier, reasons = self.asked_anew(url.replace("https", "http"))
        self.assertIn("does it serve https?", tier["why"])
        for wrong, reason in (("/nowhere", "FILE_UNREADABLE"), (names[0], "BAD_ARGUMENT")):
            status, _, err = run("--listen", "127.0.0.1:0", "--state", self.folder, "--set", f"tiers.disk.path={self.folder}/d", "--set", f"tiers.remote.url={url}", "--set", f"tiers.remote.ca_file={wrong}")
            self.assertEqual(status, 1)
            self.assertRegex(err, f"{reason}: .*tiers.remote.ca_file|{reason}: .*ca_file")

    def test_a_key_that_others_may_read_is_refused(self):
        """The documented way to give two daemons one key, and what happens when its mode is forgotten."""
        key = os.path.join(self.folder, "tier.key")
        subprocess.run(["sh", "-c", f"umask 077 && head -c 32 /dev/urandom > {key}"], check=True)
        state = os.path.join(self.folder, "state")
        os.mkdir(state)
        subprocess.run(["install", "-m", "600", key, os.path.join(state, "tier.key")], check=True)
        with self.client("http://127.0.0.1:9"):
            pass
        with open(key, "rb") as f, open(os.path.join(state, "tier.key"), "rb") as g:
            self.assertEqual(f.read(), g.read())
        os.chmod(os.path.join(state, "tier.key"), 0o644)
        status, _, err = run("--listen", "127.0.0.1:0", "--state", state, "--set", f"tiers.disk.path={state}/disk")
        self.assertEqual(status, 1)
        self.assertRegex(err, r"BAD_ARGUMENT: .*tier\.key.*chmod 600")

    def test_kill_9_at_every_step(self):
        """Both sides, at every step of put, get and drop: what is there afterwards is whole, and the next turn says the same."""
        steps = [(m, stage, side) for m, stages in (("HEAD", ("asked", "answered")), ("PUT", ("asked", "half", "answered")), ("GET", ("asked", "half", "answered")), ("DELETE", ("asked", "answered")))
                 for stage in stages for side in ("client", "store")]
        if not os.environ.get("KVASIR_SOAK"):
            steps = [("PUT", "half", "store"), ("GET", "half", "client"), ("DELETE", "answered", "client")]
        for step in steps:
            with self.subTest(step=step):
                shutil.rmtree(os.path.join(self.folder, "state"), ignore_errors=True)
                self.killed_at(*step)

    def killed_at(self, method, stage, side):
        store = Store()
        with Between(store.port, None) as between:
            d = self.client(between.url)
            try:
                if method in ("GET", "DELETE"):
                    self.crowd_out(d)
                between.trap = (method, stage)
                act = {"GET": lambda: self.assertEqual(chat(d, second_turn(self.answer), "s")[1], self.second), "DELETE": lambda: d.post("/api/v1/sessions/s/drop")}
                said = []
                other = threading.Thread(target=self.attempt, args=(act.get(method, lambda: self.fill(d)), said))
                other.start()
                self.assertTrue(between.trapped.wait(60), "it came to no such step")
                kill(d if side == "client" else store)
                between.go_on.set()
                other.join()
                if method == "GET" and side == "store":
                    self.assertEqual(said, [])  # the answer came, and was right
                state = store.state
                if side == "client":
                    d._forget()
                    d = self.client(between.url)
                else:
                    store.own_state = False
                    store._forget()
                    store = Store(state=state)
                    store.own_state = True
                    between.to = store.port
                self.resumes(d)
                sizes = {os.path.getsize(f) for f in store.files()}
                self.assertLessEqual(len(sizes), 1)  # every object is a block
                self.assertEqual(len(store.files()), len([f for f in os.listdir(os.path.join(state, "extents")) if not f.startswith("writing-")]))
                self.assertEqual(self.tier(d)["refused"], 0)
            finally:
                d.kill()
                store.kill()

    @staticmethod
    def attempt(act, said):
        try:
            act()
        except (AssertionError, OSError, http.client.HTTPException) as e:
            said.append(e)


class Between(threading.Thread):
    """Hands requests on to a server, and its answers back: not at all (stall), the beginning of a long one (cut), one with a flipped bit (flip), or the end of the connection instead (end).

    trap: (method, stage), where the first such request stops and says so: asked, half (of the request's body, or of the answer's) or answered."""

    def __init__(self, port, how):
        super().__init__(daemon=True)
        self.to, self.how, self.stop = port, how, threading.Event()
        self.trap, self.trapped, self.go_on = None, threading.Event(), threading.Event()
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
        asked = []  # the methods of this connection's requests
        try:
            s = socket.create_connection(("127.0.0.1", self.to))
        except OSError:
            return c.close()
        with c, s:
            threading.Thread(target=self.pump, args=(c, s, asked), daemon=True).start()
            try:
                while data := s.recv(65536):
                    if asked and self.trap == (asked[-1], "half") and asked[-1] == "GET" and len(data) > 2000:
                        c.sendall(data[:1000])
                        self.meet("half", asked)
                        data = data[1000:]
                    if not data.startswith(b"HTTP/1.1 100"):
                        self.meet("answered", asked)
                    if self.how == "stall":
                        self.stop.wait(10)
                    if self.how == "end":
                        c.shutdown(socket.SHUT_RDWR)
                        return
                    if self.how == "cut" and len(data) > 1000:
                        c.sendall(data[:1000])
                        c.shutdown(socket.SHUT_RDWR)
                        return
                    if self.how == "flip" and len(data) > 1000:
                        data = data[:900] + bytes([data[900] ^ 4]) + data[901:]
                    c.sendall(data)
            except OSError:
                pass

    def meet(self, stage, asked):
        if asked and self.trap == (asked[-1], stage):
            self.trap = None
            self.trapped.set()
            self.go_on.wait(60)

    def pump(self, source, sink, asked):
        try:
            while data := source.recv(65536):
                head = re.match(rb"(GET|PUT|HEAD|DELETE) /v1/extents/", data)
                if head:
                    asked.append(head.group(1).decode())
                    self.meet("asked", asked)
                elif asked and asked[-1] == "PUT" and self.trap == ("PUT", "half"):
                    sink.sendall(data[:len(data) // 2])
                    self.meet("half", asked)
                    data = data[len(data) // 2:]
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


if __name__ == "__main__":
    unittest.main()
