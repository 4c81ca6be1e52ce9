"""What takes a while says how far it is: a model's load before the server takes requests, prompts and restores while it does, commands on a terminal."""
import http.client
import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import support

LONG = "The river ran over the stones and under the bridge. " * 120


def ask(port, path):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, json.loads(r.read()) if path.startswith("/api") else r.read().decode()
    finally:
        c.close()


def on_a_terminal(*command, limit_s=60):
    """What a command writes when its standard error is a terminal: (exit status, stdout, stderr)."""
    ours, theirs = pty.openpty()
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, cwd=support.ROOT, env=support.environment())
    os.close(theirs)
    heard, end = {p.stdout.fileno(): b"", ours: b""}, time.monotonic() + limit_s
    waiting = set(heard)
    while waiting and time.monotonic() < end:
        for fd in select.select(waiting, [], [], 1)[0]:
            try:
                piece = os.read(fd, 65536)
            except OSError:  # the terminal's other end is gone
                piece = b""
            heard[fd] += piece
            if not piece:
                waiting.discard(fd)
    out, err = heard[p.stdout.fileno()].decode(), heard[ours].decode()
    p.stdout.close()
    os.close(ours)
    return p.wait(10), out, err


class Watcher:
    """Asks for the progress again and again until it is told to stop; keeps every task it saw."""

    def __init__(self, port):
        self.port, self.seen, self.stopped = port, [], threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        while not self.stopped.is_set():
            c.request("GET", "/api/v1/progress")
            self.seen += json.loads(c.getresponse().read())["tasks"]
        c.close()

    def stop(self):
        self.stopped.set()
        self.thread.join()
        return self.seen


class LoadTest(unittest.TestCase):
    def test_a_load_says_its_percent_while_health_answers(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # A model whose load takes a while: as long a hole behind its tensors has to be hashed too.
        large = tempfile.NamedTemporaryFile(suffix=".gguf")
        self.addCleanup(large.close)
        shutil.copyfile(support.MODEL, large.name)
        os.truncate(large.name, 1 << 30)
        name = os.path.basename(large.name)
        d = support.Daemon("--listen", f"127.0.0.1:{port}", model=large.name, wait=False)
        self.addCleanup(d.stop)
        said, tasks, healthy = [], [], 0
        end = time.monotonic() + support.START_S
        while time.monotonic() < end:
            try:
                status, text = ask(port, "/readyz")
                if status == 200:
                    break
                said.append(json.loads(text)["error"])
                healthy += ask(port, "/healthz")[0] == 200
                tasks += ask(port, "/api/v1/progress")[1]["tasks"]
            except (ConnectionError, OSError):
                continue
        self.assertEqual(status, 200)
        self.assertTrue(any(re.search(rf"loads its model: {re.escape(name)}, \d+ %", e["message"]) for e in said), said)
        self.assertTrue(all(e["code"] == "DRAINING" and e["hint"] for e in said))
        self.assertGreater(healthy, 0)
        loads = [t for t in tasks if t["kind"] == "load"]
        self.assertTrue(loads)
        self.assertTrue(all(0 <= t["done"] <= (t["total"] or t["done"]) and t["what"] == name for t in loads), loads)
        self.assertEqual(ask(port, "/api/v1/progress"), (200, {"tasks": []}))


class WorkTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.disk = tempfile.TemporaryDirectory(prefix="kvasir-progress-")
        cls.daemon = support.Daemon(config={"tiers": {"disk": {"path": cls.disk.name, "capacity_bytes": "256MiB", "reserve_bytes": 0}}})

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        cls.disk.cleanup()

    def watch(self, work, kind):
        """What was seen of a kind while work ran, which is repeated until something was."""
        for i in range(20):
            w = Watcher(self.daemon.port)
            try:
                work(i)
            finally:
                seen = [t for t in w.stop() if t["kind"] == kind]
            if seen:
                return seen
        self.fail(f"no {kind} was seen")

    def test_a_prompt_says_how_many_of_its_tokens_are_there(self):
        seen = self.watch(lambda i: self.daemon.complete(f"{i} {LONG}", max_tokens=1, kvasir={"session": f"long-{i}"}), "prefill")
        for t in seen:
            self.assertEqual(t["unit"], "tokens")
            self.assertLess(t["done"], t["total"])
            self.assertGreater(t["total"], 1000)
            self.assertIn("long-", t["what"])
            self.assertRegex(t["id"], r"^q_\d{12}$")
            self.assertGreaterEqual(t["seconds"], 0)
        p = subprocess.run([support.KVASIR, "--url", self.daemon.url, "progress"], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("seconds", p.stdout)

    def test_a_restore_says_how_many_tokens_are_back(self):
        def turn(i):
            # Rows kept in memory would need no restore: a turn of another session's length apart each time.
            first = self.daemon.complete(f"restore {i} {LONG}", max_tokens=1, kvasir={"session": f"back-{i}"})
            self.daemon.wait_until(lambda: self.saved(f"back-{i}"))
            self.restart()
            w = Watcher(self.daemon.port)
            self.daemon.complete(f"restore {i} {LONG}{first['choices'][0]['text']} and", max_tokens=1, kvasir={"session": f"back-{i}"})
            restores.extend(t for t in w.stop() if t["kind"] == "restore")

        restores = []
        for i in range(5):
            turn(i)
            if restores:
                break
        self.assertTrue(restores, "no restore was seen")
        for t in restores:
            self.assertEqual((t["unit"], t["total"] % 64), ("tokens", 0))
            self.assertLess(t["done"], t["total"])

    def saved(self, session):
        return any(s["session"] == session and s.get("saved_blocks") for s in self.daemon.get("/api/v1/sessions")[1]["sessions"])

    def restart(self):
        state, port = self.daemon.state, self.daemon.port
        self.daemon.own_state = False
        self.daemon.stop()
        type(self).daemon = support.Daemon("--listen", f"127.0.0.1:{port}", state=state,
                                           config={"tiers": {"disk": {"path": self.disk.name, "capacity_bytes": "256MiB", "reserve_bytes": 0}}})
        type(self).daemon.own_state = True


class CommandTest(unittest.TestCase):
    def test_a_long_simulation_says_its_percent_on_a_terminal_and_only_there(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            for i in range(2000):
                f.write(json.dumps({"timestamp": i * 100, "input_length": 4096, "output_length": 200, "hash_ids": [i % 50 * 8 + k for k in range(8)]}) + "\n")
            f.flush()
            for repeat in ("150", "300", "600"):  # until it takes well over the second from which on it is shown
                command = (support.KVASIR, "simulate", "--trace", f.name, "--policy", "exact-deadline-coalescing", "--repeat", repeat)
                began = time.monotonic()
                status, out, err = on_a_terminal(*command)
                self.assertEqual(status, 0, err)
                if time.monotonic() - began > 1.5:
                    break
            percents = [int(p) for p in re.findall(r"\]\s+(\d+) %", err)]
            self.assertTrue(percents, err)
            self.assertEqual(percents, sorted(percents))
            self.assertTrue(err.endswith("\r\x1b[K"), repr(err[-80:]))
            self.assertNotIn("%  ", out.split("\n", 2)[2])
            p = subprocess.run(command, capture_output=True, text=True, env=support.environment())
            self.assertEqual((p.returncode, p.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
