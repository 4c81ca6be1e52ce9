"""An answer that is over names receipts that are on disk: held back until they are, and there after kill -9."""
import http.client
import json
import re
import shutil
import sqlite3
import tempfile
import threading
import time
import unittest

from support import Daemon


class Answers(unittest.TestCase):
    def setUp(self):
        self.state = tempfile.mkdtemp(prefix="kvasir-durable-")
        self.addCleanup(shutil.rmtree, self.state, True)

    def locked(self):
        """Another writer's lock: nothing can be committed until it is rolled back. kvasird waits two seconds for it, then counts the store as failing."""
        c = sqlite3.connect(f"{self.state}/kvasir.db", isolation_level=None, check_same_thread=False)
        self.addCleanup(c.close)
        c.execute("BEGIN IMMEDIATE")
        return c

    def ask(self, d, stream):
        """The answer's `kvasir`, and when its end had arrived."""
        c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
        try:
            c.request("POST", "/v1/completions", json.dumps({"prompt": "One", "max_tokens": 4, "temperature": 0, "stream": stream}))
            body = c.getresponse().read().decode()
        finally:
            c.close()
        at = time.monotonic()
        return json.loads([line for line in body.splitlines() if '"kvasir"' in line][-1].removeprefix("data: "))["kvasir"], at

    def finished(self, d):
        return int(re.search(r"^kvasir_requests_finished_total (\d+)", d.request("GET", "/metrics")[2].decode(), re.M)[1])

    def test_an_answer_waits_for_its_receipts_and_a_kill_right_after_it_loses_none(self):
        ids = []
        for stream in (False, True):
            d = Daemon(state=self.state)
            self.addCleanup(d.kill)
            before = self.finished(d)
            lock, got = self.locked(), []
            asking = threading.Thread(target=lambda: got.append(self.ask(d, stream)))
            asking.start()
            d.wait_until(lambda: self.finished(d) > before)
            for _ in range(10):  # the engine is long done with it
                self.finished(d)
            released = time.monotonic()
            lock.execute("ROLLBACK")
            asking.join()
            d.kill()
            stamp, at = got[0]
            self.assertGreater(at, released)
            self.assertNotIn("receipt_durable", stamp)
            d = Daemon(state=self.state)
            kinds = [r["kind"] for r in d.get(f"/api/v1/receipts?request={stamp['receipt_id']}")[1]["receipts"]]
            self.assertEqual(kinds, ["REQUEST", "PUBLICATION"])
            ids.append(stamp["receipt_id"])
            self.assertTrue(d.get("/api/v1/receipts/verify")[1]["verified"])
            d.kill()
        self.assertLess(ids[0], ids[1], "no id is given twice, not even by two processes")

    def test_the_last_tokens_of_a_stream_wait_for_nothing(self):
        with Daemon(state=self.state) as d:
            for _ in range(8):  # the last token and the end are often found together
                lock = self.locked()
                c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
                self.addCleanup(c.close)
                c.request("POST", "/v1/completions", json.dumps({"prompt": "One", "max_tokens": 4, "temperature": 0, "logprobs": 0, "ignore_eos": True, "stream": True}))
                answer, tokens = c.getresponse(), 0
                while tokens < 4:
                    tokens += b'"finish_reason":null' in answer.readline()
                lock.execute("ROLLBACK")
                lock.close()
                rest = answer.read()
                self.assertIn(b'"finish_reason":"length"', rest)
                self.assertNotIn(b"receipt_durable", rest, "the tokens came when the store was given up")

    def test_a_kill_after_each_of_many_answers_loses_none(self):
        d = Daemon(state=self.state)
        self.addCleanup(d.kill)
        ids, go = [], threading.Event()

        def client(n):
            for i in range(25):
                ids.append(self.ask(d, n % 2 == 1)[0]["receipt_id"])
                if len(ids) >= 60:
                    go.set()

        clients = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(4)]
        hooked, threading.excepthook = threading.excepthook, lambda a: None  # they meet a killed server
        self.addCleanup(setattr, threading, "excepthook", hooked)
        for t in clients:
            t.start()
        self.assertTrue(go.wait(60))
        d.kill()
        for t in clients:
            t.join()
        with Daemon(state=self.state) as d:
            for ident in ids:
                kinds = [r["kind"] for r in d.get(f"/api/v1/receipts?request={ident}")[1]["receipts"]]
                self.assertEqual(kinds, ["REQUEST", "PUBLICATION"], ident)

    def test_a_kill_after_each_of_many_writes_loses_no_audit_row(self):
        d = Daemon(state=self.state)
        self.addCleanup(d.kill)
        told, go = [], threading.Event()

        def operator(n):
            for i in range(400):
                path = f"/api/v1/rollouts/r_{n}{i:05}/advance"  # refused, and audited all the same
                self.assertEqual(d.post(path)[0], 412)
                told.append(path)
                if len(told) >= 60:
                    go.set()

        operators = [threading.Thread(target=operator, args=(n,), daemon=True) for n in range(1, 5)]
        hooked, threading.excepthook = threading.excepthook, lambda a: None
        self.addCleanup(setattr, threading, "excepthook", hooked)
        for t in operators:
            t.start()
        self.assertTrue(go.wait(60))
        d.kill()
        for t in operators:
            t.join()
        with Daemon(state=self.state) as d:
            kept = {r["detail"] for r in d.get("/api/v1/audit?limit=1000")[1]["receipts"]}
            self.assertEqual([p for p in told if f"POST {p}: 412" not in kept], [])

    def test_an_answer_says_when_its_receipts_could_not_be_written(self):
        with Daemon(state=self.state) as d:
            lock = self.locked()
            for stream in (False, True):
                self.assertIs(self.ask(d, stream)[0]["receipt_durable"], False)
            lock.execute("ROLLBACK")
            d.wait_until(lambda: "receipt_durable" not in self.ask(d, False)[0])


if __name__ == "__main__":
    unittest.main()
