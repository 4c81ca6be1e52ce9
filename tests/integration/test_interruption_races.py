"""What meets at a paused session: results at once, resumes at once, a result and the limit of its pause, two requests of one session, kills in between."""
import http.client
import json
import shutil
import tempfile
import threading
import unittest

from support import Daemon
from test_interruptions import PROMPT, STEPS, Pauses, finish_of, text_of


def at_once(calls):
    """The answers of all calls, begun together."""
    answers, gate = [None] * len(calls), threading.Barrier(len(calls))

    def run(i):
        gate.wait(30)
        answers[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return answers


def codes(answers):
    return sorted(a.get("error", {}).get("code", "") if s != 200 else "OK" for s, a in answers)


class Races(Pauses, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon("--set", "engine.max_sequences=1")
        cls.whole = cls.d.complete(PROMPT, max_tokens=STEPS, ignore_eos=True)["choices"][0]["text"]

    @classmethod
    def tearDownClass(cls):
        assert cls.d.stop() == 0, "".join(cls.d.err)[-3000:]

    def result(self, session, result_id, epoch=1, d=None):
        return (d or self.d).post(f"/v1/sessions/{session}/result", {"call_id": "c", "pause_epoch": epoch, "result_id": result_id, "content": f" {result_id}"})

    def test_one_of_many_results_is_applied(self):
        for turn in range(3):
            session = f"results-{turn}"
            self.run_and_pause(self.d, session, {"call_id": "c"})
            ids = [f"r-{i % 3}" for i in range(9)]
            answers = at_once([lambda i=i: self.result(session, i) for i in ids])
            won = {a["result_id"] for s, a in answers if s == 200}
            self.assertEqual(len(won), 1, answers)
            self.assertEqual(codes(answers), sorted(["OK"] * 3 + ["COMPETING_RESULT"] * 6))
            self.assertEqual(len({json.dumps(a) for s, a in answers if s == 200}), 1)
            committed = [r for r in self.d.get(f"/api/v1/receipts?session={session}")[1]["receipts"] if "RESULT_APPEND_COMMITTED" in r["detail"]]
            self.assertEqual(len(committed), 1)

    def test_one_of_many_resumes_goes_on(self):
        before, _ = self.run_and_pause(self.d, "resumes")
        answers = at_once([lambda: self.d.post("/v1/sessions/resumes/resume", {"pause_epoch": 1}) for _ in range(6)])
        self.assertEqual(codes(answers), sorted(["OK"] + ["NOT_PAUSED"] * 5))
        rest = [a for s, a in answers if s == 200][0]["choices"][0]["text"]
        self.assertEqual(text_of(before) + rest, self.whole)

    def test_a_result_and_a_resume_at_once(self):
        """The resume needs the result: it goes on after it or is told that it is missing; the result is applied either way."""
        for turn in range(3):
            session = f"both-{turn}"
            self.run_and_pause(self.d, session, {"call_id": "c"})
            result, resume = at_once([lambda: self.result(session, "r"), lambda: self.d.post(f"/v1/sessions/{session}/resume", {"pause_epoch": 1})])
            self.assertEqual(result[0], 200, result)
            self.assertIn((resume[0], resume[1].get("error", {}).get("code")), ((200, None), (409, "RESULT_MISSING")))
            again = self.d.post(f"/v1/sessions/{session}/resume", {"pause_epoch": 1})
            self.assertEqual(codes([again]), ["NOT_PAUSED"] if resume[0] == 200 else ["OK"])

    def test_the_request_that_runs_is_paused_and_goes_on_as_itself(self):
        """A newer one of the session waits in the queue: what it asked for is no part of the older one's continuation."""
        events, first, waiting = [], threading.Event(), []

        def run():
            for e in self.d.stream("/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": STEPS, "ignore_eos": True, "kvasir": {"session": "two"}}):
                events.append(e)
                if len(events) == 4:
                    first.set()

        def wait():
            waiting.extend(self.d.stream("/v1/completions", {"prompt": "Another one.", "temperature": 2, "seed": 3, "max_tokens": 3, "kvasir": {"session": "two"}}))

        threads = [threading.Thread(target=run), threading.Thread(target=wait)]
        threads[0].start()
        self.assertTrue(first.wait(60))
        threads[1].start()
        self.d.wait_until(lambda: self.d.get("/api/v1/credits")[1]["demand"]["waiting_requests"] or finish_of(events))
        self.assertFalse(finish_of(events), "the first one ended before the second one came")
        status, pause = self.d.post("/v1/sessions/two/pause", {"action": "preserve"})
        self.assertEqual(status, 200, pause)
        for t in threads:
            t.join(60)
        self.assertEqual((finish_of(events), finish_of(waiting)), (["pause"], ["length"]))
        self.assertEqual(text_of(events) + text_of(self.resume(self.d, "two", 1)), self.whole)

    def test_somebody_pauses_a_request_that_would_pause_itself(self):
        """Written down once, by who asked: no tool was called."""
        before, pause = self.run_and_pause(self.d, "asked", {"call_id": "c"}, {"tool_pause": "no such text"})
        self.assertEqual(finish_of(before), ["pause"])
        self.assertFalse([e for e in before if "error" in e], before[-2:])
        self.assertEqual(self.result("asked", "r")[0], 200)
        self.assertEqual(len(self.d.get("/api/v1/receipts?session=asked&kind=PAUSE")[1]["receipts"]), 2)  # the engine's and the store's

    def test_bodies_in_chunks_are_limited_too(self):
        for verb in ("pause", "result", "resume"):
            c = http.client.HTTPConnection("127.0.0.1", self.d.port, timeout=30)
            try:
                c.request("POST", f"/v1/sessions/nobody/{verb}", iter([b"{" + b" " * 65536] * 80), encode_chunked=True)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has seen enough
            r = c.getresponse()
            e = json.loads(r.read())["error"]
            self.assertEqual((r.status, e["code"], e["param"]), (413, "BODY_TOO_LARGE", "body"), verb)
            self.assertTrue(e["hint"])
            c.close()


class Limits(Pauses, unittest.TestCase):
    def test_a_result_comes_before_the_limit_or_after_it(self):
        """Never half: a result that was taken stays taken, and whoever comes for its answer too late is told so."""
        with Daemon("--set", "interruptions.max_pause_s=1") as d:
            self.run_and_pause(d, "late", {"call_id": "c", "action": "preserve"})
            body, answers = {"call_id": "c", "pause_epoch": 1, "result_id": "r", "content": " x"}, []
            while not answers or d.get("/api/v1/interruptions")[1]["interruptions"]:
                answers.append(d.post("/v1/sessions/late/result", body))
            self.assertIn(answers[0][0], (200, 410))
            self.assertEqual([a for a in answers if a != answers[0]], [])
            self.assertEqual(d.post("/v1/sessions/late/result", body), answers[0])
            status, e = d.post("/v1/sessions/late/resume", {"pause_epoch": 1})
            self.assertEqual((status, e["error"]["code"]), (410, "PAUSE_EXPIRED"))


class Dropped(Pauses, unittest.TestCase):
    def test_of_a_dropped_session_nothing_can_be_resumed(self):
        state = tempfile.mkdtemp(prefix="kvasir-test-")
        self.addCleanup(shutil.rmtree, state, True)
        d = Daemon(state=state)
        result = {"call_id": "c", "pause_epoch": 1, "result_id": "r", "content": " x"}
        for start in range(2):
            if start:
                d.kill()
                d = Daemon(state=state)
            else:
                self.run_and_pause(d, "gone", {"call_id": "c", "action": "preserve"})
                self.assertEqual(d.get("/api/v1/interruptions")[1]["total"], 1)
                self.assertEqual(d.post("/api/v1/sessions/gone/drop", {})[0], 200)
            self.assertEqual(d.get("/api/v1/interruptions")[1], {"interruptions": [], "total": 0})
            for verb, body in (("result", result), ("resume", {"pause_epoch": 1})):
                status, e = d.post(f"/v1/sessions/gone/{verb}", body)
                self.assertEqual((status, e["error"]["code"]), (410, "PAUSE_EXPIRED"), verb)
        self.assertIn("epoch 1: dropped with its session", [r["detail"] for r in d.get("/api/v1/receipts?session=gone")[1]["receipts"]])
        self.run_and_pause(d, "unseen")
        d.kill()
        d = Daemon(state=state)  # which knows it by its pause only
        self.assertEqual([s["session"] for s in d.get("/api/v1/sessions")[1]["sessions"]], ["unseen"])
        self.assertEqual(d.post("/api/v1/sessions/unseen/drop", {})[0], 200)
        self.assertEqual(d.get("/api/v1/sessions")[1]["sessions"], [])
        self.assertEqual(d.stop(), 0)


class KilledTwice(Pauses, unittest.TestCase):
    def test_a_continuation_that_was_killed_is_resumed_again(self):
        state = tempfile.mkdtemp(prefix="kvasir-test-")
        self.addCleanup(shutil.rmtree, state, True)
        d = Daemon(state=state)
        whole = d.complete(PROMPT, max_tokens=STEPS, ignore_eos=True)["choices"][0]["text"]
        before, _ = self.run_and_pause(d, "s")
        spoke = threading.Event()

        def read():
            try:
                for _ in d.stream("/v1/sessions/s/resume", {"pause_epoch": 1}):
                    spoke.set()
            except (OSError, http.client.HTTPException):
                pass  # its daemon is killed

        t = threading.Thread(target=read)
        t.start()
        self.assertTrue(spoke.wait(60))
        d.kill()
        t.join(60)
        d = Daemon(state=state)
        self.assertEqual([i["session"] for i in d.get("/api/v1/interruptions")[1]["interruptions"]], ["s"])
        events = self.resume(d, "s", 1)
        self.assertEqual((text_of(before) + text_of(events), finish_of(events)), (whole, ["length"]))
        self.assertEqual(d.stop(), 0)  # a kill now might still find the answer unacknowledged
        d = Daemon(state=state)
        status, e = d.post("/v1/sessions/s/resume", {"pause_epoch": 1})
        self.assertEqual((status, e["error"]["code"]), (409, "NOT_PAUSED"))
        self.assertEqual(d.stop(), 0)

    def test_a_session_pauses_and_is_killed_at_every_turn(self):
        state = tempfile.mkdtemp(prefix="kvasir-test-")
        self.addCleanup(shutil.rmtree, state, True)
        d = Daemon(state=state)
        epoch, text = 1, ""
        before, _ = self.run_and_pause(d, "s", {"call_id": "c", "action": "swap"})
        for turn in range(2):
            d.kill()  # between pause and result
            d = Daemon(state=state)
            body = {"call_id": "c", "pause_epoch": epoch, "result_id": f"r-{turn}", "content": " Nobody."}
            status, first = d.post("/v1/sessions/s/result", body)
            self.assertEqual((status, first["state"]), (200, "APPLIED"))
            d.kill()  # between result and resume
            d = Daemon(state=state)
            self.assertEqual(d.post("/v1/sessions/s/result", body), (200, first))
            for wrong, code in ((epoch + 2, "STALE_PAUSE_EPOCH"), (epoch - 1, "STALE_PAUSE_EPOCH")):
                status, e = d.post("/v1/sessions/s/resume", {"pause_epoch": wrong})
                self.assertEqual((status, e["error"]["code"]), (409, code))
            if turn:
                break
            events, spoke = [], threading.Event()

            def read():
                for e in d.stream("/v1/sessions/s/resume", {"pause_epoch": epoch}):
                    events.append(e)
                    if len(events) == 3:
                        spoke.set()

            t = threading.Thread(target=read)
            t.start()
            self.assertTrue(spoke.wait(60))
            status, pause = d.post("/v1/sessions/s/pause", {"call_id": "c", "action": "preserve"})
            t.join(60)
            self.assertEqual((status, pause["pause_epoch"], finish_of(events)), (200, 3, ["pause"]))
            epoch = 3
        self.assertEqual(finish_of(self.resume(d, "s", epoch)), ["length"])
        self.assertTrue(d.get("/api/v1/receipts/verify")[1]["verified"])
        self.assertEqual(d.stop(), 0)


if __name__ == "__main__":
    unittest.main()
