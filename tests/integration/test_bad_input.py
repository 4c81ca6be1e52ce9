"""Whatever is wrong is refused with one clear sentence and a reason code: flags, files, addresses, disks, bodies, ids, routes."""
import json
import os
import resource
import shutil
import socket
import sqlite3
import struct
import tempfile
import unittest

from support import MODEL, Daemon, environment, run


class Start(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvasir-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def refused(self, code, says, *args, hint=None, **kw):
        status, out, err = run(*args, **kw)
        said = [line for line in err.splitlines() if line.startswith("kvasird: ")]
        self.assertEqual(status, 1, err)
        self.assertEqual(len(said), 1, err)
        self.assertTrue(said[0].startswith(f"kvasird: {code}: "), said[0])
        self.assertIn(says, said[0])
        if hint:
            self.assertIn(hint, said[0])
        self.assertEqual(out, "")

    def path(self, name, content=None):
        path = os.path.join(self.folder, name)
        if content is not None:
            with open(path, "wb") as f:
                f.write(content if isinstance(content, bytes) else content.encode())
        return path

    def serve(self, *more):
        return ("--listen", "127.0.0.1:0", "--state", self.path("state"), "--model", MODEL) + more

    def test_flags_and_settings(self):
        self.refused("UNKNOWN_KEY", "'--modle'", "--modle", "x", hint="did you mean '--model'?")
        self.refused("UNKNOWN_KEY", "'tiers.host.capacity_byte'", "--set", "tiers.host.capacity_byte=1", hint="'tiers.host.capacity_bytes'")
        self.refused("BAD_ARGUMENT", "a size such as 64MiB", "--set", "tiers.host.capacity_bytes=lots")
        self.refused("BAD_ARGUMENT", "between 1 and 1024", "--set", "engine.max_sequences=0")
        self.refused("BAD_ARGUMENT", "key=value", "--set", "engine.max_sequences")
        self.refused("BAD_ARGUMENT", "needs a value", "--model")
        self.refused("BAD_ARGUMENT", "local|token", "--set", "auth.mode=open")
        self.refused("BAD_ARGUMENT", "--exit goes with --demo", "--exit")
        self.refused("UNKNOWN_KEY", "'KVASIR_ENGINE_THREAD'", env=environment(KVASIR_ENGINE_THREAD="2"), hint="KVASIR_ENGINE_THREADS")
        self.refused("BAD_ARGUMENT", "tiers.remote.url", *self.serve("--set", "tiers.remote.url=http://x/"))  # without a disk tier

    def test_configuration_files(self):
        self.refused("FILE_UNREADABLE", "No such file", "--config", self.path("none.json"))
        self.refused("BAD_JSON", "line 1", "--config", self.path("a.json", '{"engine": }'))
        self.refused("UNKNOWN_KEY", "'engine.thread'", "--config", self.path("b.json", '{"engine": {"thread": 2}}'), hint="did you mean 'engine.threads'?")
        self.refused("UNKNOWN_KEY", "xxx", "--config", self.path("f.json", '{"%s": 1}' % ("x" * 120)), hint="--help lists them")
        self.refused("BAD_ARGUMENT", "engine.threads", "--config", self.path("c.json", '{"engine": {"threads": "two"}}'))
        self.refused("BAD_JSON", "duplicate", "--config", self.path("d.json", '{"listen": "127.0.0.1:1", "listen": "127.0.0.1:2"}'))
        for twice in ('{"engine": {"threads": 2}, "engine.threads": 3}', '{"engine.threads": 3, "engine": {"threads": 2}}'):
            self.refused("BAD_ARGUMENT", "sets engine.threads twice", "--config", self.path("g.json", twice), hint="keep one")
        self.refused("BAD_ARGUMENT", "sha256", "--config", self.path("e.json", '{"auth": {"tokens": [{"name": "x", "rights": ["viewer"]}]}}'))

    def test_precedence_is_flag_environment_file_default(self):
        config = self.path("p.json", '{"engine": {"threads": 3, "max_queue": 33, "max_sequences": 3}}')
        env = environment(KVASIR_ENGINE_MAX_QUEUE="44", KVASIR_ENGINE_MAX_SEQUENCES="4")
        status, out, err = run("--print-config", "--config", config, "--set", "engine.max_sequences=5", env=env)
        rows = {line.split()[0]: (line.split()[1], line.split()[-1]) for line in out.splitlines()}
        self.assertEqual(status, 0, err)
        self.assertEqual(rows["engine.threads"], ("3", "file"))
        self.assertEqual(rows["engine.max_queue"], ("44", "environment"))
        self.assertEqual(rows["engine.max_sequences"], ("5", "flag"))
        self.assertEqual(rows["engine.prefill_chunk"], ("256", "default"))
        self.assertRegex(out, r"\n# processor: \d+ cores, kernels (scalar|avx2|avx512)\n# cuda: (built in, \d+ device|not built in)")

    def test_addresses(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            self.refused("ADDRESS_IN_USE", "already listens", "--listen", f"127.0.0.1:{s.getsockname()[1]}", "--state", self.path("state"), "--model", MODEL)
        self.refused("BAD_ARGUMENT", "loopback only", "--listen", "0.0.0.0:0", "--state", self.path("state"), "--model", MODEL, hint="auth.mode=token")
        self.refused("BAD_ARGUMENT", "HOST:PORT", "--listen", "7070", "--state", self.path("state"), "--model", MODEL)

    def test_model_files(self):
        good = open(MODEL, "rb").read()
        start = ("--listen", "127.0.0.1:0", "--state", self.path("state"), "--model")
        self.refused("FILE_UNREADABLE", "none.gguf", *start, self.path("none.gguf"))
        self.refused("NOT_GGUF", "", *start, self.path("text.gguf", "this is no model\n" * 10))
        self.refused("MODEL_TRUNCATED", "", *start, self.path("short.gguf", good[:len(good) // 2]))
        # A tensor count that would need more memory than there is.
        self.refused("MODEL_MALFORMED", "", *start, self.path("huge.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + b"\0" * 64))

    def test_states(self):
        state = self.path("state")
        with Daemon(state=state):
            self.refused("STORE_LOCKED", "", "--listen", "127.0.0.1:0", "--state", state, "--model", MODEL)
        with sqlite3.connect(os.path.join(state, "kvasir.db")) as db:
            db.execute("PRAGMA user_version = 9999")
        db.close()
        self.refused("STORE_NEWER", "", *self.serve())
        os.remove(os.path.join(state, "kvasir.db"))
        self.path("state/kvasir.db", os.urandom(8192))
        for name in ("kvasir.db-wal", "kvasir.db-shm"):
            if os.path.exists(self.path(f"state/{name}")):
                os.remove(self.path(f"state/{name}"))
        self.refused("STORE_CORRUPT", "", *self.serve())
        self.refused("FILE_UNREADABLE", "state directory", "--listen", "127.0.0.1:0", "--model", MODEL, "--state", self.path("file", "x") + "/state")

    def test_policies(self):
        self.refused("POLICY_PARSE", "", *self.serve("--set", "policies.release=" + self.path("broken.lua", "return {")))
        self.refused("POLICY_SHAPE", "", *self.serve("--set", "policies.release=" + self.path("empty.lua", "return {}")))
        self.refused("FILE_UNREADABLE", "none.lua", *self.serve("--set", "policies.release=" + self.path("none.lua")))

    def test_a_full_disk_at_start(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
        status, _, err = run(*self.serve(), preexec_fn=limit)
        self.assertEqual(status, 1, err)
        said = [line for line in err.splitlines() if line.startswith("kvasird: ")]
        self.assertEqual(len(said), 1, err)
        self.assertRegex(said[0], "NO_SPACE|IO_ERROR|STORE_UNAVAILABLE")


class FullDisk(unittest.TestCase):
    def test_a_trace_that_cannot_be_written_is_said_so(self):
        with Daemon("--set", "trace.path=/dev/full") as d:
            d.complete("The", max_tokens=2)
            d.wait_line(r"trace\.path: an arrival could not be written: No space left on device; 1 were lost", timeout=10)

    def test_a_disk_that_fills_while_serving_never_loses_a_receipt_silently(self):
        """The database may not grow past 400 KiB: receipts queue, the health says so, exact answers go on or are refused with a reason."""
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400 * 1024, 400 * 1024))
        d = Daemon(preexec_fn=limit)
        try:
            codes = set()
            for i in range(400):
                status, answer = d.post("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "temperature": 0})
                codes.add(status if status == 200 else answer["error"]["code"])
                if not d.get("/api/v1/status")[1]["store"]["ok"]:
                    break
            s = d.wait_until(lambda: (lambda x: x if not x["store"]["ok"] else None)(d.get("/api/v1/status")[1]), timeout=20)
            self.assertIn(s["store"]["reason"], ("NO_SPACE", "IO_ERROR", "STORE_UNAVAILABLE"))
            self.assertLessEqual(codes, {200, "STORE_UNAVAILABLE", "QUEUE_FULL"})
            status, e = d.post("/api/v1/rollouts", {"name": "t", "pipeline": "layerwise"})
            self.assertEqual(e["error"]["code"], "STORE_UNAVAILABLE", e)
            self.assertEqual(d.get("/healthz")[0], 200)
        finally:
            d.kill()


def spoilt_model(path):
    """The demo model with a weight that is no number, through which every logit goes."""
    with open(MODEL, "rb") as f:
        data = bytearray(f.read())
    (infos,) = struct.unpack_from("<Q", data, 8)
    first = min(data.index(struct.pack("<Q", len(n)) + n) for n in (b"token_embd.weight", b"output_norm.weight", b"blk.0.attn_norm.weight"))
    at, place = first, None
    for _ in range(infos):
        (n,) = struct.unpack_from("<Q", data, at)
        name = bytes(data[at + 8:at + 8 + n])
        (dims,) = struct.unpack_from("<I", data, at + 8 + n)
        at += 12 + n + 8 * dims
        kind, offset = struct.unpack_from("<IQ", data, at)
        at += 12
        if name == b"output_norm.weight":
            assert kind == 0, "F32"
            place = offset
    base = -(-at // 32) * 32
    struct.pack_into("<f", data, base + place, float("nan"))
    with open(path, "wb") as f:
        f.write(data)


class Prompts(unittest.TestCase):
    """What a prompt can be that no answer comes of, each with its own reason, and the server goes on."""

    def outcome(self, d, **body):
        status, answer = d.post("/v1/completions", {"max_tokens": 4, "temperature": 0, **body})
        return status, answer["error"]["code"] if "error" in answer else answer["usage"]["completion_tokens"]

    def test_lengths_and_tokens(self):
        with Daemon() as d:
            self.assertEqual(self.outcome(d, prompt=[]), (400, "EMPTY_PROMPT"))
            self.assertEqual(self.outcome(d, prompt=[5]), (200, 4))
            self.assertEqual(self.outcome(d, prompt=[5] * 4094), (400, "CONTEXT_OVERRUN"))
            self.assertEqual(self.outcome(d, prompt=[1024]), (400, "TOKEN_OUT_OF_RANGE"), "an id of another vocabulary")
            self.assertEqual(self.outcome(d, prompt="Hello"), (200, 4))

    def test_longer_than_the_budget(self):
        with Daemon("--set", "tiers.host.capacity_bytes=1MiB") as d:
            status, answer = d.post("/v1/completions", {"prompt": [5] * 3000, "max_tokens": 4})
            self.assertEqual((status, answer["error"]["code"], answer["error"]["param"]), (503, "CAPACITY", "tiers.host.capacity_bytes"))
            self.assertIn("fewer tokens", answer["error"]["hint"])
            self.assertEqual(self.outcome(d, prompt="Hello"), (200, 4))

    def test_logits_that_are_no_numbers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "spoilt.gguf")
            spoilt_model(path)
            with Daemon(model=path) as d:
                for _ in range(2):
                    self.assertEqual(self.outcome(d, prompt="Hello"), (500, "NAN_LOGITS"))
                d.wait_until(lambda: d.get("/api/v1/failures?reason=NAN_LOGITS")[1]["failures"])
                self.assertEqual(d.get("/healthz")[0], 200)


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon("--set", "http.max_body_bytes=65536")

    @classmethod
    def tearDownClass(cls):
        assert cls.d.stop() == 0, "".join(cls.d.err)[-3000:]

    def refused(self, status, code, path, body, method="POST", param=None, headers=None):
        got, h, raw = self.d.request(method, path, body, headers)
        answer = json.loads(raw)
        self.assertEqual((got, answer["error"]["code"]), (status, code), (body, answer))
        self.assertTrue(answer["error"]["message"])
        self.assertEqual(set(answer["error"]) - {"hint"}, {"code", "message", "param", "type"})
        if param:
            self.assertEqual(answer["error"]["param"], param)
        return answer["error"], h

    def test_bodies(self):
        c = "/v1/completions"
        for body in (b"{", b"", b"[]", b"7", b'{"a":1,"a":2}', b"\xff\xfe", b'{"prompt":"\\u0000"}', b'{"prompt":"a"} x'):
            self.refused(400, "BAD_JSON" if body else "BAD_ARGUMENT", c, body)
        error, _ = self.refused(400, "BAD_JSON", c, b'{"prompt":"\\u0000"}')
        self.assertIn("\\u0000, which is not taken", error["message"])
        self.refused(400, "BAD_JSON", c, b"[" * 60000)
        self.refused(413, "BODY_TOO_LARGE", c, json.dumps({"prompt": "x" * 70000}))
        self.refused(413, "BODY_TOO_LARGE", c, iter([b"x" * 30000] * 3))  # chunked
        self.refused(413, "BODY_TOO_LARGE", c, b"{}", headers={"Content-Length": str(1 << 62)})

    def test_fields(self):
        c, p = "/v1/completions", {"prompt": "Hello"}
        for more, code, param in (
                ({"max_tokns": 3}, "UNKNOWN_KEY", "max_tokns"), ({"max_tokens": 0}, "BAD_ARGUMENT", "max_tokens"), ({"max_tokens": "9"}, "BAD_ARGUMENT", "max_tokens"),
                ({"max_tokens": 4096}, "CONTEXT_OVERRUN", "max_tokens"), ({"temperature": 3}, "BAD_ARGUMENT", "temperature"), ({"top_p": 0}, "BAD_ARGUMENT", "top_p"),
                ({"n": 2}, "BAD_ARGUMENT", "n"), ({"stop": ["a"] * 9}, "BAD_ARGUMENT", "stop"), ({"stop": [""]}, "BAD_ARGUMENT", "stop"), ({"logprobs": 6}, "BAD_ARGUMENT", "logprobs"),
                ({"stream": "yes"}, "BAD_ARGUMENT", "stream"), ({"stream_options": {"include_usage": True}}, "BAD_ARGUMENT", "stream_options"),
                ({"logit_bias": {"5": 1}}, "UNSUPPORTED", "logit_bias"), ({"echo": True}, "UNSUPPORTED", "echo"), ({"response_format": {"type": "xml"}}, "BAD_ARGUMENT", "response_format"),
                ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "a+"}}}}, "UNSUPPORTED", "response_format"),
                ({"kvasir": {"contract": "fuzzy"}}, "BAD_ARGUMENT", "kvasir.contract"), ({"kvasir": {"sesion": "x"}}, "UNKNOWN_KEY", "sesion"), ({"kvasir": {"deadline_ms": -1}}, "BAD_ARGUMENT", "deadline_ms"),
                ({"kvasir": {"pipeline": "quest"}}, "UNSUPPORTED", "kvasir.pipeline"), ({"kvasir": {"pipeline": "nope"}}, "UNKNOWN_PIPELINE", "kvasir.pipeline"),
                ({"kvasir": {"session": "x" * 64}}, "BAD_ARGUMENT", "session"), ({"kvasir": {"session": "a/pin"}}, "BAD_ARGUMENT", "kvasir.session"), ({"model": 5}, "BAD_ARGUMENT", "model")):
            self.refused(400, code, c, {**p, **more}, param=param)
        self.refused(404, "NOT_FOUND", c, {**p, "model": "gpt"}, param="model")
        error, _ = self.refused(400, "UNKNOWN_KEY", c, {**p, "temprature": 1})
        self.assertEqual(error["hint"], "did you mean 'temperature'?")

    def test_prompts(self):
        c = "/v1/completions"
        for prompt, code in (("", "EMPTY_PROMPT"), ([], "EMPTY_PROMPT"), ([-1], "TOKEN_OUT_OF_RANGE"), ([1 << 40], "TOKEN_OUT_OF_RANGE"), ([1024], "TOKEN_OUT_OF_RANGE"), ([1, "a"], "BAD_ARGUMENT"),
                             ([1.5], "BAD_ARGUMENT"), ({}, "BAD_ARGUMENT"), (None, "BAD_ARGUMENT"), (["a", "b"], "UNSUPPORTED"), ([5] * 4096, "CONTEXT_OVERRUN")):
            self.refused(400, code, c, {"prompt": prompt}, param="prompt")
        for messages in ([], "hi", [{}], [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": "image_url"}]}], [5]):
            self.refused(400, "BAD_ARGUMENT", "/v1/chat/completions", {"messages": messages}, param="messages")
        self.refused(400, "TOKEN_OUT_OF_RANGE", "/detokenize", {"ids": [99999]})
        self.refused(400, "BAD_ARGUMENT", "/tokenize", {"text": 5})
        self.refused(400, "UNKNOWN_KEY", "/tokenize", {"text": "a", "txt": 1})

    def test_routes_and_methods(self):
        self.refused(404, "NOT_FOUND", "/v1/nothing", {})
        self.refused(404, "NOT_FOUND", "/api/v1/rollouts/x", None, "GET")
        self.refused(404, "NOT_FOUND", "/api/v1/rollouts/r_000009", None, "GET")
        self.refused(404, "NOT_FOUND", "/api/v1/rollouts/r_000009/history", None, "GET")
        self.refused(404, "NOT_FOUND", "/api/v1/rollouts/r_000009/rollback", {})
        self.refused(404, "NOT_FOUND", "/api/v1/rollouts/r_000009/explode", {})
        self.refused(404, "NOT_FOUND", "/index.htm", None, "GET")
        for method, path, allow in (("GET", "/v1/completions", "POST"), ("DELETE", "/api/v1/rollouts", "GET, POST"), ("PUT", "/api/v1/status", "GET"), ("BREW", "/healthz", "GET")):
            _, headers = self.refused(405, "METHOD_NOT_ALLOWED", path, None, method)
            self.assertEqual(headers["Allow"], allow)

    def test_keys_of_a_query(self):
        """One that is passed over would choose everything."""
        for path, key, hint in (("receipts?limit=1&", "sesion", "session"), ("audit?limit=1&", "rollouts", "rollout"), ("failures?limit=1&", "reasons", "reason"), ("metrics/history?", "second", "seconds"),
                                ("drills?", "rolout", "rollout"), ("rollouts/r_000001/samples?", "metrics", "metric"), ("sessions/s?", "tenat", "tenant")):
            error, _ = self.refused(400, "UNKNOWN_KEY", f"/api/v1/{path}{key}=x", None, "GET", param=key)
            self.assertEqual(error["hint"], f"did you mean '{hint}'?")
        error, _ = self.refused(400, "UNKNOWN_KEY", "/api/v1/receipts?" + "x" * 300 + "=1", None, "GET")
        self.assertIn("kind, request, rollout", error["hint"])
        for path in ("rollouts?stage=OFF", "sessions?tenant=acme", "status?x", "tiers?tier=disk", "faults?armed=true", "policies?kind=release", "policies/release/versions?state=DRAFT",
                     "receipts/verify?id=1", "credits?x=1", "events?after=1"):
            self.refused(400, "UNKNOWN_KEY", f"/api/v1/{path}", None, "GET")
        self.refused(400, "UNKNOWN_KEY", "/api/v1/freeze?frozen=false", {"frozen": False}, param="frozen")  # or it would freeze
        self.assertNotEqual(self.d.post("/api/v1/rollouts/r_000001/rollback?now", {})[0], 400)  # never for that
        self.refused(400, "UNKNOWN_KEY", "/api/v1/sessions/s/drop?tenat=acme", {}, param="tenat")  # or it would drop another tenant's
        self.refused(400, "UNKNOWN_KEY", "/api/v1/receipts?%ff%01=1", None, "GET")
        for query in ("", "?", "?kind=&limit=1&", "?order=oldest&after=1&epoch=1&until=2099-01-01&digest=000000"):
            self.assertEqual(self.d.get("/api/v1/receipts" + query)[0], 200, query)

    def test_bytes_that_are_no_http(self):
        for raw in (b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                    b"GET / HTTP/1.1\r\nX: " + b"b" * 100000 + b"\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
            with socket.create_connection(("127.0.0.1", self.d.port), timeout=10) as s:
                try:
                    s.sendall(raw)
                    s.shutdown(socket.SHUT_WR)
                    answer = b""
                    while chunk := s.recv(4096):
                        answer += chunk
                except ConnectionError:
                    continue
                self.assertNotIn(b" 200 ", answer[:20])
        self.assertEqual(self.d.get("/healthz")[0], 200)

    def test_a_path_does_not_end_at_a_zero_byte(self):
        self.refused(404, "NOT_FOUND", "/healthz%00x", None, "GET")
        self.refused(400, "BAD_ARGUMENT", "/api/v1/receipts?request=%00x", None, "GET")

    def test_a_stream_asked_for_by_head_has_no_body(self):
        with socket.create_connection(("127.0.0.1", self.d.port), timeout=10) as s:
            s.sendall(b"HEAD /api/v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while chunk := s.recv(4096):
                answer += chunk
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertIn(b" 200 ", head[:20])
        self.assertEqual(body, b"")

    def test_framing_that_can_be_read_in_two_ways(self):
        for field, extra in (("header", "Host: localhost\r\nContent-Length : 2\r\n"), ("Host", "Host: localhost\r\nHost: evil\r\nContent-Length: 2\r\n"), ("Content-Length", "Host: localhost\r\nContent-Length: 2\r\nContent-Length: 4\r\n"),
                             ("Content-Length", "Host: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n")):
            with socket.create_connection(("127.0.0.1", self.d.port), timeout=10) as s:
                s.sendall(f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\n{extra}\r\n{{}}".encode())
                s.shutdown(socket.SHUT_WR)
                answer = b""
                while chunk := s.recv(4096):
                    answer += chunk
            head, _, body = answer.partition(b"\r\n\r\n")
            self.assertIn(b" 400 ", head[:20], extra)
            self.assertEqual(json.loads(body)["error"]["param"], field)


if __name__ == "__main__":
    unittest.main()
