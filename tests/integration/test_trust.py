"""What operators do with each other on the real daemon and through kvasir: tokens, a second pair of eyes, policies' lives, backups, exports."""
import hashlib
import hmac
import http.client
import http.server
import json
import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import threading
import time
import unittest

from support import BUILD, KVASIR, ROOT, Daemon, environment, run

QUEST = {"name": "quest-64", "pipeline": "quest", "params": {"budget_rows": 64}, "contract": "approximate"}


def kvasir(*args, url=None, token=None):
    extra = {"KVASIR_URL": url} if url else {}
    if token:
        extra["KVASIR_TOKEN"] = token
    p = subprocess.run([KVASIR, *args], capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment(**extra))
    return p.returncode, p.stdout, p.stderr


def read(path):
    with open(path, "rb") as f:
        return f.read()


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


class Users(unittest.TestCase):
    """auth.mode=token: the first administrator is made in the folder of the stopped server."""

    @classmethod
    def setUpClass(cls):
        cls.state = tempfile.mkdtemp(prefix="kvasir-trust-")
        with Daemon(state=cls.state):
            pass
        status, out, err = kvasir("token", "create", "root", "--right", "admin", "--state", cls.state)
        assert status == 0, err
        cls.root = out.split()[2]
        cls.d = Daemon("--set", "auth.mode=token", state=cls.state)
        cls.ann = cls.make("ann", "operator")
        cls.bob = cls.make("bob", "approver", "operator")
        cls.app = cls.make("app", "infer", "--tenant", "acme")

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()
        shutil.rmtree(cls.state, ignore_errors=True)

    @classmethod
    def make(cls, name, *rights):
        args = []
        for r in rights:
            args += [r] if r.startswith("--") or args[-1:] == ["--tenant"] else ["--right", r]
        status, out, err = kvasir("token", "create", name, *args, url=cls.d.url, token=cls.root)
        assert status == 0, err
        return out.split()[2]

    def test_rights_end_where_they_should(self):
        for method, path, token, want in [("GET", "/api/v1/status", None, 401), ("GET", "/api/v1/status", "kv_wrong", 401), ("GET", "/api/v1/status", self.ann, 200),
                                          ("GET", "/api/v1/tokens", self.ann, 403), ("GET", "/api/v1/tokens", self.root, 200), ("GET", "/api/v1/status", self.app, 403),
                                          ("POST", "/api/v1/freeze", self.app, 403)]:
            status, _, _ = self.d.request(method, path, "{}" if method == "POST" else None, bearer(token) if token else {})
            self.assertEqual(status, want, (path, token and token[:6]))
        status, _, body = self.d.request("POST", "/v1/completions", {"prompt": "The", "max_tokens": 2}, bearer(self.app))
        self.assertEqual(status, 200, body)
        self.d.wait_until(lambda: json.loads(self.d.request("GET", "/api/v1/receipts?tenant=acme", headers=bearer(self.ann))[2])["receipts"])

    def test_secrets_are_kept_as_hashes(self):
        _, _, body = self.d.request("GET", "/api/v1/tokens", headers=bearer(self.root))
        self.assertNotIn(self.ann, body.decode())
        raw = b"".join(read(os.path.join(self.state, f)) for f in os.listdir(self.state) if f.startswith("kvasir.db"))
        self.assertNotIn(self.ann.encode(), raw)
        self.assertIn(hashlib.sha256(self.ann.encode()).digest(), raw)

    def test_a_revoked_token_is_refused_at_once(self):
        eve = self.make("eve", "viewer")
        self.assertEqual(self.d.request("GET", "/api/v1/status", headers=bearer(eve))[0], 200)
        self.assertEqual(kvasir("token", "revoke", "eve", url=self.d.url, token=self.root)[0], 0)
        self.assertEqual(self.d.request("GET", "/api/v1/status", headers=bearer(eve))[0], 401)
        self.assertEqual(kvasir("token", "revoke", "eve", url=self.d.url, token=self.root)[0], 1)

    def test_an_expired_token_is_refused(self):
        status, _, body = self.d.request("POST", "/api/v1/tokens", {"name": "brief", "rights": "viewer", "days": 1e-7}, bearer(self.root))
        self.assertEqual(status, 201, body)
        token = json.loads(body)["token"]
        self.d.wait_until(lambda: self.d.request("GET", "/api/v1/status", headers=bearer(token))[0] == 401)

    def test_refused_writes_are_audited_too(self):
        self.d.request("POST", "/api/v1/freeze", {"frozen": True}, bearer(self.app))
        def seen():
            _, _, body = self.d.request("GET", "/api/v1/audit", headers=bearer(self.ann))
            return any("/api/v1/freeze: 403 from 127.0.0.1" in r["detail"] and r["tenant"] == "app" for r in json.loads(body)["receipts"])
        self.d.wait_until(seen)

    def test_a_flood_of_refused_writes_leaves_few_rows_and_every_one_counted(self):
        state = tempfile.mkdtemp(prefix="kvasir-flood-")
        self.addCleanup(shutil.rmtree, state)
        sent, began = {}, time.monotonic()
        with Daemon("--set", "auth.mode=token", state=state) as d:
            c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=30)
            for i in range(900):
                path, headers = [("/api/v1/freeze", {}), ("/api/v1/nothing", {}), ("/api/v1/freeze", bearer("kv_wrong"))][i % 3]
                c.request("POST", path, "{}", headers)
                answer = c.getresponse()
                answer.read()
                sent[answer.status] = sent.get(answer.status, 0) + 1
            c.close()
        self.assertEqual(sorted(sent), [401, 404, 429])
        with Daemon(state=state) as d:
            rows = d.get("/api/v1/audit?limit=1000")[1]["receipts"]
        minutes = 1 + int((time.monotonic() - began) / 60)
        self.assertLessEqual(len(rows), 33 * minutes, rows)  # ten of each answer, and one row for the rest
        for status, n in sent.items():
            kept = [r for r in rows if f": {status} from 127.0.0.1" in r["detail"]]
            more = sum(r["rows"] for r in kept if r["detail"] == f"and {r['rows']} more writes refused within a minute: {status} from 127.0.0.1")
            self.assertEqual(len([r for r in kept if r["detail"].startswith("POST /api/v1/")]) + more, n)

    def test_nobody_approves_what_is_their_own(self):
        source = read(os.path.join(ROOT, "policies", "release.lua")).decode().replace("steady", "steadier")
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as f:
            f.write(source)
            f.flush()
            status, _, err = kvasir("policy", "activate", "release", f.name, url=self.d.url, token=self.bob)
            self.assertEqual((status, "FORBIDDEN" in err), (1, True), err)
            self.assertEqual(kvasir("policy", "submit", "release", f.name, url=self.d.url, token=self.bob)[0], 0)
        version = hashlib.sha256(source.encode()).hexdigest()
        for verb in ("check", "replay"):
            status, _, err = kvasir("policy", verb, "release", version[:10], url=self.d.url, token=self.bob)
            self.assertEqual(status, 0, err)
        status, _, err = kvasir("policy", "approve", "release", version[:10], url=self.d.url, token=self.bob)
        self.assertEqual((status, "FORBIDDEN" in err), (1, True), err)
        status, _, err = kvasir("policy", "approve", "release", version[:10], url=self.d.url, token=self.ann)
        self.assertEqual((status, "approver" in err), (1, True), err)
        self.assertEqual(kvasir("policy", "approve", "release", version[:10], url=self.d.url, token=self.root)[0], 0)
        self.assertEqual(kvasir("policy", "activate", "release", version[:10], url=self.d.url, token=self.ann)[0], 0)
        self.assertEqual(kvasir("policy", "revert", "release", url=self.d.url, token=self.ann)[0], 0)
        _, out, _ = kvasir("--json", "policy", "list", "release", url=self.d.url, token=self.ann)
        states = {v["version"]: v["state"] for v in json.loads(out)["versions"]}
        self.assertEqual(states[version], "RETIRED")

    def test_a_rollout_waits_for_its_approver(self):
        status, _, body = self.d.request("POST", "/api/v1/rollouts", QUEST, bearer(self.ann))
        self.assertEqual(status, 201, body)
        r = json.loads(body)
        path = f"/api/v1/rollouts/{r['id']}"
        # The policy moves it to SHADOW by itself; an approval of the version before holds there too.
        self.d.wait_until(lambda: json.loads(self.d.request("GET", path, headers=bearer(self.ann))[2])["stage"] == "SHADOW")
        status, out, err = kvasir("rollout", "approve", r["id"], url=self.d.url, token=self.ann)
        self.assertEqual((status, "FORBIDDEN" in err), (1, True), err)
        status, out, err = kvasir("rollout", "breakglass", r["id"], "--reason", "x", url=self.d.url, token=self.ann)
        self.assertEqual((status, "admin" in err), (1, True), err)
        status, _, body = self.d.request("POST", path + "/approve", {"reason": "as it was created"}, {**bearer(self.bob), "If-Match": str(r["version"])})
        self.assertEqual(status, 200, body)
        _, _, body = self.d.request("GET", path, headers=bearer(self.ann))
        self.assertEqual(json.loads(body)["approver"], "operator:bob")
        kvasir("rollout", "abort", r["id"], url=self.d.url, token=self.ann)


class Local(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon("--set", "http.requests_per_second=200")

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()

    def test_a_backup_and_an_export_while_it_serves(self):
        self.d.complete("The magic number", max_tokens=4)
        status, out, err = kvasir("db", "backup", url=self.d.url)
        self.assertEqual(status, 0, err)
        folder = out.split()[3]
        self.assertEqual(kvasir("db", "verify", "--state", folder)[0], 0)
        self.assertEqual(kvasir("db", "migrate", "--state", folder)[0], 0)
        status, out, err = kvasir("receipts", "export", url=self.d.url)
        self.assertEqual(status, 0, err)
        rows = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([r["id"] for r in rows], list(range(1, len(rows) + 1)))
        ended = [r for r in rows if r["kind"] == "REQUEST"][0]
        _, one = self.d.get(f"/api/v1/receipts/{ended['id']}")
        self.assertEqual(one["request_root"]["receipt"], ended["id"])
        self.assertGreaterEqual(one["request_root"]["leaves"], 1)
        _, some = self.d.get("/api/v1/receipts?since=2099-01-01")
        self.assertEqual(some["receipts"], [])
        self.assertEqual(self.d.get("/api/v1/receipts?since=yesterday")[0], 400)

    def test_a_manifest_that_is_not_there_is_no_bad_json(self):
        for command in (("rollout", "apply", "-f"), ("rollout", "create", "-f")):
            status, _, err = kvasir(*command, "/nonexistent/m.json", url=self.d.url)
            self.assertEqual((status, err.split(": ")[1]), (1, "FILE_UNREADABLE"), err)

    def test_apply_shows_what_differs(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(QUEST, f)
            f.flush()
            status, out, err = kvasir("rollout", "apply", "-f", f.name, url=self.d.url)
            self.assertEqual(status, 0, err)
            self.assertIn("unchanged", kvasir("rollout", "apply", "-f", f.name, url=self.d.url)[1])
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump({**QUEST, "params": {"budget_rows": 32}, "gates": [{"metric": "omitted_mass", "threshold": 0.01}]}, f)
            f.flush()
            status, out, err = kvasir("rollout", "apply", "-f", f.name, "--dry-run", url=self.d.url)
            self.assertEqual(status, 0, err)
            self.assertIn("params.budget_rows: 64 -> 32", out)
            self.assertIn("gates[omitted_mass].threshold: 0.05 -> 0.01", out)
        self.assertEqual(kvasir("rollout", "freeze", "--reason", "an exam", url=self.d.url)[0], 0)
        status, _, err = kvasir("rollout", "advance", url=self.d.url)
        self.assertIn("FROZEN", err)
        status, _, err = kvasir("rollout", "breakglass", url=self.d.url)
        self.assertIn("reason", err)
        self.assertEqual(kvasir("rollout", "unfreeze", url=self.d.url)[0], 0)
        self.assertEqual(kvasir("rollout", "abort", url=self.d.url)[0], 0)

    def test_a_rollback_acts_whatever_its_body_is(self):
        for body in (b'{"reason": "3 am', b"[]", b"\xff\x00", b""):
            _, made = self.d.post("/api/v1/rollouts", QUEST)
            path = f"/api/v1/rollouts/{made['id']}"
            self.assertEqual(self.d.request("POST", path + "/pause", body or b"{", {"If-Match": "1"})[0], 400)
            status, _, answer = self.d.request("POST", path + "/rollback", body)
            self.assertEqual((status, json.loads(answer)["rollback"]["fenced"], json.loads(answer)["rollout"]["stage"]), (200, True, "EXACT_BASELINE"), answer)
            last = self.d.wait_until(lambda: [t for t in self.d.get(path + "/history")[1]["transitions"] if t["to"] == "EXACT_BASELINE"])[0]
            self.assertEqual("lost" in last["detail"], bool(body), last)
            self.d.wait_until(lambda: not self.d.get("/api/v1/status")[1]["release"]["latched"])
        for path in ("drills/rollback", "faults/rollback"):  # only the rollout's: a drill without its body would be the live rollout's
            status, _, answer = self.d.request("POST", f"/api/v1/{path}", b'{"rollout": "r_0')
            self.assertEqual((status, json.loads(answer)["error"]["code"]), (400, "BAD_JSON"), path)

    def test_too_many_requests_are_refused_and_a_rollback_never(self):
        statuses = [self.d.request("GET", "/api/v1/openapi.json")[0]]
        _, made = self.d.post("/api/v1/rollouts", QUEST)
        for _ in range(2000):
            statuses.append(self.d.request("GET", "/api/v1/openapi.json")[0])
            if statuses[-1] == 429:
                break
        self.assertEqual(statuses[-1], 429)
        self.assertIn(429, (self.d.request("GET", "/api/v1/nothing")[0] for _ in range(2000)), "what is not there counts too")
        listed = made.get("id", "r_000001")
        self.assertNotEqual(self.d.request("POST", f"/api/v1/rollouts/{listed}/rollback", {"reason": "now"})[0], 429)


class Receiver:
    """A webhook that fails the first call with 503 and takes the others."""

    def __init__(self):
        self.got, self.more = [], threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.more:
                    outer.got.append((dict(self.headers), body))
                    first = len(outer.got) == 1
                    outer.more.notify_all()
                self.send_response(503 if first else 204)
                self.end_headers()

            def log_message(self, *a):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, what, timeout=30):
        with self.more:
            assert self.more.wait_for(lambda: any(what(json.loads(b)) for _, b in self.got), timeout), self.got


class Notifications(unittest.TestCase):
    def test_a_webhook_is_signed_and_retried_and_a_program_is_run(self):
        receiver, folder = Receiver(), tempfile.mkdtemp(prefix="kvasir-notify-")
        self.addCleanup(shutil.rmtree, folder, True)
        self.addCleanup(receiver.server.server_close)
        self.addCleanup(receiver.server.shutdown)
        secret, program, out = (os.path.join(folder, n) for n in ("secret", "program", "out"))
        with open(secret, "w") as f:
            f.write("0123456789abcdef0123456789abcdef\n")
        with open(program, "w") as f:
            f.write(f"#!/bin/sh\ncat >> {out}; echo >> {out}\n")
        os.chmod(program, 0o755)
        with Daemon("--set", f"notify.webhook=http://127.0.0.1:{receiver.server.server_port}/hook", "--set", f"notify.secret_file={secret}", "--set", f"notify.program={program}") as d:
            _, r = d.post("/api/v1/rollouts", QUEST)
            d.post(f"/api/v1/rollouts/{r['id']}/rollback", {"reason": "tell them"})
            receiver.wait(lambda b: b["kind"] == "TRANSITION" and "EXACT_BASELINE" in b["detail"])
        headers, body = receiver.got[-1]
        want = hmac.new(b"0123456789abcdef0123456789abcdef", body, "sha256").hexdigest()
        self.assertEqual(headers["X-Kvasir-Signature"], "sha256=" + want)
        ids = [h["X-Kvasir-Delivery"] for h, _ in receiver.got]
        self.assertEqual(ids[0], ids[1])  # the one that was answered 503 came again
        self.assertIn("EXACT_BASELINE", read(out).decode())


    def test_a_receiver_that_never_answers_holds_no_stop_up(self):
        """SIGTERM ends the call after its two last seconds; on its own it would go on for ten, and again."""
        folder = tempfile.mkdtemp(prefix="kvasir-notify-")
        self.addCleanup(shutil.rmtree, folder, True)
        program, began = os.path.join(folder, "program"), os.path.join(folder, "began")
        with open(program, "w") as f:
            f.write(f"#!/bin/sh\ntouch {began}\nexec sleep 600\n")
        os.chmod(program, 0o755)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for setting, says in ((f"notify.webhook=http://127.0.0.1:{silent.getsockname()[1]}/hook", "the server stopped before it was answered"), (f"notify.program={program}", "ended with status 9")):
                d = Daemon("--set", setting)
                self.addCleanup(d.kill)
                _, r = d.post("/api/v1/rollouts", QUEST)
                d.post(f"/api/v1/rollouts/{r['id']}/rollback", {"reason": "tell them"})
                if "webhook" in setting:
                    held = silent.accept()[0]
                    self.addCleanup(held.close)
                else:
                    d.wait_until(lambda: os.path.exists(began))
                self.assertEqual(d.stop(), 0)
                self.assertIn(says, "".join(d.err))


class Folders(unittest.TestCase):
    """Who else may reach what is kept."""

    def test_everything_is_its_owners_alone_under_any_umask(self):
        with Daemon("--set", f"trace.path={tempfile.mktemp(prefix='kvasir-trace-')}", preexec_fn=lambda: os.umask(0)) as d:
            self.addCleanup(os.remove, d.process.args[-1].split("=")[1])
            d.complete("The", max_tokens=2)
            _, r = d.post("/api/v1/rollouts", QUEST)
            d.post(f"/api/v1/rollouts/{r['id']}/advance")
            self.assertEqual(d.post("/api/v1/backups")[0], 201)
            self.assertEqual(os.stat(d.process.args[-1].split("=")[1]).st_mode & 0o777, 0o600)
            seen = 0
            for folder, _, files in os.walk(d.state):
                for name in [folder] + [os.path.join(folder, f) for f in files]:
                    seen += 1
                    self.assertEqual(os.stat(name).st_mode & 0o077, 0, name)
            self.assertGreater(seen, 10)

    def test_a_folder_that_others_may_write_to_is_refused_with_what_mends_it(self):
        with tempfile.TemporaryDirectory() as top:
            state, disk = os.path.join(top, "state"), os.path.join(top, "disk")
            for wide, key in ((state, "state"), (disk, "tiers.disk.path")):
                for mode, hint in ((0o777, f"chmod go-w {wide}"), (0o770, f"chmod go-w {wide}"), (0o1777, "a folder of its own")):
                    os.makedirs(wide, exist_ok=True)
                    os.chmod(wide, mode)
                    status, _, err = run("--state", state, "--set", f"tiers.disk.path={disk}", "--listen", "127.0.0.1:0")
                    self.assertEqual(status, 1)
                    self.assertRegex(err, r"BAD_ARGUMENT: others may write to the folder")
                    self.assertIn(key, err)
                    self.assertIn(hint, err)
                subprocess.run(["chmod", "go-w", wide], check=True)
            for path in (state, os.path.join(top, ".", "state")):
                status, _, err = run("--state", state, "--set", f"tiers.disk.path={path}", "--listen", "127.0.0.1:0")
                self.assertEqual(status, 1)
                self.assertRegex(err, "tiers.disk.path and state are one folder.*give tiers.disk.path one of its own")

    def test_what_an_earlier_version_left_readable_is_closed_and_said(self):
        with tempfile.TemporaryDirectory() as state:
            with Daemon(state=state):
                pass
            os.chmod(os.path.join(state, "kvasir.db"), 0o644)
            with Daemon(state=state) as d:
                d.wait_line("closed to others: kvasir.db 0644")
                self.assertEqual(os.stat(os.path.join(state, "kvasir.db")).st_mode & 0o777, 0o600)
            secret = os.path.join(state, "secret")
            with open(secret, "w") as f:
                f.write("0123456789abcdef0123456789abcdef")
            os.chmod(secret, 0o644)
            with Daemon("--set", f"notify.secret_file={secret}", "--set", "notify.webhook=http://127.0.0.1:1/", state=state) as d:
                d.wait_line(f"every user of this machine may read notify.secret_file, {secret}: chmod o-rwx")


class Surroundings(unittest.TestCase):
    def test_alerts_and_dashboard_name_metrics_that_exist(self):
        with Daemon() as d:
            d.complete("The magic number", max_tokens=4)
            _, r = d.post("/api/v1/rollouts", QUEST)
            d.wait_until(lambda: d.get(f"/api/v1/rollouts/{r['id']}")[1]["gates"])
            text = d.request("GET", "/metrics")[2].decode()
            source = read(os.path.join(ROOT, "controller", "http", "metrics_text.c")).decode()
            exist = set(re.findall(r"^# TYPE (\S+)", text, re.M))
            rules = read(os.path.join(ROOT, "packaging", "prometheus", "kvasir.rules.yml")).decode()
            board = read(os.path.join(ROOT, "packaging", "grafana", "kvasir.json")).decode()
            drawn = [t["expr"] for p in json.loads(board)["panels"] for t in p["targets"]]
            self.assertTrue([e for e in drawn if "kvasir_rollbacks_total" in e], drawn)
            for name in set(re.findall(r"kvasir_[a-z0-9_]+", rules + board)):
                # A gauge that nothing has measured yet is absent; then the program must at least know the name.
                self.assertTrue(name in exist or f'"{name}"' in source, name)
            self.assertGreater(len(re.findall(r"- alert: ", rules)), 7)

    def test_a_bundle_holds_no_secret(self):
        with tempfile.TemporaryDirectory() as folder, Daemon() as d:
            d.complete("The magic number", max_tokens=4)
            name = os.path.join(folder, "bundle.tar.gz")
            status, _, err = kvasir("bundle", "--out", name, url=d.url)
            self.assertEqual(status, 0, err)
            with tarfile.open(name) as t:
                members = {m.name: t.extractfile(m).read() for m in t.getmembers()}
            for wanted in ("status.json", "rollouts.json", "policies.json", "failures.json", "receipts.json", "audit.json", "metrics.txt", "verify.json"):
                self.assertIn(f"kvasir-bundle/{wanted}", members)
            json.loads(members["kvasir-bundle/status.json"])
            secret = read(os.path.join(d.state, "receipts.key"))
            self.assertFalse(any(secret in m for m in members.values()))

    def test_what_was_there_outlives_a_bundle_and_a_download_that_fail(self):
        with tempfile.TemporaryDirectory() as folder, Daemon() as d:
            name = os.path.join(folder, "kept")
            with open(name, "wb") as f:
                f.write(b"before")
            for url, command in (("http://127.0.0.1:1", ["bundle"]), (d.url, ["rollout", "samples", "r_999999"]), ("http://127.0.0.1:1", ["rollout", "samples", "r_000001"])):
                status, _, err = kvasir(*command, "--out", name, url=url)
                self.assertIn(status, (1, 3), err)
                self.assertEqual(read(name), b"before", command)
            self.assertEqual(os.listdir(folder), ["kept"])
            status, _, err = kvasir("bundle", "--out", "/dev/full", url=d.url)
            self.assertEqual((status, "No space left" in err), (1, True), err)
            self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))

    def doctor(self, *args, wanted, before=None, env=None):
        p = subprocess.run([KVASIR, "--json", "doctor", *args], capture_output=True, text=True, timeout=60, cwd=ROOT, env=env or environment(KVASIR_URL="http://127.0.0.1:1"), preexec_fn=before)
        rows = json.loads(p.stdout)
        found = {r["check"]: (r["verdict"], r["detail"]) for r in rows}
        for check, (verdict, says) in wanted.items():
            self.assertEqual(found[check][0], verdict, found)
            self.assertIn(says, found[check][1])
        self.assertEqual(p.returncode, 1 if any(r["verdict"] == "bad" for r in rows) else 0, found)

    def test_the_doctor_finds_what_a_start_would_meet(self):
        with tempfile.TemporaryDirectory() as top, socket.create_server(("127.0.0.1", 0)) as other, Daemon() as d:
            state, secret, taken = os.path.join(top, "state"), os.path.join(top, "secret"), f"127.0.0.1:{other.getsockname()[1]}"
            self.doctor("--state", state, "--listen", "127.0.0.1:0", wanted={"port": ("good", "free"), "folders": ("good", "owner"), "model": ("good", "gguf"), "server": ("warning", ""), "permissions": ("good", top)})
            self.assertFalse(os.path.exists(state))
            os.mkdir(state)
            os.chmod(state, 0o777)
            with open(secret, "w") as f:
                f.write("x" * 16)
            os.chmod(secret, 0o644)
            self.doctor("--state", state, "--listen", taken, "--model", "/none.gguf", "--set", f"notify.secret_file={secret}",
                        wanted={"folders": ("bad", f"chmod go-w {state}"), "port": ("bad", "in use"), "model": ("bad", "--model"), "secrets": ("warning", f"chmod o-rwx {secret}")})
            self.doctor("--listen", f"127.0.0.1:{d.port}", "--state", top, env=environment(KVASIR_URL=d.url), wanted={"server": ("good", "answers"), "port": ("good", "a server answers")})
            self.doctor("--state", os.path.join(top, "not", "there", "yet"), "--listen", "127.0.0.1:0", wanted={"permissions": ("good", top), "folders": ("good", "owner")})
            self.doctor("--listen", "127.0.0.1:0", env=environment(KVASIR_STATE=os.path.join(top, "nor", "this")), wanted={"permissions": ("good", top)})
            self.assertEqual([f for f in os.listdir(top) if f in ("not", "nor")], [])  # it only looks
            self.doctor("--state", "/proc/self", "--listen", "127.0.0.1:0", wanted={"disk": ("bad", "0.0 GiB free")})  # where nothing is free
            self.doctor("--set", "engine.thread=2", wanted={"settings": ("bad", "did you mean 'engine.threads'?")})

            def limits():
                resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))

            self.doctor("--state", top, "--listen", "127.0.0.1:0", before=limits, wanted={"open files": ("warning", "256"), "file size": ("warning", str(1 << 30))})

    def test_the_unit_is_one_that_systemd_takes(self):
        unit = read(os.path.join(ROOT, "packaging", "systemd", "kvasird.service")).decode()
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "kvasird.service")
            with open(name, "w") as f:
                f.write(unit.replace("/usr/local/bin/kvasird", os.path.join(BUILD, "kvasird")))
            p = subprocess.run(["systemd-analyze", "verify", name], capture_output=True, text=True, timeout=60)
            self.assertEqual([line for line in (p.stdout + p.stderr).splitlines() if "kvasird" in line], [])

    def test_a_context_is_chosen_by_the_environment(self):
        with tempfile.TemporaryDirectory() as folder, Daemon() as d:
            os.mkdir(os.path.join(folder, "kvasir"))
            with open(os.path.join(folder, "kvasir", "contexts.json"), "w", encoding="utf-8") as f:
                json.dump({"here": {"url": d.url}}, f)
            for name, more, wanted in (("here", [], 0), ("here", ["--url", "http://127.0.0.1:1"], 3), ("nowhere", [], 2), ("nowhere", ["--context", "here"], 0)):
                env = environment(XDG_CONFIG_HOME=folder, KVASIR_CONTEXT=name, KVASIR_URL="http://127.0.0.1:1")
                p = subprocess.run([KVASIR, "status", *more], capture_output=True, text=True, timeout=60, env=env)
                self.assertEqual(p.returncode, wanted, (name, more, p.stderr))

    def test_completion_and_manual_know_every_verb(self):
        status, script, _ = kvasir("completion", "bash")
        self.assertEqual(status, 0)
        self.assertEqual(subprocess.run(["bash", "-n"], input=script, text=True).returncode, 0)
        _, page, _ = kvasir("completion", "man")
        verbs = re.findall(r"^KV_VERB\((\w+),", read(os.path.join(ROOT, "controller", "verbs.def")).decode(), re.M)
        for verb in verbs:
            self.assertRegex(script, rf"\b{verb}\b")
            self.assertRegex(page, rf"\b{verb}\b")


class Check(unittest.TestCase):
    def test_a_check_in_a_process_of_its_own_names_the_fault(self):
        program = os.path.join(BUILD, "kvasird")
        good = read(os.path.join(ROOT, "policies", "release.lua")).decode()
        for source, code in [(good, "OK"), ("return {", "POLICY_PARSE"), ("while true do end", "POLICY_BUDGET")]:
            p = subprocess.run([program, "--check-policy", "release"], input=source, capture_output=True, text=True, timeout=60)
            self.assertEqual((p.returncode, p.stdout.split("\t")[0]), (0, code))


if __name__ == "__main__":
    unittest.main()
