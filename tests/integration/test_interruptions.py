"""Sessions that pause for somebody outside: every action, kill -9 in between, results once, tool calls, and what both consoles ask for."""
import contextlib
import hashlib
import json
import re
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import unittest

from support import KVASIR, Daemon, environment

PROMPT = " ".join(f"Line {i}: the keeper of gate {i * 7 % 23} counts {i * i} lamps before the river rises." for i in range(12)) + "\nThe keeper said"
STEPS = 500
BOS = 1  # of the demo model; text prompts get it in front, lists of ids are taken as they are


def text_of(events):
    return "".join(c["text"] for e in events if e != "[DONE]" and "choices" in e for c in e["choices"])


def finish_of(events):
    return [c["finish_reason"] for e in events if e != "[DONE]" and "choices" in e for c in e["choices"] if c["finish_reason"]]


class Pauses:
    """A streamed request that is paused after its first tokens; the events of it and the pause's answer."""

    def run_and_pause(self, d, session, body=None, kvasir=None, **fields):
        events, first = [], threading.Event()
        request = {"prompt": PROMPT, "temperature": 0, "max_tokens": STEPS, "ignore_eos": True, **fields, "kvasir": {"session": session, **(kvasir or {})}}

        def read():
            for e in d.stream("/v1/completions", request):
                events.append(e)
                if len(events) == 4:
                    first.set()

        t = threading.Thread(target=read)
        t.start()
        self.assertTrue(first.wait(60))
        status, pause = d.post(f"/v1/sessions/{session}/pause", body or {})
        t.join(60)
        self.assertEqual(status, 200, pause)
        return events, pause

    def resume(self, d, session, epoch):
        events = list(d.stream(f"/v1/sessions/{session}/resume", {"pause_epoch": epoch}))
        self.assertNotIn("error", events[0])
        return events


class InOneProcess(Pauses, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon()
        cls.whole = {}
        for name, fields in (("greedy", {}), ("sampled", {"temperature": 0.8, "seed": 5, "presence_penalty": 0.4})):
            answer = cls.d.complete(PROMPT, **{"max_tokens": STEPS, "ignore_eos": True, **fields})
            cls.whole[name] = answer["choices"][0]["text"]

    @classmethod
    def tearDownClass(cls):
        assert cls.d.stop() == 0, "".join(cls.d.err)[-3000:]

    def test_a_pause_changes_no_token(self):
        for name, fields in (("greedy", {}), ("sampled", {"temperature": 0.8, "seed": 5, "presence_penalty": 0.4})):
            for action in ("auto", "preserve", "swap", "discard"):
                session = f"{name}-{action}"
                before, pause = self.run_and_pause(self.d, session, {"action": action}, **fields)
                self.assertEqual(finish_of(before), ["pause"])
                self.assertLess(pause["published"], STEPS)
                self.assertEqual(pause["pause_epoch"], 1)
                rows = {r["session"]: r for r in self.d.get("/api/v1/interruptions")[1]["interruptions"]}
                self.assertEqual(rows[session]["asked"], action)
                after = self.resume(self.d, session, 1)
                self.assertEqual(text_of(before) + text_of(after), self.whole[name], session)
                self.assertEqual(finish_of(after), ["length"])
                self.assertNotIn(session, {r["session"] for r in self.d.get("/api/v1/interruptions")[1]["interruptions"]})

    def test_epochs_go_on_and_old_ones_are_refused(self):
        before, pause = self.run_and_pause(self.d, "twice")
        status, e = self.d.post("/v1/sessions/twice/pause")
        self.assertEqual((status, e["error"]["code"]), (409, "ALREADY_PAUSED"))
        self.assertTrue(e["error"]["hint"])
        status, e = self.d.post("/v1/sessions/twice/resume", {"pause_epoch": 3})
        self.assertEqual((status, e["error"]["code"]), (409, "STALE_PAUSE_EPOCH"))
        self.assertTrue(e["error"]["hint"])
        middle, first = [], threading.Event()

        def read():
            for e in self.d.stream("/v1/sessions/twice/resume", {"pause_epoch": 1}):
                middle.append(e)
                if len(middle) == 3:
                    first.set()

        t = threading.Thread(target=read)
        t.start()
        self.assertTrue(first.wait(60))
        status, e = self.d.post("/v1/sessions/twice/resume", {"pause_epoch": 1})
        self.assertEqual((status, e["error"]["code"]), (409, "NOT_PAUSED"))
        self.assertTrue(e["error"]["hint"])
        status, pause = self.d.post("/v1/sessions/twice/pause", {"action": "swap"})
        t.join(60)
        self.assertEqual((status, pause["pause_epoch"]), (200, 3))
        after = self.resume(self.d, "twice", 3)
        self.assertEqual(text_of(before) + text_of(middle) + text_of(after), self.whole["greedy"])

    def test_a_result_is_applied_once(self):
        _, pause = self.run_and_pause(self.d, "call", {"call_id": "c-1"})
        path, content = "/v1/sessions/call/result", " 42 lamps."
        digest = hashlib.sha256(content.encode()).hexdigest()
        good = {"call_id": "c-1", "pause_epoch": 1, "result_id": "r-1", "digest": digest, "content": content}
        for change, status, code in (({"call_id": "c-2"}, 404, "NOT_FOUND"), ({"pause_epoch": 3}, 409, "STALE_PAUSE_EPOCH"), ({"digest": "00" * 32}, 400, "BAD_ARGUMENT"),
                                     ({"content": "lamp " * 6000, "digest": None}, 400, "CONTEXT_OVERRUN"), ({"content": 5}, 400, "BAD_ARGUMENT"), ({"extra": 1}, 400, "UNKNOWN_KEY")):
            body = {k: v for k, v in {**good, **change}.items() if v is not None}
            got, e = self.d.post(path, body)
            self.assertEqual((got, e["error"]["code"]), (status, code), change)
        status, e = self.d.post("/v1/sessions/call/resume", {"pause_epoch": 1})
        self.assertEqual((status, e["error"]["code"]), (409, "RESULT_MISSING"))
        status, first = self.d.post(path, good)
        self.assertEqual((status, first["state"]), (200, "APPLIED"))
        self.assertEqual(self.d.post(path, good), (200, first))
        for change in ({"result_id": "r-2"}, {"content": " 43 lamps.", "digest": None}):
            got, e = self.d.post(path, {k: v for k, v in {**good, **change}.items() if v is not None})
            self.assertEqual((got, e["error"]["code"]), (409, "COMPETING_RESULT"))
            self.assertTrue(e["error"]["hint"])
        self.assertTrue(text_of(self.resume(self.d, "call", 1)))
        self.assertEqual(self.d.post(path, good), (200, first))  # late once more
        status, e = self.d.post(path, {**good, "result_id": "r-2"})  # the call is finished
        self.assertEqual((status, e["error"]["code"]), (409, "COMPETING_RESULT"))
        status, e = self.d.post("/v1/sessions/call/resume", {"pause_epoch": 1})
        self.assertEqual((status, e["error"]["code"]), (409, "NOT_PAUSED"))
        self.run_and_pause(self.d, "call", {"call_id": "c-9"})  # and so it stays when the session waits for another one
        for body, wanted in ((good, (404, "NOT_FOUND")), ({**good, "call_id": "c-9"}, (409, "STALE_PAUSE_EPOCH"))):
            status, e = self.d.post(path, body)
            self.assertEqual((status, e["error"]["code"]), wanted)
        row = [r for r in self.d.get("/api/v1/interruptions")[1]["interruptions"] if r["session"] == "call"][0]
        self.assertEqual((row["call_id"], row["result_state"]), ("c-9", "UNSEEN"))

    def test_what_is_not_there_is_said_so(self):
        for verb, body in (("pause", {}), ("resume", {"pause_epoch": 1}), ("result", {"call_id": "c", "pause_epoch": 1, "result_id": "r", "content": ""})):
            status, e = self.d.post(f"/v1/sessions/nobody/{verb}", body)
            self.assertEqual((status, e["error"]["code"]), (404, "NOT_FOUND"), verb)
        self.assertEqual(self.d.post("/v1/sessions/x/pause", {"action": "freeze"})[0], 400)
        self.assertEqual(self.d.post("/v1/sessions/x/resume", {})[0], 400)

    def test_a_tool_call_pauses_by_itself(self):
        marker = self.whole["greedy"][40:46]
        cut = self.whole["greedy"].index(marker)
        status, answer = self.d.post("/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": STEPS, "ignore_eos": True, "kvasir": {"session": "tool", "tool_pause": marker}})
        self.assertEqual(status, 200, answer)
        choice, pause = answer["choices"][0], answer["kvasir"]["pause"]
        self.assertEqual((choice["finish_reason"], choice["text"]), ("tool_calls", self.whole["greedy"][:cut]))
        status, r = self.d.post("/v1/sessions/tool/result", {"call_id": pause["call_id"], "pause_epoch": pause["pause_epoch"], "result_id": "r", "content": " It is done."})
        self.assertEqual(status, 200, r)
        status, rest = self.d.post("/v1/sessions/tool/resume", {"pause_epoch": pause["pause_epoch"]})
        self.assertEqual(status, 200, rest)
        self.assertIn(rest["choices"][0]["finish_reason"], ("length", "tool_calls"))
        for bad in ({"tool_pause": True}, {"session": "t", "tool_pause": 5}):
            self.assertEqual(self.d.post("/v1/completions", {"prompt": PROMPT, "kvasir": bad})[0], 400)

    def test_a_tool_call_that_uses_the_last_token_ends_the_answer(self):
        marker = self.whole["greedy"][40:46]
        ask = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}
        answer = self.d.post("/v1/completions", {**ask, "max_tokens": STEPS, "kvasir": {"session": "roomy", "tool_pause": marker}})[1]
        n = answer["usage"]["completion_tokens"]
        status, answer = self.d.post("/v1/completions", {**ask, "max_tokens": n, "kvasir": {"session": "spent", "tool_pause": marker}})
        self.assertEqual((status, answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]), (200, "length", n))
        self.assertNotIn("pause", answer["kvasir"])
        self.assertNotIn("spent", {i["session"] for i in self.d.get("/api/v1/interruptions")[1]["interruptions"]})
        status, answer = self.d.post("/v1/completions", {**ask, "max_tokens": n + 1, "kvasir": {"session": "one-left", "tool_pause": marker}})
        self.assertEqual(answer["choices"][0]["finish_reason"], "tool_calls")

    def test_a_pause_that_is_refused_keeps_nothing(self):
        """The engine has room for 256 paused requests; those that could not be written down take none of it."""
        request = {"prompt": PROMPT, "temperature": 0, "max_tokens": STEPS, "ignore_eos": True, "kvasir": {"session": "again", "tool_pause": self.whole["greedy"][4:10]}}
        self.assertEqual(self.d.post("/v1/completions", request)[0], 200)
        for i in range(260):
            status, e = self.d.post("/v1/completions", request)
            self.assertEqual((status, e.get("error", {}).get("code")), (409, "ALREADY_PAUSED"), (i, e))

    def test_an_answer_of_a_given_form_is_not_paused(self):
        form = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {"type": "integer"}, "minItems": 2000}}}
        request = {"prompt": PROMPT, "temperature": 0, "max_tokens": 3 * STEPS, "response_format": form, "kvasir": {"session": "form"}}
        events = self.d.stream("/v1/completions", request)
        first = next(events)
        status, e = self.d.post("/v1/sessions/form/pause")
        self.assertEqual((status >= 400, e.get("error", {}).get("code"), e.get("error", {}).get("param")), (True, "UNSUPPORTED", "response_format"), e)
        self.assertEqual(finish_of([first, *events]), ["length"])
        status, e = self.d.post("/v1/completions", {**request, "kvasir": {"session": "form", "tool_pause": True}})
        self.assertEqual((status >= 400, e["error"]["code"], e["error"]["param"]), (True, "UNSUPPORTED", "response_format"))

    def test_bad_names_and_long_bodies_are_refused_by_name(self):
        for name in ("a\x1b[2Jb", "a\nb", "a\x7f", "a\u009bb", ""):
            status, e = self.d.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "kvasir": {"session": name}})
            self.assertEqual((status, e["error"]["code"], e["error"]["param"]), (400, "BAD_ARGUMENT", "session"), name)
            status, e = self.d.post("/v1/sessions/nobody/pause", {"call_id": name})
            self.assertEqual((status, e["error"]["code"], e["error"]["param"]), (400, "BAD_ARGUMENT", "call_id"), name)
        for verb in ("pause", "result", "resume"):
            status, e = self.d.post(f"/v1/sessions/nobody/{verb}", b"{", headers={"Content-Length": str(5 << 20)})  # refused before the rest is sent
            self.assertEqual((status, e["error"]["code"], e["error"]["param"]), (413, "BODY_TOO_LARGE", "body"), verb)
            self.assertTrue(e["error"]["hint"], verb)
        good = {"call_id": "c", "pause_epoch": 1, "result_id": "r", "content": ""}
        for verb, body in (("pause", {}), ("result", good), ("resume", {"pause_epoch": 1})):
            status, e = self.d.post(f"/v1/sessions/nobody/{verb}", body)
            self.assertEqual((status, e["error"]["code"]), (404, "NOT_FOUND"), verb)
            self.assertTrue(e["error"]["hint"], verb)

    def test_credits_are_shown(self):
        status, c = self.d.get("/api/v1/credits")
        self.assertEqual(status, 200)
        self.assertEqual([x["name"] for x in c["credits"]], ["pinned", "staging", "link", "queue"])
        for x in c["credits"]:
            self.assertEqual(x["free"], x["total"] - x["used"])
        self.assertEqual(c["stale"], 0)
        for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "decode_step_us", "h2d_bytes_per_s", "d2h_bytes_per_s", "swap_bytes_per_iteration"):
            self.assertGreater(c["rates"][name], 0, name)
            self.assertLess(c["rates"][name], 1e12, name)
        self.assertEqual((c["rates"]["disk_write_bytes_per_s"], c["rates"]["link_emulated"]), (None, False))
        shown = subprocess.run([KVASIR, "--url", self.d.url, "credits"], capture_output=True, text=True, timeout=30, env=environment())
        self.assertEqual(shown.returncode, 0, shown.stderr)
        for line in (r"^pinned +1.0 GiB", r"^ +prefill_tokens_per_s +\d", r"^ +disk_write_bytes_per_s +not measured yet", r"^ +h2d_bytes_per_s +0$"):
            self.assertRegex(shown.stdout, re.compile(line, re.M))
        self.assertEqual((c["demand"]["waiting_requests"], c["demand"]["waiting_prompt_tokens"]), (0, 0))


class ClockSetBack(Pauses, unittest.TestCase):
    def test_a_pause_from_the_future_is_as_good_as_any(self):
        """The clock was an hour ahead when the session paused, and is set right while the server is down."""
        state = tempfile.mkdtemp(prefix="kvasir-test-")
        self.addCleanup(shutil.rmtree, state, True)
        hour_us = 3600 * 1000000
        d = Daemon(state=state)
        whole = d.complete(PROMPT, max_tokens=STEPS, ignore_eos=True)["choices"][0]["text"]
        before, _ = self.run_and_pause(d, "s")
        d.kill()
        with contextlib.closing(sqlite3.connect(f"{state}/kvasir.db")) as db, db:
            manifest = json.loads(db.execute("SELECT manifest FROM pauses").fetchone()[0])
            manifest["arrival_us"] += hour_us
            db.execute("UPDATE pauses SET paused_us = paused_us + ?, manifest = ?", (hour_us, json.dumps(manifest)))
        with Daemon("--set", "interruptions.max_pause_s=1800", state=state) as d:
            row = d.get("/api/v1/interruptions")[1]["interruptions"][0]
            self.assertEqual((row["session"], row["seconds"]), ("s", 0))
            self.assertEqual(text_of(before) + text_of(self.resume(d, "s", 1)), whole)


class TooLong(Pauses, unittest.TestCase):
    def test_a_pause_that_lasts_too_long_is_given_up_with_its_call(self):
        with Daemon("--set", "interruptions.max_pause_s=1") as d:
            _, pause = self.run_and_pause(d, "late", {"call_id": "c-1", "action": "preserve"})
            d.wait_until(lambda: not d.get("/api/v1/interruptions")[1]["interruptions"])
            status, e = d.post("/v1/sessions/late/result", {"call_id": "c-1", "pause_epoch": 1, "result_id": "r", "content": " x"})
            self.assertEqual((status, e["error"]["code"]), (410, "PAUSE_EXPIRED"))
            status, e = d.post("/v1/sessions/late/resume", {"pause_epoch": 1})
            self.assertEqual((status, e["error"]["code"]), (410, "PAUSE_EXPIRED"))
            self.assertTrue(e["error"]["hint"])
            told = [r["reason"] for r in d.get("/api/v1/receipts?session=late&reason=PAUSE_EXPIRED")[1]["receipts"]]
            self.assertEqual(told, ["PAUSE_EXPIRED"] * 2)  # of the rows, and of the call
            _, again = self.run_and_pause(d, "late")
            self.assertEqual(again["pause_epoch"], 3)


class AcrossKills(Pauses, unittest.TestCase):
    def test_a_swapped_session_survives_kill_9(self):
        state = tempfile.mkdtemp(prefix="kvasir-test-")
        self.addCleanup(shutil.rmtree, state, True)
        disk = ("--set", f"tiers.disk.path={state}/disk", "--set", "tiers.disk.capacity_bytes=64MiB", "--set", "tiers.disk.reserve_bytes=0")
        d = Daemon(*disk, state=state)
        before, pause = self.run_and_pause(d, "s", {"call_id": "c-1", "action": "swap"})
        row = d.wait_until(lambda: [r for r in d.get("/api/v1/interruptions")[1]["interruptions"] if r["state"] == "PAUSED_HOST"])[0]
        self.assertGreater(row["swapped_bytes"], 0)
        self.assertEqual(row["held_bytes"], 0)
        self.assertGreater(d.get("/api/v1/credits")[1]["rates"]["disk_write_bytes_per_s"], 0)
        d.kill()
        d = Daemon(*disk, state=state)
        row = d.get("/api/v1/interruptions")[1]["interruptions"][0]
        self.assertEqual((row["session"], row["call_id"], row["result_state"]), ("s", "c-1", "UNSEEN"))
        content = " Nobody."
        result = {"call_id": "c-1", "pause_epoch": 1, "result_id": "r-1", "content": content}
        self.assertEqual(d.post("/v1/sessions/s/result", result)[0], 200)
        d.kill()  # the result is durable, its rows are not
        d = Daemon(*disk, state=state)
        self.assertEqual(d.post("/v1/sessions/s/result", {**result, "result_id": "r-2"})[1]["error"]["code"], "COMPETING_RESULT")
        self.assertEqual(d.post("/v1/sessions/s/result", result)[0], 200)
        after = text_of(self.resume(d, "s", 1))
        ids = [BOS] + d.post("/tokenize", {"text": PROMPT})[1]["ids"]
        restored = [r for r in d.get("/api/v1/receipts?kind=TRANSFER&session=s")[1]["receipts"] if "restored from disk" in r["detail"]]
        self.assertTrue(restored)
        self.assertTrue(d.get("/api/v1/receipts/verify")[1]["verified"])
        self.assertEqual(d.stop(), 0)
        # A fresh exact run over the same tokens goes on with the same ones.
        with Daemon() as fresh:
            self.assertEqual(fresh.complete(PROMPT, max_tokens=1)["usage"]["prompt_tokens"], len(ids))
            prompt = ids + self.spoken_ids(fresh, ids, pause["published"]) + fresh.post("/tokenize", {"text": content})[1]["ids"]
            again = fresh.complete(prompt, max_tokens=STEPS - pause["published"], ignore_eos=True)
        self.assertEqual(after, again["choices"][0]["text"])

    def spoken_ids(self, d, prompt, n):
        """Ids of the first n greedy tokens: those of their text, which is seen to be tokenised as it was generated."""
        text = d.complete(prompt, max_tokens=n, ignore_eos=True)["choices"][0]["text"]
        ids = d.post("/tokenize", {"text": text})[1]["ids"]
        self.assertEqual(len(ids), n)
        return ids


if __name__ == "__main__":
    unittest.main()
