"""Ten times the load that fits: bounded queues, typed refusals at once, memory within its cap, admitted work within its deadline, and no collapse."""
import os
import threading
import time
import unittest

from support import Daemon

SEQUENCES, QUEUE, DEADLINE_MS = 4, 4, 4000
SECONDS = float(os.environ.get("KVASIR_OVERLOAD_S", "5"))  # each phase; `make soak` takes a minute
PROMPT = "The magic number for amber anchor is 4711.\nQuestion: what is the magic number for amber anchor?\nAnswer: The magic number for"


class Overload(unittest.TestCase):
    def load(self, d, clients):
        """Closed loop of so many clients: (tokens a second that were answered in time, {code: n}, slowest answer in seconds)."""
        end, lock = time.monotonic() + SECONDS, threading.Lock()
        codes, tokens, slowest, broken = {}, 0, 0.0, []

        def client(i):
            nonlocal tokens, slowest
            n = 0
            while time.monotonic() < end:
                n += 1
                began = time.monotonic()
                status, a = d.post("/v1/completions", {"prompt": f"{PROMPT} {i} {n}", "max_tokens": 24, "ignore_eos": True, "temperature": 0, "kvasir": {"deadline_ms": DEADLINE_MS}})
                took = time.monotonic() - began
                code = a["error"]["code"] if status != 200 else "OK"
                with lock:
                    codes[code] = codes.get(code, 0) + 1
                    if status == 200:
                        tokens += a["usage"]["completion_tokens"]
                        slowest = max(slowest, took)
                        if a["kvasir"]["published_contract"] != "exact":
                            broken.append(a)
                if status != 200:
                    time.sleep(0.05)  # what a refused client is told: retry later

        threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
        began = time.monotonic()
        for t in threads:
            t.start()
        peak = 0
        while any(t.is_alive() for t in threads):
            live = d.get("/api/v1/status")[1]["live"]
            peak = max(peak, live["queued"])
            time.sleep(0.1)
        seconds = time.monotonic() - began
        self.assertLessEqual(peak, QUEUE)
        self.assertEqual(broken, [])
        return tokens / seconds, codes, slowest

    def resident_kib(self, d):
        with open(f"/proc/{d.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    def test_ten_times_what_fits(self):
        with Daemon("--set", f"engine.max_sequences={SEQUENCES}", "--set", f"engine.max_queue={QUEUE}", "--set", "tiers.host.capacity_bytes=64MiB") as d:
            fits, codes, _ = self.load(d, SEQUENCES)
            self.assertEqual(set(codes), {"OK"}, codes)
            before = self.resident_kib(d)
            over, codes, slowest = self.load(d, 10 * SEQUENCES)
            self.assertLessEqual(set(codes), {"OK", "QUEUE_FULL", "DEADLINE"}, codes)
            self.assertGreater(codes.get("QUEUE_FULL", 0), 0)
            self.assertLess(slowest, DEADLINE_MS / 1000 + 1)
            self.assertLess(self.resident_kib(d), before + 96 * 1024)
            # The clients share the cores with the server, so the bound is looser than on a machine of its own.
            self.assertGreater(over, 0.6 * fits, f"{over:.0f} of {fits:.0f} tokens a second")
            self.assertEqual(d.get("/api/v1/credits")[1]["stale"], 0)


if __name__ == "__main__":
    unittest.main()
