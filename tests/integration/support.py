"""Starts the real kvasird on a free port and stops it again; small HTTP calls without dependencies."""
import atexit
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("KVASIR_BUILD", "build"))
KVASIRD = os.path.join(BUILD, "kvasird")
KVASIR = os.path.join(BUILD, "kvasir")
MODEL = os.path.join(ROOT, "models", "kvasir-demo-q8_0.gguf")
# A sanitized program on busy cores starts in several times the usual second.
START_S = float(os.environ.get("KVASIR_TEST_START_S", "60"))


def smollm2():
    """SmolLM2's file, which is too large to ship: the checks fetch it by tools/smollm2.sh, and its tests fail without it."""
    name = "SmolLM2-135M-Instruct-Q4_1.gguf"
    fetched = os.path.join(ROOT, "build", "models", name)
    return next((path for path in (os.environ.get("KVASIR_TEST_MODEL", ""), os.path.join(ROOT, "..", "shared", "models", name)) if os.path.isfile(path)), fetched)


def mooncake_trace():
    """A real request trace, which does not ship; None where it is not at hand, and run.py says so."""
    path = os.path.join(ROOT, "..", "shared", "traces", "mooncake-conversation.jsonl")
    return path if os.path.isfile(path) else None


_live = []


@atexit.register
def _stop_all():
    for d in list(_live):
        d.kill()


def environment(**extra):
    """The caller's environment without settings of kvasird; the instruction set is a test's to choose."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_") or k == "KVASIR_ISA"}
    keep.update(extra)
    return keep


def run(*args, timeout=60, env=None, **popen):
    """kvasird with arguments that make it end by itself: (exit status, stdout, stderr)."""
    p = subprocess.run([KVASIRD, *args], capture_output=True, text=True, timeout=timeout, cwd=ROOT, env=env or environment(), **popen)
    return p.returncode, p.stdout, p.stderr


class Daemon:
    """kvasird on a free loopback port with a fresh state folder, ready when the constructor returns."""

    def __init__(self, *args, state=None, env=None, config=None, model=MODEL, wait=True, preexec_fn=None):
        self.state = state or tempfile.mkdtemp(prefix="kvasir-test-")
        self.own_state = state is None
        # Contexts are short here: methods select wherever they leave rows out, also where all rows would come faster.
        command = [KVASIRD, "--listen", "127.0.0.1:0", "--state", self.state, "--model", model, "--set", "engine.break_even=0.01"]
        if config is not None:
            self.config = os.path.join(self.state, "config.json")
            with open(self.config, "w") as f:
                json.dump(config, f)
            command += ["--config", self.config]
        self.out, self.err, self._more = [], [], threading.Condition()
        self.process = subprocess.Popen(command + list(args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                                        env=env or environment(), preexec_fn=preexec_fn)
        _live.append(self)
        self._readers = [threading.Thread(target=self._read, args=a, daemon=True)
                         for a in ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for t in self._readers:
            t.start()
        self.port = None
        if wait:
            line = self.wait_line(r"serves .* on https?://[^/]*:(\d+)/")
            self.port = int(line.group(1))
            assert self.get("/readyz")[0] == 200

    def _read(self, pipe, to):
        for line in pipe:
            with self._more:
                to.append(line)
                self._more.notify_all()
        with self._more:
            to.append("")
            self._more.notify_all()

    def wait_line(self, pattern, timeout=None, lines=None):
        """The first match of pattern in a line of standard error (or `lines`); fails when the program ends first."""
        lines, seen, end = self.err if lines is None else lines, 0, time.monotonic() + (timeout or START_S)
        with self._more:
            while True:
                for line in lines[seen:]:
                    found = re.search(pattern, line)
                    if found:
                        return found
                seen = len(lines)
                if lines and lines[-1] == "":
                    raise AssertionError(f"kvasird ended before it wrote {pattern!r}: {''.join(self.err)[-2000:]}")
                if not self._more.wait(end - time.monotonic()) and time.monotonic() > end:
                    raise AssertionError(f"kvasird did not write {pattern!r} in time: {''.join(self.err)[-2000:]}")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, bytes) of one request; body is JSON unless it is bytes."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read()
        finally:
            c.close()

    def get(self, path, **kw):
        status, _, body = self.request("GET", path, **kw)
        return status, _json(body)

    def post(self, path, body=None, **kw):
        status, _, answer = self.request("POST", path, {} if body is None else body, **kw)
        return status, _json(answer)

    def complete(self, prompt, **fields):
        status, answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        assert status == 200, answer
        return answer

    def stream(self, path, body, timeout=60):
        """The events of a streamed answer, as decoded JSON and the final "[DONE]"."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}))
            r = c.getresponse()
            for line in r:
                if line.startswith(b"data: "):
                    data = line[6:].strip()
                    yield "[DONE]" if data == b"[DONE]" else json.loads(data)
        finally:
            c.close()

    def events(self, last_id=None, timeout=30):
        """(event, data, id) of the operator's event stream, until the caller stops asking."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request("GET", "/api/v1/events", headers={"Last-Event-ID": str(last_id)} if last_id else {})
            r = c.getresponse()
            assert r.status == 200, r.read()
            event, ident = None, None
            for line in r:
                if line.startswith(b"id: "):
                    ident = int(line[4:])
                elif line.startswith(b"event: "):
                    event = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    yield event, json.loads(line[6:]), ident
                    event, ident = None, None
        finally:
            c.close()

    def wait_until(self, what, timeout=30):
        """Asks until `what()` is true; the value. For facts that no event tells."""
        end = time.monotonic() + timeout
        while True:
            value = what()
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError("it did not become true in time")
            time.sleep(0.02)

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self, timeout=60):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("kvasird did not stop on SIGTERM")
        for t in self._readers:
            t.join(10)
        self._forget()
        return status

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for t in self._readers:
            t.join(10)
        self._forget()

    def _forget(self):
        self.process.stdout.close()
        self.process.stderr.close()
        if self in _live:
            _live.remove(self)
        if self.own_state:
            shutil.rmtree(self.state, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        if kind:
            self.kill()
        else:
            assert self.stop() == 0, "".join(self.err)[-4000:]


def _json(body):
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
