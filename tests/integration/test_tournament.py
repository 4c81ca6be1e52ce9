"""A tournament on live traffic: two copies of one method tie, a cheaper one is ranked before them, and nothing that is served changes."""
import hashlib
import json
import os
import subprocess
import time
import unittest

from support import KVASIR, ROOT, Daemon


def prose():
    with open(os.path.join(ROOT, "runtime", "evaluate", "prose.txt")) as f:
        return f.read()


def kvasir(d, *args):
    p = subprocess.run([KVASIR, "--url", d.url, *args], capture_output=True, text=True, timeout=60, cwd=ROOT)
    return p.returncode, p.stdout, p.stderr


class Tournament(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon()
        cls.addClassCleanup(cls.d.stop)
        cls.text = prose()

    def ask(self, i):
        return self.d.complete(self.text[i * 1000:i * 1000 + 2500], max_tokens=60)["choices"][0]["text"]

    def state(self):
        return self.d.get("/api/v1/tournament")[1]["tournament"]

    def traffic_until(self, units, seconds=90):
        end, i = time.monotonic() + seconds, 0
        while self.state()["units"] < units:
            self.assertLess(time.monotonic(), end, f"{self.state()['units']} of {units} units")
            self.ask(i % 90)
            i += 1

    def test_two_copies_tie_and_the_cheaper_method_is_first(self):
        self.assertIsNone(self.state())
        before = [self.ask(i) for i in range(3)]
        status, t = self.d.post("/api/v1/tournament", {"pipelines": ["quest", "quest", "pqcache"], "mass": 0.9, "fraction": 0.05})
        self.assertEqual((status, t["tournament"]["state"]), (201, "RUNNING"))
        self.assertEqual([e["verdict"] for e in t["tournament"]["entries"]], ["NO_DATA"] * 3)
        status, e = self.d.post("/api/v1/tournament", {"pipelines": ["quest", "sparq"]})
        self.assertEqual((status, e["error"]["code"]), (409, "CONFLICT"))
        self.assertEqual([self.ask(i) for i in range(3)], before, "a tournament changed what was served")
        self.traffic_until(200)
        t = self.state()
        a, b, pq = t["entries"]
        self.assertEqual((a["verdict"], a["rank"], b["verdict"], b["rank"]), ("TIE", None, "TIE", None))
        self.assertEqual(a["bytes"], b["bytes"])
        self.assertEqual((pq["verdict"], pq["rank"]), ("RANKED", 1))
        self.assertLess(pq["bytes_high"], t["dense_bytes"])
        for e in t["entries"]:
            self.assertTrue(e["mass_low"] < 0.9 < e["mass_high"] and abs(e["mass"] - 0.9) < 0.05, e)
            self.assertTrue(e["bytes_low"] < e["bytes"] < e["bytes_high"], e)
            self.assertEqual(e["params"][e["budget"]], e["at"])
        self.assertEqual(self.d.get("/api/v1/pipelines")[1]["tournament"]["entries"][2]["rank"], 1)
        status, out, err = kvasir(self.d, "tournament")
        self.assertEqual(status, 0, err)
        self.assertRegex(out, r"RUNNING +mass 0\.9 ")
        self.assertRegex(out, r"(?m)^1 +pqcache +RANKED")
        self.assertRegex(out, r"(?m)^- +quest +TIE")
        status, out, err = kvasir(self.d, "tournament", "stop", "--json")
        self.assertEqual((status, json.loads(out)["tournament"]["state"]), (0, "DONE"), err)
        n = self.state()["units"]
        self.ask(5)
        self.assertEqual((self.state()["units"], self.state()["state"]), (n, "DONE"))
        live = self.d.get("/api/v1/status")[1]["live"]
        self.assertEqual((live["exact_mismatches"], live["approximate_tokens"]), (0, 0))
        audit = " ".join(r["detail"] for r in self.d.get("/api/v1/audit")[1]["receipts"])
        self.assertIn("POST /api/v1/tournament: 201", audit)
        self.assertIn("DELETE /api/v1/tournament: 200", audit)

    def test_what_cannot_be_held_against_each_other_is_refused_by_name(self):
        two = ["quest", "sparq"]
        for body, code, param in (({"pipelines": ["quest"]}, "BAD_ARGUMENT", "pipelines"), ({"pipelines": two * 4}, "BAD_ARGUMENT", "pipelines"), ({"pipelines": ["quest", "qest"]}, "UNKNOWN_PIPELINE", "pipelines"),
                                  ({"pipelines": ["quest", "em-llm"]}, "NOT_BUILT", "pipelines"), ({"pipelines": ["quest", "layerwise"]}, "BAD_ARGUMENT", "pipelines"), ({"pipelines": two, "mass": 0.2}, "BAD_ARGUMENT", "mass"),
                                  ({"pipelines": two, "fraction": 0.5}, "BAD_ARGUMENT", "fraction"), ({"pipelines": two, "units": -1}, "BAD_ARGUMENT", "units"), ({"pipelines": two, "mass": "much"}, "BAD_ARGUMENT", "mass"),
                                  ({"pipelines": two, "speed": 1}, "UNKNOWN_KEY", "speed"), ({}, "BAD_ARGUMENT", "pipelines"), ({"pipelines": [3, 4]}, "BAD_ARGUMENT", "pipelines"),
                                  ({"pipelines": ["quest", {"pipeline": "pqcache", "params": {"subspaces": 3}}]}, "BAD_ARGUMENT", "subspaces"),
                                  ({"pipelines": ["quest", {"pipeline": "quest", "params": {"page": 3}}]}, "UNKNOWN_KEY", "page"), ({"pipelines": ["quest", {"pipeline": "quest", "budget": 3}]}, "UNKNOWN_KEY", "budget")):
            status, e = self.d.post("/api/v1/tournament", body)
            self.assertGreaterEqual(status, 400, body)
            self.assertEqual((e["error"]["code"], e["error"]["param"]), (code, param), body)
        for args in (["start"], ["start", "quest:page_rows"], ["start", "quest,sparq", "--mass", "x"], ["start", "quest,sparq", "--speed", "1"], ["rank"], ["stop", "now"]):
            self.assertEqual(kvasir(self.d, "tournament", *args)[0], 2, args)
        self.assertEqual(kvasir(self.d, "tournament", "start", "quest,qest")[0], 1)


class Rights(unittest.TestCase):
    def test_viewers_look_and_operators_start_and_stop(self):
        tokens = [{"name": n, "sha256": hashlib.sha256(n.encode()).hexdigest(), "rights": [r]} for n, r in (("reader", "viewer"), ("op", "operator"), ("acme", "infer"))]
        with Daemon(config={"auth": {"mode": "token", "tokens": tokens}}) as d:
            def ask(method, token, body=None):
                status, _, answer = d.request(method, "/api/v1/tournament", body, {"Authorization": f"Bearer {token}"} if token else {})
                return status, json.loads(answer)

            body = {"pipelines": ["quest", "sparq"]}
            self.assertEqual([ask(m, None, b)[0] for m, b in (("GET", None), ("POST", body), ("DELETE", None))], [401] * 3)
            self.assertEqual([ask(m, "acme", b)[0] for m, b in (("GET", None), ("POST", body), ("DELETE", None))], [403] * 3)
            self.assertEqual([ask(m, "reader", b)[0] for m, b in (("GET", None), ("POST", body), ("DELETE", None))], [200, 403, 403])
            status, e = ask("DELETE", "op")
            self.assertEqual((status, e["error"]["code"]), (404, "NOT_FOUND"))
            self.assertEqual(ask("POST", "op", body)[0], 201)
            self.assertEqual(ask("GET", "reader")[1]["tournament"]["state"], "RUNNING")
            self.assertEqual(ask("DELETE", "op")[1]["tournament"]["state"], "DONE")


if __name__ == "__main__":
    unittest.main()
