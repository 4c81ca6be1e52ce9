"""The operator API and the daemon around it: status, rollouts, receipts, events, rights, limits, signals."""
import fcntl
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from support import Daemon, KVASIRD, MODEL, ROOT, environment

PROMPT = "The magic number for amber anchor is 4711.\nQuestion: what is the magic number for amber anchor?\nAnswer: The magic number for amber anchor is "


def sha(secret):
    return hashlib.sha256(secret.encode()).hexdigest()


class Reading(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon()
        cls.d.complete(PROMPT, max_tokens=8, kvasir={"session": "s1", "class": "interactive"})

    @classmethod
    def tearDownClass(cls):
        assert cls.d.stop() == 0, "".join(cls.d.err)[-3000:]

    def test_status_has_every_part(self):
        status, s = self.d.get("/api/v1/status")
        self.assertEqual(status, 200)
        self.assertEqual(s["release"]["stage"], "OFF")
        self.assertEqual(s["model"]["name"], "kvasir-demo")
        self.assertRegex(s["now"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        for key in ("version", "uptime_s", "listen", "machine", "live", "tiers", "layers", "policies", "store", "mode", "demo"):
            self.assertIn(key, s)
        for key in ("active", "queued", "tokens_per_s", "tpot_p50_ms", "exact_mismatches", "omitted_mass_mean", "units", "stall_ms"):
            self.assertIn(key, s["live"])
        self.assertGreaterEqual(s["live"]["published_tokens"], 1)
        self.assertEqual({t["name"] for t in s["tiers"]} & {"host", "device"}, {"host", "device"})

    def test_pipelines_carry_their_contract_and_parameters(self):
        _, p = self.d.get("/api/v1/pipelines")
        rows = {r["name"]: r for r in p["pipelines"]}
        self.assertGreaterEqual(len(rows), 21)
        self.assertTrue(rows["resident"]["built"])
        self.assertEqual(rows["quest"]["exactness"], "approximate")
        self.assertIn("budget_rows", [x["name"] for x in rows["quest"]["params"]])
        for field in ("support", "representation", "tier", "unit", "index", "update_phase", "compute_site", "fallback", "workload"):
            self.assertTrue(rows["quest"][field], field)
        self.assertAlmostEqual(rows["quest"]["byte_cost"], rows["quest"]["declared_byte_cost"] * 0.01)  # engine.break_even of these tests
        self.assertIsNone(rows["layerwise"]["byte_cost"])

    def test_sessions_and_tiers(self):
        _, s = self.d.get("/api/v1/sessions")
        row = next(r for r in s["sessions"] if r["session"] == "s1")
        self.assertEqual((row["tenant"], row["requests"], row["tokens"] > 0), ("local", 1, True))
        self.assertIn("tiers", self.d.get("/api/v1/tiers")[1])

    def test_receipts_are_found_shown_and_verified(self):
        answer = self.d.complete(PROMPT, max_tokens=4)
        request = answer["kvasir"]["receipt_id"]
        rows = self.d.wait_until(lambda: self.d.get(f"/api/v1/receipts?request={request}")[1]["receipts"])
        self.assertTrue(all(r["request"] == request for r in rows))
        self.assertTrue({r["kind"] for r in rows} <= {"PUBLICATION", "REQUEST"}, rows)
        _, one = self.d.get(f"/api/v1/receipts/{rows[0]['id']}")
        self.assertEqual(one["hash"], rows[0]["hash"])
        self.assertIn("rests_on", one)
        _, v = self.d.get("/api/v1/receipts/verify")
        self.assertTrue(v["verified"], v)
        _, page = self.d.get("/api/v1/receipts?limit=1")
        _, older = self.d.get(f"/api/v1/receipts?limit=1&before={page['next']}")
        self.assertLess(older["receipts"][0]["id"], page["receipts"][0]["id"])
        for query, code in (("kind=NONSENSE", "BAD_ARGUMENT"), ("limit=0", "BAD_ARGUMENT"), ("request=x", "BAD_ARGUMENT"), ("reason=NOPE", "BAD_ARGUMENT")):
            self.assertEqual(self.d.get(f"/api/v1/receipts?{query}")[1]["error"]["code"], code)
        self.assertEqual(self.d.get("/api/v1/receipts/999999999")[0], 404)

    def test_policies_are_listed_checked_and_activated(self):
        _, p = self.d.get("/api/v1/policies")
        self.assertEqual({x["kind"] for x in p["policies"]}, {"admission", "fallback", "release"})
        _, release = self.d.get("/api/v1/policies/release")
        self.assertIn("return", release["source"])
        status, ok = self.d.post("/api/v1/policies/check", {"kind": "release", "source": release["source"]})
        self.assertEqual((status, ok["ok"], ok["version"]), (200, True, hashlib.sha256(release["source"].encode()).hexdigest()))
        status, bad = self.d.post("/api/v1/policies/check", {"kind": "release", "source": "return {"})
        self.assertEqual((status, bad["error"]["code"]), (400, "POLICY_PARSE"))
        for body, code in (("while true do end", "POLICY_BUDGET"), ("return os.time()", "POLICY_FAULT"), ("return 5", "POLICY_SHAPE")):  # what it does, not only how it reads
            status, bad = self.d.post("/api/v1/policies/check", {"kind": "release", "source": 'return { api = 1, name = "n", release = function() %s end }' % body})
            self.assertEqual(bad.get("error", bad).get("code"), code, body)
        for name in ("\\255\\254", "a\\27[31m", "a\\0b", "\\194\\155"):  # a name goes into JSON, receipts and terminals
            status, bad = self.d.post("/api/v1/policies/release/activate", {"source": 'return { api = 1, name = "%s", release = function() return { action = "HOLD" } end }' % name}, headers={"If-Match": "*"})
            self.assertEqual((status, bad.get("error", bad).get("code")), (400, "POLICY_SHAPE"), name)
        self.assertRegex(self.d.post("/api/v1/policies/release/activate", {"source": "os.exit()"}, headers={"If-Match": release["version"]})[1]["error"]["code"], "^POLICY_")
        self.assertEqual(self.d.get("/api/v1/policies/release")[1]["version"], release["version"])
        changed = release["source"] + "\n-- another version\n"
        for headers in ({}, {"If-Match": "0" * 64}):  # of two operators the slower one is told, also when its client sends no version
            for verb, body in (("activate", {"source": changed}), ("revert", {}))[: 1 if headers else 2]:
                status, refused = self.d.post(f"/api/v1/policies/release/{verb}", body, headers=headers)
                self.assertEqual((status, refused["error"]["code"]), (412, "VERSION_CONFLICT"), (verb, headers))
        self.assertEqual(self.d.get("/api/v1/policies/release")[1]["version"], release["version"])
        status, now = self.d.post("/api/v1/policies/release/activate", {"source": changed}, headers={"If-Match": release["version"]})
        self.assertEqual((status, now["version"]), (200, hashlib.sha256(changed.encode()).hexdigest()))
        self.assertEqual(self.d.get("/api/v1/policies/nothing")[0], 404)

    def test_metrics_are_prometheus_text(self):
        status, headers, body = self.d.request("GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertIn("text/plain", headers["Content-Type"])
        names = set()
        for line in body.decode().splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            float(value)
            names.add(name.split("{")[0])
        self.assertLessEqual({"kvasir_published_tokens_total", "kvasir_release_stage", "kvasir_tier_used_bytes", "kvasir_policy_faults_total"}, names)

    def test_history_and_description(self):
        status, h = self.d.get("/api/v1/metrics/history?seconds=60")
        self.assertEqual((status, set(h)), (200, {"t", "tokens_per_s", "tpot_p50_ms", "tpot_p99_ms", "omitted_mass", "stage"}))
        self.assertEqual(len({len(v) for v in h.values()}), 1)
        _, api = self.d.get("/api/v1/openapi.json")
        self.assertEqual(api["openapi"], "3.1.0")
        self.assertIn("post", api["paths"]["/api/v1/rollouts/{id}/{verb}"])

    def test_the_web_console_is_served_under_a_strict_policy(self):
        status, headers, body = self.d.request("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn(b"<html", body.lower())
        self.assertIn("script-src 'self'", headers["Content-Security-Policy"])
        self.assertNotIn("unsafe", headers["Content-Security-Policy"])
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertEqual(self.d.request("GET", "/", headers={"If-None-Match": headers["ETag"]})[0], 304)
        self.assertEqual(self.d.request("GET", "/../kvasird")[0], 404)

    def test_events_greet_report_and_resume(self):
        stream = self.d.events()
        kinds = [next(stream)[0]]
        self.assertEqual(kinds, ["hello"])
        self.d.complete(PROMPT, max_tokens=4)
        seen, last = set(), None
        for event, data, ident in stream:
            seen.add(event)
            if event == "receipt":
                self.assertIn("hash", data)
                last = ident
            if {"status", "receipt"} <= seen:
                break
        stream.close()
        again = self.d.events(last_id=last - 1)
        self.assertEqual(next(again)[0], "hello")
        event, data, ident = next(again)
        self.assertEqual((event, ident), ("receipt", last))
        again.close()


class Rollouts(unittest.TestCase):
    def setUp(self):
        self.d = Daemon()

    def tearDown(self):
        assert self.d.stop() == 0, "".join(self.d.err)[-3000:]

    def create(self, **more):
        status, r = self.d.post("/api/v1/rollouts", {"name": "t", "pipeline": "layerwise", **more})
        self.assertEqual(status, 201, r)
        return r

    def verb(self, r, verb, version=None, **body):
        return self.d.post(f"/api/v1/rollouts/{r['id']}/{verb}", body, headers={"If-Match": str(version or r["version"])})

    def test_create_advance_roll_back(self):
        r = self.create(steps=[{"stage": "SHADOW", "min_seconds": 600}, {"stage": "CANARY", "fraction": 0.1, "min_seconds": 600}, {"stage": "RAMP", "fraction": 0.5, "min_seconds": 600}, {"stage": "FULL"}])
        self.assertEqual((r["stage"], r["live"], r["contract"]), ("OFF", True, "exact"))
        self.assertRegex(r["manifest"], r"^[0-9a-f]{64}$")
        status, e = self.verb(r, "advance", version=r["version"] + 7)
        self.assertEqual((status, e["error"]["code"]), (412, "VERSION_CONFLICT"))
        self.assertEqual(self.d.post(f"/api/v1/rollouts/{r['id']}/advance")[0], 412)
        r = self.d.get(f"/api/v1/rollouts/{r['id']}")[1]
        if r["stage"] == "OFF":
            status, r = self.verb(r, "advance")
            self.assertEqual(status, 200, r)
        self.assertEqual(r["stage"], "SHADOW")
        status, e = self.verb(r, "advance")
        self.assertEqual(status, 409, e)
        verbs = {v["verb"]: v for v in r["verbs"]}
        self.assertFalse(verbs["advance"]["enabled"])
        self.assertTrue(verbs["advance"]["why"])
        status, a = self.d.post(f"/api/v1/rollouts/{r['id']}/rollback", {"reason": "test"})
        self.assertEqual(status, 200, a)
        self.assertTrue(a["rollback"]["fenced"] and a["rollback"]["durable"], a)
        self.assertEqual(a["rollout"]["stage"], "EXACT_BASELINE")
        # A rollback acts first and is recorded after.
        self.d.wait_until(lambda: self.d.get(f"/api/v1/rollouts/{r['id']}/history")[1]["transitions"][-1]["to"] == "EXACT_BASELINE")
        self.d.wait_until(lambda: self.d.get("/api/v1/receipts?reason=OPERATOR_ROLLBACK")[1]["receipts"])
        audit = self.d.wait_until(lambda: [x for x in self.d.get("/api/v1/audit")[1]["receipts"] if "rollback" in x["detail"]])
        self.assertIn("200", audit[0]["detail"])

    def test_refusals_name_the_field(self):
        for body, code, param in (
                ({"name": "t", "pipeline": "quset"}, "UNKNOWN_PIPELINE", None),
                ({"name": "t", "pipeline": "quest", "params": {"budget_row": 64}}, "UNKNOWN_KEY", None),
                ({"name": "t", "pipeline": "quest", "params": {"budget_rows": -1}}, "BAD_ARGUMENT", None),
                ({"name": "t", "pipeline": "quest", "gates": [{"metric": "omited_mass"}]}, "UNKNOWN_METRIC", None),
                ({"name": "t", "pipeline": "quest", "stepz": []}, "UNKNOWN_KEY", "stepz"),
                ({"name": "t", "pipeline": "quest", "steps": [{"stage": "FULL"}]}, "BAD_ARGUMENT", None),
                ({"pipeline": "quest"}, "BAD_ARGUMENT", "name"),
                ({"name": "t", "pipeline": "quest", "contract": "exact"}, None, None)):
            status, e = self.d.post("/api/v1/rollouts", body)
            self.assertIn(status, (400, 409), (body, e))
            if code:
                self.assertEqual(e["error"]["code"], code, (body, e))
            if param:
                self.assertEqual(e["error"]["param"], param)
        self.assertEqual(self.d.get("/api/v1/rollouts")[1]["rollouts"], [])

    def test_a_write_sent_again_is_answered_again_and_not_done_again(self):
        key = {"Idempotency-Key": "k-1"}
        body = {"name": "once", "pipeline": "layerwise"}
        first = self.d.request("POST", "/api/v1/rollouts", body, key)
        again = self.d.request("POST", "/api/v1/rollouts", body, key)
        self.assertEqual((first[0], again[0], first[2]), (201, 201, again[2]))
        self.assertEqual(len(self.d.get("/api/v1/rollouts")[1]["rollouts"]), 1)
        status, e = self.d.post("/api/v1/rollouts", {**body, "name": "other"}, headers=key)
        self.assertEqual((status, e["error"]["param"]), (409, "Idempotency-Key"))
        for used in (key, {"Idempotency-Key": "x" * 300}):  # nothing stands in a rollback's way
            status, a = self.d.post(f"/api/v1/rollouts/{json.loads(first[2])['id']}/rollback", {"reason": "test"}, headers=used)
            self.assertEqual((status, a["rollback"]["fenced"]), (200, True), a)

    def test_frozen_releases_only_roll_back(self):
        self.assertEqual(self.d.post("/api/v1/freeze", {"frozen": True})[1], {"frozen": True})
        self.assertTrue(self.d.get("/api/v1/status")[1]["release"]["frozen"])
        status, e = self.d.post("/api/v1/rollouts", {"name": "t", "pipeline": "layerwise"})
        self.assertEqual((status, e["error"]["code"]), (409, "FROZEN"))
        self.assertEqual(self.d.post("/api/v1/freeze", {"frozen": False})[0], 200)
        self.create()

    def test_sigusr1_forces_the_baseline_and_a_restart_remembers(self):
        r = self.create()
        self.d.signal(signal.SIGUSR1)
        self.d.wait_line("SIGUSR1: all traffic is on the exact baseline")
        self.assertEqual(self.d.get(f"/api/v1/rollouts/{r['id']}")[1]["stage"], "EXACT_BASELINE")
        self.d.own_state = False
        state = self.d.state
        self.d.kill()
        self.d = Daemon(state=state)
        self.d.own_state = True
        self.assertEqual(self.d.get(f"/api/v1/rollouts/{r['id']}")[1]["stage"], "EXACT_BASELINE")
        self.assertTrue(self.d.get("/api/v1/receipts/verify")[1]["verified"])


class Rights(unittest.TestCase):
    def config(self):
        return {"auth": {"mode": "token", "tokens": [
            {"name": "reader", "sha256": sha("r"), "rights": ["viewer"]},
            {"name": "op", "sha256": sha("o"), "rights": ["operator"]},
            {"name": "acme", "sha256": sha("i"), "rights": ["infer"], "tenant": "acme"}]}}

    def test_in_local_mode_a_token_that_is_none_gives_less_than_none_at_all(self):
        with Daemon() as d:
            status, made = d.post("/api/v1/tokens", {"name": "eve", "rights": ["viewer"]})
            self.assertEqual(status, 403, made)  # local mode is no administrator
            ask = {"prompt": "x", "max_tokens": 1}
            for secret, infers, freezes in ((None, 200, 200), ("none", 200, 403), ("kv_" + "A" * 43, 401, 401)):
                headers = {"Authorization": f"Bearer {secret}"} if secret else {}
                self.assertEqual(d.post("/v1/completions", ask, headers=headers)[0], infers, secret)
                self.assertEqual(d.post("/api/v1/freeze", {"frozen": False}, headers=headers)[0], freezes, secret)

    def test_tokens_and_rights(self):
        with Daemon(config=self.config()) as d:
            def ask(method, path, token, body=None):
                status, _, answer = d.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
                return status, answer
            self.assertEqual(ask("GET", "/api/v1/status", None)[0], 401)
            self.assertEqual(ask("GET", "/api/v1/status", "wrong")[0], 401)
            self.assertEqual(ask("GET", "/api/v1/status", "r")[0], 200)
            self.assertEqual(ask("GET", "/api/v1/status", "i")[0], 403)
            self.assertEqual(ask("POST", "/api/v1/freeze", "r", {"frozen": True})[0], 403)
            self.assertEqual(ask("POST", "/api/v1/freeze", "o", {"frozen": False})[0], 200)
            self.assertEqual(ask("POST", "/v1/completions", "o", {"prompt": PROMPT})[0], 403)
            self.assertEqual(ask("GET", "/healthz", None)[0], 200)
            self.assertEqual(ask("GET", "/", None)[0], 200)
            status, answer = ask("POST", "/v1/completions", "i", {"prompt": PROMPT, "max_tokens": 4})
            self.assertEqual(status, 200, answer)
            request = json.loads(answer)["kvasir"]["receipt_id"]
            rows = d.wait_until(lambda: json.loads(ask("GET", f"/api/v1/receipts?request={request}", "r")[1])["receipts"])
            self.assertEqual(rows[0]["tenant"], "acme")
            self.assertEqual(ask("POST", "/v1/completions", "i", {"prompt": PROMPT, "kvasir": {"pipeline": "resident"}})[0], 403)

    def test_sighup_takes_new_tokens(self):
        with Daemon(config=self.config()) as d:
            changed = self.config()
            changed["auth"]["tokens"][0]["sha256"] = sha("new")
            changed["engine"] = {"max_queue": 9}
            with open(d.config, "w") as f:
                json.dump(changed, f)
            d.signal(signal.SIGHUP)
            d.wait_line("the configuration was reloaded")
            self.assertTrue(any("engine.max_queue changed and needs a restart" in line for line in d.err))
            self.assertEqual(d.request("GET", "/api/v1/status", headers={"Authorization": "Bearer r"})[0], 401)
            self.assertEqual(d.request("GET", "/api/v1/status", headers={"Authorization": "Bearer new"})[0], 200)
            with open(d.config, "w") as f:
                f.write("{")
            d.signal(signal.SIGHUP)
            d.wait_line("was not reloaded: BAD_JSON")
            self.assertEqual(d.request("GET", "/api/v1/status", headers={"Authorization": "Bearer new"})[0], 200)


class Connections(unittest.TestCase):
    def test_foreign_hosts_and_origins_are_refused(self):
        with Daemon() as d:
            self.assertEqual(d.request("GET", "/api/v1/status", headers={"Host": "evil.example"})[0], 403)
            self.assertEqual(d.request("GET", "/api/v1/status", headers={"Host": f"localhost:{d.port}"})[0], 200)
            body = {"frozen": False}
            for headers, want in (({"Origin": "https://evil.example"}, 403), ({"Origin": d.url}, 200), ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Origin": "null"}, 403), ({}, 200)):
                self.assertEqual(d.request("POST", "/api/v1/freeze", body, headers)[0], want, headers)

    def test_a_client_that_leaves_cancels_its_request(self):
        with Daemon("--set", "engine.prefix_reuse=false") as d:  # kept blocks would be room in use
            for stream in (True, False):
                before = d.get("/metrics")[1].split("kvasir_requests_cancelled_total ")[-1].split()[0]
                s = socket.create_connection(("127.0.0.1", d.port))
                body = json.dumps({"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": stream, "temperature": 1}).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                d.wait_until(lambda: d.get("/api/v1/status")[1]["live"]["active"] == 1)
                s.close()
                d.wait_until(lambda: d.get("/metrics")[1].split("kvasir_requests_cancelled_total ")[-1].split()[0] != before)
                d.wait_until(lambda: d.get("/api/v1/status")[1]["live"]["active"] == 0)
            host = next(t for t in d.get("/api/v1/status")[1]["tiers"] if t["name"] == "host")
            self.assertEqual(host["used_bytes"], 0)

    def test_a_request_that_never_arrives_is_shut_down(self):
        with Daemon("--set", "http.upload_timeout_s=1", "--set", "http.idle_timeout_s=30") as d:
            for start in (b"GET /healthz HT", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"):
                with socket.create_connection(("127.0.0.1", d.port), timeout=10) as s:
                    s.sendall(start)
                    begun = time.monotonic()
                    self.assertNotIn(b"200", s.recv(100))  # closed, not served
                    self.assertLess(time.monotonic() - begun, 8)

    def test_connections_are_bounded_and_operators_get_in(self):
        with Daemon("--set", "http.max_connections=64", "--set", "engine.max_sequences=4") as d:
            body = json.dumps({"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "temperature": 1}).encode()
            held = []
            for _ in range(60):
                s = socket.create_connection(("127.0.0.1", d.port))
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                held.append(s)
                if len(held) == 60:
                    d.wait_until(lambda: d.get("/api/v1/status")[1]["live"]["active"] == 4)
                    self.assertEqual(d.get("/healthz")[0], 200)
                    break
            status, e = d.post("/v1/completions", {"prompt": PROMPT})
            self.assertEqual((status, e["error"]["code"]), (503, "QUEUE_FULL"))
            for s in held:
                s.close()
            d.wait_until(lambda: d.get("/api/v1/status")[1]["live"]["active"] == 0)

    def test_a_slow_reader_does_not_hold_the_others(self):
        with Daemon() as d:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(("127.0.0.1", d.port))
            body = json.dumps({"prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            answer = d.complete(PROMPT, max_tokens=16)
            self.assertEqual(answer["choices"][0]["finish_reason"] in ("length", "stop"), True)
            s.close()

    def test_a_log_that_nobody_reads_holds_nothing_up(self):
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        with tempfile.TemporaryDirectory() as state, subprocess.Popen([KVASIRD, "--listen", "127.0.0.1:0", "--state", state, "--model", MODEL, "--set", "log.level=debug"], stderr=write, cwd=ROOT,
                                                                      env=environment()) as p:
            os.close(write)
            try:
                said = b""
                while not (at := re.search(rb"serves .* on http://[^/]*:(\d+)/", said)):
                    said += os.read(read, 4096)
                url = f"http://127.0.0.1:{int(at.group(1))}"
                with self.assertRaises(urllib.error.HTTPError):
                    urllib.request.urlopen(url + "/api/v1/" + "%01" * 1000, timeout=10)
                while b"GET /api/v1/" not in said[-8192:]:  # whole, however JSON writes it: half of a line would be waiting for a reader
                    said += os.read(read, 4096)
                    self.assertEqual(said[-1:], b"\n")
                # from here on nobody reads
                began = time.monotonic()
                for _ in range(100):
                    urllib.request.urlopen(url + "/api/v1/tiers", timeout=10).read()
                    self.assertLess(time.monotonic() - began, 15)
                p.send_signal(signal.SIGUSR1)
                for _ in range(2):
                    urllib.request.urlopen(url + "/readyz", timeout=10).read()
                while b"lines were lost" not in said:  # somebody reads again, and is told
                    said += os.read(read, 4096)
                    urllib.request.urlopen(url + "/api/v1/tiers", timeout=10).read()
                p.terminate()
                self.assertEqual(p.wait(30), 0)
            finally:
                p.kill()
                os.close(read)

    def test_sigterm_drains(self):
        d = Daemon("--set", "engine.drain_timeout_ms=120000")
        try:
            got = {}

            def ask():
                got["answer"] = d.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True})
            t = threading.Thread(target=ask)
            t.start()
            d.wait_until(lambda: d.get("/api/v1/status")[1]["live"]["active"] == 1)
            d.signal(signal.SIGTERM)
            t.join(120)
            self.assertEqual(got["answer"][0], 200, got)
            self.assertEqual(got["answer"][1]["usage"]["completion_tokens"], 2000)
            self.assertEqual(d.stop(), 0)
        finally:
            d.kill()

    def test_what_a_drain_cuts_off_is_told_so(self):
        d = Daemon("--set", "engine.drain_timeout_ms=0")
        try:
            got = []
            t = threading.Thread(target=lambda: got.append(d.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True})))
            t.start()
            d.wait_until(lambda: d.get("/api/v1/status")[1]["live"]["active"] == 1)
            d.signal(signal.SIGTERM)
            t.join(60)
            status, answer = got[0]
            self.assertEqual((status, answer["error"]["code"]), (503, "DRAINING"), answer)
            self.assertIn("another instance", answer["error"]["hint"])
            self.assertEqual(d.stop(), 0)
        finally:
            d.kill()


if __name__ == "__main__":
    unittest.main()
