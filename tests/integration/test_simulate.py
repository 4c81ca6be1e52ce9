"""kvasir simulate: the facts of a real trace where it is at hand, a small trace worked out here always, policies side by side, and bad input."""
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import unittest
from collections import OrderedDict

from tests.integration import support

TRACE = support.mooncake_trace()
# Of 288,500 blocks, hits with so many blocks of room.
FACTS = {"1000": 12831, "10000": 60921, "30000": 93967, "50000": 102290, "100000": 104924, "unlimited": 105710}
URGENT, HOLDERS = {"contract": "exact", "deadline_ms": 600000}, 8


def simulate(*args):
    p = subprocess.run([support.KVASIR, "--json", "simulate", *args], capture_output=True, text=True, timeout=120, cwd=support.ROOT, env=support.environment())
    return p.returncode, json.loads(p.stdout) if p.stdout.strip() else None, p.stderr


def small_trace():
    """300 requests of forty conversations that grow by a block a turn."""
    lines, turns = [], {}
    for i in range(300):
        who = (i * i + 7 * i) % 40
        turns[who] = turns.get(who, 1) + 1
        n = turns[who]
        lines.append({"timestamp": i * 40, "input_length": 512 * n, "output_length": 20 + i % 30, "hash_ids": [who * 1000 + k for k in range(n)],
                      **({"contract": "approximate"} if i % 5 == 0 else {}), **({"deadline_ms": 900 + i % 7 * 300} if i % 3 else {})})
    return lines


def plain_lru(lines, capacity):
    pool, hits = OrderedDict(), 0
    for line in lines:
        whole = True
        for b in line["hash_ids"]:
            if b in pool:
                pool.move_to_end(b)
                hits += whole
            else:
                whole = False
                pool[b] = True
                if len(pool) > capacity:
                    pool.popitem(last=False)
    return hits


class Simulate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.dir.cleanup)
        cls.lines = small_trace()
        cls.trace = cls.write("small.jsonl", cls.lines)

    @classmethod
    def write(cls, name, lines):
        path = os.path.join(cls.dir.name, name)
        with open(path, "w") as f:
            f.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        return path

    if TRACE:
        def test_the_facts_of_the_trace(self):
            for blocks, hits in FACTS.items():
                status, r, err = simulate("--trace", TRACE, "--blocks", blocks, "--eviction", "lru")
                self.assertEqual(status, 0, err)
                self.assertEqual((r["block_hits"], r["blocks"], r["input_tokens"]), (hits, 288500, 144793823))

    def test_a_small_trace_equals_a_plain_pool(self):
        total = sum(len(line["hash_ids"]) for line in self.lines)
        for blocks in (1, 7, 60, 200, 10000):
            status, r, err = simulate("--trace", self.trace, "--blocks", str(blocks), "--eviction", "lru")
            self.assertEqual(status, 0, err)
            self.assertEqual((r["block_hits"], r["blocks"]), (plain_lru(self.lines, blocks), total))

    def test_policies_and_sizes_side_by_side(self):
        status, r, err = simulate("--trace", self.trace, "--policy", "fifo,earliest_deadline,exact_deadline_coalescing", "--host", "128MiB,4GiB", "--disk", "0,64GiB", "--device", "2GiB",
                                  "--set", "prefill_tokens_per_s=20000", "--target", "0.5")
        self.assertEqual(status, 0, err)
        self.assertTrue(r["emulated"])
        self.assertEqual(len(r["runs"]), 12)
        self.assertEqual({x["policy"] for x in r["runs"]}, {"fifo", "earliest-deadline", "exact-deadline-coalescing"})
        for x in r["runs"]:
            self.assertEqual(x["finished"] + sum(x["refused"].values()), 300)
            self.assertEqual(x["policy_faults"], 0)
            self.assertGreater(x["policy_calls"], 0)
        by = {(x["policy"], x["host_bytes"], x["disk_bytes"]): x for x in r["runs"]}
        for policy in ("fifo", "earliest-deadline", "exact-deadline-coalescing"):
            none, disk = by[policy, 128 << 20, 0], by[policy, 128 << 20, 64 << 30]
            self.assertGreater(disk["blocks"]["host_hits"] + disk["blocks"]["disk_hits"], none["blocks"]["host_hits"])
            self.assertGreater(by[policy, 4 << 30, 0]["blocks"]["host_hits"], none["blocks"]["host_hits"])
        sizing = r["sizing"]
        self.assertTrue(sizing["reachable"])
        total = sum(len(line["hash_ids"]) for line in self.lines)
        self.assertGreaterEqual(plain_lru(self.lines, sizing["blocks"]), 0.5 * total)
        self.assertLess(plain_lru(self.lines, sizing["blocks"] - 1), 0.5 * total)

    def test_the_same_run_gives_the_same_answer(self):
        args = ("--trace", self.trace, "--policy", "fifo", "--host", "1GiB", "--speed", "10", "--deadline-ms", "500")
        a, b = simulate(*args)[1], simulate(*args)[1]
        for r in (a, b):
            for x in r["runs"]:
                x.pop("wall_seconds")
        self.assertEqual(a, b)
        self.assertGreater(sum(a["runs"][0]["refused"].values()), 0)

    def test_bad_input_is_refused_by_line(self):
        good = json.dumps(self.lines[0])
        for bad, word in (("{", "line 2"), ("[]", "line 2"), ('{"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[]}', "line 2"), ('{"timestamp":0}', "line 2"),
                          ('{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":["x"]}', "hash_ids[0]")):
            status, _, err = simulate("--trace", self.write("bad.jsonl", [good, bad]), "--blocks", "10")
            self.assertEqual(status, 1)
            self.assertIn(word, err)
        self.assertEqual(simulate("--trace", self.write("empty.jsonl", []), "--blocks", "10")[0], 1)
        self.assertEqual(simulate("--trace", os.path.join(self.dir.name, "none.jsonl"), "--blocks", "10")[0], 1)
        for args in (("--blocks", "0"), ("--blocks", "many"), ("--eviction", "mru", "--blocks", "5"), ("--set", "unknown=1"), ("--host", "1GB"), ("--speed", "0"), ("--what", "1")):
            status, _, err = simulate("--trace", self.trace, *args)
            self.assertEqual(status, 2, args)
        endless = self.write("endless.jsonl", [good])
        with open(endless, "ab") as f:
            f.truncate(1 << 40)  # a line that is not there to be read whole
        late = self.write("late.jsonl", ['{"timestamp":1000000000000000,"input_length":1,"output_length":1,"hash_ids":[]}'])
        for args, word in ((("--trace", endless), "line 2 is longer than"), (("--trace", late), "line 1 arrives 35 years"), (("--trace", self.trace, "--speed", "1e-6", "--repeat", "1000"), "last longer than 35 years")):
            status, _, err = simulate(*args, "--blocks", "10")
            self.assertEqual(status, 1, args)
            self.assertIn(word, err)
        status, _, err = simulate("--trace", self.trace, "--policy", "no-such-policy")
        self.assertEqual(status, 1)
        self.assertIn("no-such-policy", err)

    def burst(self, policy, path, kinds):
        """Which of these the daemon served first, and so on: all of them wait for its one place before it may choose."""
        wants, threads = {}, []
        with support.Daemon("--set", f"trace.path={path}", "--set", "engine.max_sequences=1", "--set", "engine.prefix_reuse=false", "--set", "engine.starvation_ms=3600000",
                            "--set", f"policies.admission=policies/{policy}.lua") as d:
            body = json.dumps({"prompt": "One", "max_tokens": 3000, "ignore_eos": True, "kvasir": URGENT}).encode()

            def arrived(n):
                done = int(re.search(r"^kvasir_requests_finished_total (\d+)", d.get("/metrics")[1], re.M)[1])
                live = d.get("/api/v1/status")[1]["live"]
                return done + live["active"] + live["queued"] >= n

            def ask(i, kvasir):
                prompt = f"Story {i}: " + " ".join(f"gate {i * 37 % 101} has {i * k % 89} lamps" for k in range(1, 12))
                status, answer = d.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0, "kvasir": kvasir}, timeout=300)
                wants[answer["kvasir"]["receipt_id"] if status == 200 else str(answer)] = i

            with contextlib.ExitStack() as holders:  # the oldest of the most urgent: theirs is the place until they leave
                for n in range(1, HOLDERS + 1):
                    s = holders.enter_context(socket.create_connection(("127.0.0.1", d.port)))
                    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                    d.wait_until(lambda: arrived(n))
                for hurried in (False, True):
                    came = [(i, k) for i, k in enumerate(kinds) if ("deadline_ms" in k) == hurried]
                    threads += [threading.Thread(target=ask, args=x) for x in came]
                    for t in threads[-len(came):]:
                        t.start()
                    d.wait_until(lambda: arrived(HOLDERS + len(threads)), timeout=120)
                self.assertEqual(wants, {}, "one was served before all had come")
            for t in threads:
                t.join()
            published = d.get("/api/v1/receipts?kind=PUBLICATION&limit=100")[1]["receipts"]
            return [wants[r["request"]] for r in sorted(published, key=lambda r: r["id"]) if r["request"] in wants]

    def test_policies_rank_as_they_do_live(self):
        """Who would be in time if sixteen could be: by their order live, and by a clock in the simulator, whose rate is made so."""
        path, patience = os.path.join(self.dir.name, "burst.jsonl"), 16
        kinds = [{"contract": "approximate"}] * 24 + [URGENT] * 4 + [{**URGENT, "contract": "approximate"}] * 6
        live = {}
        for policy in ("fifo", "admission", "earliest_deadline"):
            if os.path.exists(path):
                os.remove(path)
            order = self.burst(policy, path, kinds)
            self.assertEqual(sorted(order), list(range(34)), policy)
            live[policy] = sum("deadline_ms" in kinds[i] for i in order[:patience])
        self.assertEqual(live, {"fifo": 0, "admission": 4, "earliest_deadline": 10})
        with open(path) as f:
            lines = [line for line in map(json.loads, f) if line["input_length"] > 64]  # not those that held the place
        self.assertEqual(len(lines), 34)
        path = self.write("held.jsonl", lines)
        rate = sum(x["input_length"] for x in lines) / len(lines) * patience / (URGENT["deadline_ms"] / 1000)
        status, r, err = simulate("--trace", path, "--block-tokens", "64", "--policy", "fifo,admission,earliest_deadline", "--set", "bytes_per_token=2048", "--set", "max_sequences=1",
                                  "--set", f"prefill_tokens_per_s={rate:.3f}", "--set", "decode_base_us=1", "--set", "decode_sequence_us=1", "--set", "prefill_chunk=4096", "--set", "starvation_ms=3600000")
        self.assertEqual(status, 0, err)
        self.assertEqual({policy: x["in_time"] - 24 for policy, x in zip(live, r["runs"])}, live)

    def test_a_recorded_trace_gives_the_hits_of_the_live_server(self):
        """What the daemon reused of its prompts, against its own trace through a host tier with room for all."""
        path, reused = os.path.join(self.dir.name, "live.jsonl"), 0
        with support.Daemon("--set", f"trace.path={path}", "--set", "tiers.host.capacity_bytes=256MiB") as d:
            story = [" ".join(f"Keeper {w} counts {w * k % 97} lamps at gate {k}." for k in range(1, 40)) for w in range(6)]
            for turn in range(1, 6):
                for w, text in enumerate(story):
                    if (turn + w) % 3:
                        usage = d.complete(text[: 120 * turn + 31 * w], max_tokens=1 + turn, ignore_eos=True)["usage"]
                        reused += usage["prompt_tokens_details"]["cached_tokens"]
        status, r, err = simulate("--trace", path, "--block-tokens", "64", "--host", "256MiB", "--set", "bytes_per_token=2048",
                                  "--set", "prefill_tokens_per_s=1e7", "--set", "decode_base_us=1", "--set", "decode_sequence_us=1")  # as live, nobody comes before the one ahead is done
        self.assertEqual(status, 0, err)
        run = r["runs"][0]
        self.assertEqual(run["finished"], 20)
        hits = run["prompt_tokens"]["host"]
        self.assertGreater(reused, 500)
        self.assertLessEqual(abs(hits - reused), 0.05 * reused, (hits, reused))


if __name__ == "__main__":
    unittest.main()
