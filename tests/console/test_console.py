"""kvasir console in a real terminal (tmux) against the real kvasird: screens compared as text, keys as an operator presses them."""
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import support  # noqa: E402

ROLLOUT = {"name": "layers-by-hand", "pipeline": "layerwise", "contract": "exact"}

# Sound when it is checked, with one gate; faulty on a rollout, which has several.
FAULTY = """return { api = 1, name = "faulty", release = function(stage, gates, history)
  if #gates > 1 then error("on purpose") end
  return { action = "HOLD", reason = "one gate" }
end }
"""

# Leaves every move to the operator.
HOLDS = """return { api = 1, name = "holds", release = function() return { action = "HOLD", reason = "by hand" } end }"""


def script(text):
    """A program of its own folder, which is also where the console puts what is edited."""
    folder = tempfile.mkdtemp(prefix="kvasir-editor-")
    path = os.path.join(folder, "editor")
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o755)
    return path


class Terminal:
    """One tmux server of its own, one window running the console."""

    def __init__(self, url, cols=80, rows=24, term="xterm-256color", lang="C.UTF-8", args=(), shell=False, **variables):
        self.socket = tempfile.mktemp(prefix="kvasir-tmux-")
        where = ["--context", url] if "/" not in url else ["--url", url]
        self.command = shlex.join(["env", f"LC_ALL={lang}", f"TERM={term}", support.KVASIR, *where, "console", *args])
        env = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", **variables}
        start = ["bash", "--norc", "-i"] if shell else ["sh", "-c", f"{self.command}; echo; echo ended with $?; read x"]
        subprocess.run(["tmux", "-u", "-S", self.socket, "-f", "/dev/null", "new-session", "-d", "-x", str(cols), "-y", str(rows), *start], check=True, env=env)
        if shell:
            self.keys("-l", self.command + "\n")

    def tmux(self, *args):
        return subprocess.run(["tmux", "-u", "-S", self.socket, *args], check=True, capture_output=True, text=True).stdout

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def wait(self, holds, complaint, timeout=20):
        end = time.monotonic() + timeout
        while True:
            screen = self.screen()
            if holds(screen):
                return screen
            if time.monotonic() > end:
                raise AssertionError(f"{complaint}:\n{screen}")
            time.sleep(0.05)

    def expect(self, text, timeout=20, absent=False):
        return self.wait(lambda screen: (text in screen) != absent, f"{text!r} {'still' if absent else 'not'} on the screen", timeout)

    def say(self, text, answer):
        """A command behind ':', as it is typed."""
        self.keys("-l", f":{text}")
        self.keys("Enter")
        self.expect(answer)

    def expect_crumbs(self, n):
        """So many steps from the root in the line above."""
        self.wait(lambda screen: screen.splitlines()[0].count("›") == n, f"not {n} steps deep")

    def resize(self, cols, rows):
        self.tmux("resize-window", "-x", str(cols), "-y", str(rows))

    def close(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True)


class ConsoleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = support.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def open(self, **kw):
        t = Terminal(self.daemon.url, **kw)
        self.addCleanup(t.close)
        return t

    def live_rollout(self):
        """A rollout that is live and not at the baseline, made if need be."""
        status, made = self.daemon.post("/api/v1/rollouts", ROLLOUT)
        if status == 409:
            rows = self.daemon.get("/api/v1/rollouts")[1]["rollouts"]
            return next(r for r in rows if r["live"])
        self.assertEqual(status, 201, made)
        return made

    def stage(self):
        return self.daemon.get("/api/v1/status")[1]["release"]["stage"]

    def test_rollback_is_two_keys_from_any_view(self):
        self.live_rollout()
        self.daemon.wait_until(lambda: self.stage() == "SHADOW")
        t = self.open()
        t.expect("layers-by-hand")
        t.expect("[SHADOW")
        t.keys("4")
        t.expect("kvasir › policies")
        t.keys("R")
        t.expect("roll back layers-by-hand: SHADOW")
        t.keys("n")
        t.expect("nothing was done")
        self.assertEqual(self.stage(), "SHADOW")
        t.keys("R")
        t.keys("y")
        t.expect("fenced in")
        self.assertEqual(self.stage(), "EXACT_BASELINE")
        t.keys("1")
        t.expect("[EXACT_BASELINE]")

    def test_a_rollout_is_advanced_in_two_keys_and_held_in_one(self):
        d = support.Daemon()
        self.addCleanup(d.stop)
        self.assertEqual(d.post("/api/v1/policies/release/activate", {"source": HOLDS}, headers={"If-Match": "*"})[0], 200)
        status, r = d.post("/api/v1/rollouts", ROLLOUT)
        self.assertEqual(status, 201, r)
        t = Terminal(d.url)
        self.addCleanup(t.close)
        t.expect("[OFF]")
        t.keys("a")
        t.expect("advance layers-by-hand at OFF")
        t.keys("y")
        t.expect("[SHADOW 0 %]")
        t.keys("p")
        t.expect("PAUSED")
        self.assertTrue(d.get(f"/api/v1/rollouts/{r['id']}")[1]["paused"])

    def test_a_policy_is_edited_live_in_at_most_eight_keys(self):
        """4, j j, e, [the edit], y: five keys beside the edit."""
        editor = script("#!/bin/sh\nsed -i '1s/^/-- by the night shift\\n/' \"$1\"\n")
        before = self.daemon.get("/api/v1/policies/release")[1]
        t = self.open(EDITOR=editor, VISUAL="", TMPDIR=os.path.dirname(editor))
        t.expect("live")
        keys = ["4", "j", "j", "e", "y"]
        t.keys(keys[0])
        t.expect("▸admission")
        t.keys(*keys[1:3])
        t.expect("▸release")
        t.keys(keys[3])
        t.expect("+-- by the night shift")
        t.expect("1 added, 0 removed")
        self.assertEqual(self.daemon.get("/api/v1/policies/release")[1]["version"], before["version"])
        t.keys(keys[4])
        t.expect("is ACTIVE")
        self.assertLessEqual(len(keys), 8)
        now = self.daemon.get("/api/v1/policies/release")[1]
        self.assertEqual(now["source"], "-- by the night shift\n" + before["source"])
        self.assertEqual(os.listdir(os.path.dirname(editor)), ["editor"])  # the edited file is gone

    def test_a_refused_edit_says_why_and_is_not_lost(self):
        editor = script("#!/bin/sh\ncase $(cat \"$1\") in *broken*) sed -i 's/return broken/return 1/' \"$1\";; *) sed -i '1s/^/return broken(\\n/' \"$1\";; esac\n")
        before = self.daemon.get("/api/v1/policies/release")[1]
        t = self.open(EDITOR=editor, VISUAL="", cols=160)
        t.expect("live")
        t.keys(":")
        t.keys("-l", "edit release")
        t.keys("Enter")
        t.expect("e goes on with your edit")
        t.expect("POLICY_")
        t.keys(":", "Up", "Enter")  # the editor finds what was typed before, or it would not see "broken"
        t.expect("e goes on with your edit")
        self.assertEqual(self.daemon.get("/api/v1/policies/release")[1]["version"], before["version"])

    def test_another_operator_was_faster(self):
        """A rollout that changed while the screen was frozen is not changed on the ground of what was seen; 412 says so and the new state shows."""
        r = self.live_rollout()
        t = self.open(cols=120)
        t.expect("layers-by-hand")
        t.keys("Z")
        t.expect("FROZEN")
        self.assertEqual(self.daemon.post(f"/api/v1/rollouts/{r['id']}/pause", {}, headers={"If-Match": str(self.daemon.get(f"/api/v1/rollouts/{r['id']}")[1]["version"])})[0], 200)
        t.keys("K")
        t.expect("y/N")
        t.keys("y")
        t.expect("it changed meanwhile")
        t.expect("PAUSED")
        t.keys("Z")
        t.keys("u")
        t.expect("resume: done")

    def test_the_receipt_behind_a_failure_is_two_keys_away(self):
        self.live_rollout()
        source = self.daemon.get("/api/v1/policies/release")[1]["source"]
        self.assertEqual(self.daemon.post("/api/v1/policies/release/activate", {"source": FAULTY}, headers={"If-Match": "*"})[0], 200)
        self.daemon.wait_until(lambda: self.daemon.get("/api/v1/failures?limit=1&reason=POLICY_FAULT")[1]["failures"])
        self.daemon.post("/api/v1/policies/release/activate", {"source": source}, headers={"If-Match": "*"})
        failure = self.daemon.get("/api/v1/failures?limit=1")[1]["failures"][0]
        t = self.open()
        t.expect("live")
        t.keys("3")
        t.expect(failure["reason"])
        t.keys("Enter")
        t.expect(f"› receipt {failure['receipt']} ")
        t.expect("rests on")

    def test_drills_run_and_gates_are_tried_without_effect(self):
        self.live_rollout()
        t = self.open()
        t.expect("live")
        for command, answer in (("drill", "tenant_isolation"), ("drill idempotent_replay", "PASSED"), ("dry-run tenant_failures", "decided_by")):
            t.say(command, answer)
            t.keys("Escape")
        t.say("dry-run nonsense", "UNKNOWN_METRIC")

    def test_faults_are_shown_and_run(self):
        with support.Daemon("--set", "faults.enabled=true") as lab:
            lab.post("/api/v1/faults/bit_flip", {"scope": {"tenant": "acme"}})
            t = Terminal(lab.url, cols=120)
            self.addCleanup(t.close)
            t.expect("FAULTS ARMED")
            t.keys("3")
            t.expect("ARMED: bit_flip on acme")
            t.say("fault disarm bit_flip", "bit_flip: disarmed")
            t.expect("FAULTS ARMED", absent=True)
            t.say("fault run clock_jump", "clock_jump: PASS")
            t.say("fault run bit_flip", "UNSUPPORTED")
            t.say("fault arm bit_flip", "no rollout is live")

    def test_what_a_receipt_rests_on_opens_and_closes(self):
        self.live_rollout()
        t = self.open()
        t.expect("live")
        t.keys("2")
        t.keys("/")
        t.keys("-l", "TRANSITION")
        t.keys("Enter")
        t.expect("filter /TRANSITION")
        t.keys("Enter")
        t.expect("rests on")
        t.keys("Enter")
        t.expect_crumbs(3)
        t.keys("Escape")
        t.expect_crumbs(2)
        t.keys("Escape")
        t.keys("9")
        t.expect("kvasir › audit")
        t.expect("POST /api/v1/rollouts")

    def test_both_arms_are_compared(self):
        t = self.open(cols=120)
        t.expect("live")
        t.keys(":")
        t.keys("-l", "compare The river ran")
        t.keys("Enter")
        screen = t.expect("logprob", timeout=60)
        self.assertIn("baseline", screen)
        p = subprocess.run([support.KVASIR, "--url", self.daemon.url, "--json", "compare", "--tokens", "4", "The river ran"], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        v = json.loads(p.stdout)
        self.assertEqual((v["tokens"], len(v["rows"])), (4, 4))
        self.assertTrue(v["candidate_served"] or v["same_tokens"] == 4)  # the baseline beside itself is one answer

    def test_stopped_continued_and_ended_give_the_terminal_back(self):
        t = self.open(shell=True, cols=120)
        t.expect("live")
        t.keys("C-z")
        t.expect("Stopped")
        t.keys("-l", "stty -a | grep -o ' echo ' | tr -d ' '\n")
        t.expect("\necho\n")
        t.keys("-l", "fg\n")
        t.expect("R rollback")
        t.keys("4")
        t.expect("kvasir › policies")
        t.keys("C-z")
        t.expect("Stopped")
        t.keys("-l", "kill %1; fg; clear; echo back $?\n")
        t.expect("back ")
        t.keys("-l", "stty -a | grep -o ' icanon ' | tr -d ' '\n")
        t.expect("\nicanon\n")

    def test_contexts_are_switched_inside(self):
        home = tempfile.mkdtemp(prefix="kvasir-contexts-")
        self.addCleanup(shutil.rmtree, home)
        os.mkdir(os.path.join(home, "kvasir"))
        with open(os.path.join(home, "kvasir", "contexts.json"), "w") as f:
            json.dump({"north": {"url": self.daemon.url}, "south": {"url": "http://127.0.0.1:1"}}, f)
        t = Terminal("north", XDG_CONFIG_HOME=home, cols=120)
        self.addCleanup(t.close)
        t.expect("kvasir@north")
        t.expect("live")
        for name, sign in (("south", "cannot reach"), ("nowhere", "no context 'nowhere'"), ("north", "live")):
            t.keys(":")
            t.keys("-l", f"context {name}")
            t.keys("Enter")
            t.expect(sign)

    def test_views_open_and_close(self):
        self.daemon.complete("A quiet evening", max_tokens=4)
        t = self.open(cols=120, rows=34)
        for key, name in zip("2345678", ("receipts", "failures", "policies", "sessions", "tiers", "pipelines", "rollouts")):
            t.keys(key)
            t.expect(f"kvasir › {name}")
        t.keys("7")
        t.expect("quest")
        t.keys("/")
        t.keys("-l", "headwise")
        t.keys("Enter")
        t.expect("headinfer")
        t.expect("magicpig", absent=True)
        t.keys("Escape")
        t.keys("2")
        t.expect("request")
        t.keys("Enter")
        t.expect("hash")
        t.keys("Escape")
        t.keys("?")
        t.expect("return all traffic to the exact baseline")
        t.keys("q")
        t.expect("ended with 0")

    def test_small_and_plain_terminals(self):
        for kw in ({"cols": 40, "rows": 10}, {"term": "vt100", "lang": "C"}, {"cols": 200, "rows": 50}):
            t = self.open(**kw)
            screen = t.expect("live")
            if kw.get("lang") == "C":
                t.expect("R rollback")
                self.assertTrue(all(ord(c) < 128 for c in t.screen()), screen)
            t.keys("q")
            t.expect("ended with 0")

    def test_resize_storm(self):
        t = self.open()
        t.expect("kvasir")
        for i in range(25):
            t.resize(40 + (i * 37) % 120, 8 + (i * 13) % 40)
        t.resize(90, 28)
        t.expect("R rollback")
        t.keys("q")
        t.expect("ended with 0")

    def test_readonly_refuses_writes(self):
        self.live_rollout()
        t = self.open(args=("--readonly",))
        t.expect("layers-by-hand")
        t.keys("R")
        t.expect("read-only")

    def test_once_prints_without_a_terminal(self):
        p = subprocess.run([support.KVASIR, "--url", self.daemon.url, "console", "--once"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("kvasir › rollout", p.stdout)

    def test_what_clients_name_cannot_steer_the_terminal(self):
        self.daemon.complete("a", max_tokens=1, kvasir={"session": "bill\u202egnp.exe"})
        for command in (["sessions"], ["sessions", "show", "no\x1b[2Jsuch\u009b"]):
            p = subprocess.run([support.KVASIR, "--url", self.daemon.url, *command], capture_output=True, text=True)
            self.assertRegex(p.stdout + p.stderr, r"bill\?\?\?gnp\.exe|no\?\[2Jsuch\?\?")
            self.assertNotRegex(p.stdout + p.stderr, r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")

    def test_every_view_is_printed_once_and_as_json(self):
        views = {"rollout": "rollouts", "receipts": "receipts", "failures": "failures", "policies": "policies", "sessions": "sessions", "tiers": "tiers", "pipelines": "pipelines",
                 "rollouts": "rollouts", "audit": "receipts", "credits": "credits", "paused": "interruptions", "progress": "tasks"}
        for view, member in views.items():
            with self.subTest(view=view):
                once = [support.KVASIR, "--url", self.daemon.url, "console", "--once", "--view", view]
                picture = subprocess.run(once, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
                self.assertEqual(picture.returncode, 0, picture.stderr)
                self.assertIn(f"kvasir › {view}", picture.stdout)
                data = subprocess.run([*once[:3], "--json", *once[3:]], capture_output=True, text=True)
                self.assertEqual(data.returncode, 0, data.stderr)
                self.assertIsInstance(json.loads(data.stdout)[member], list)
        wrong = subprocess.run([*once[:-1], "nowhere"], capture_output=True, text=True)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("no view is named 'nowhere'; they are rollout receipts", wrong.stderr)


class SoakTest(unittest.TestCase):
    """Keys, sizes and receipts without end: the console's memory stays where it was. KVASIR_SOAK_S makes it longer."""

    def resident_kib(self, pid):
        with open(f"/proc/{pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    def test_memory_stays_flat_under_keys_resizes_and_traffic(self):
        seconds = float(os.environ.get("KVASIR_SOAK_S", "3"))
        d = support.Daemon()
        self.addCleanup(d.stop)
        stop = threading.Event()

        def traffic():
            while not stop.is_set():
                d.complete("a", max_tokens=1, kvasir={"session": "soak"})

        threads = [threading.Thread(target=traffic, daemon=True) for _ in range(3)]
        for t in threads:
            t.start()
        self.addCleanup(lambda: (stop.set(), [t.join() for t in threads]))
        t = Terminal(d.url, cols=120, rows=40)
        self.addCleanup(t.close)
        t.expect("live")
        pid = int(subprocess.run(["pgrep", "-f", f"kvasir --url {d.url} console$"], capture_output=True, text=True).stdout.split()[-1])
        storm = ["1", "2", "Enter", "Enter", "Escape", "Escape", "j", "j", "Space", "s", "S", "s", "3", "4", "Enter", "NPage", "Escape", "5", "6", "7", "8", "9", "0", "Tab", "?", "NPage", "Escape"]

        def storm_once(i):
            t.keys(*storm)
            t.resize(60 + (i * 37) % 120, 12 + (i * 13) % 40)
            t.keys("2", "/", "R", "E", "Q", "Enter", "n", "Escape")

        def receipts():
            return d.get("/api/v1/receipts?limit=1")[1]["receipts"][0]["id"]

        i = 0
        while receipts() < 8000 or i < 8:  # more than stay in the list, and every page once
            storm_once(i := i + 1)
        warm, end = self.resident_kib(pid), time.monotonic() + seconds
        while time.monotonic() < end:
            storm_once(i := i + 1)
        grown = self.resident_kib(pid) - warm
        self.assertLess(grown, 3072, f"{grown} KiB more than the {warm} KiB after the warm-up; {receipts()} receipts")
        t.expect("live")


class StartingServerTest(unittest.TestCase):
    def test_a_load_shows_its_percent_and_the_console_goes_on_by_itself(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        t = Terminal(f"http://127.0.0.1:{port}")
        self.addCleanup(t.close)
        t.expect("cannot reach")
        large = tempfile.NamedTemporaryFile(suffix=".gguf")  # as long a hole behind its tensors has to be hashed too
        self.addCleanup(large.close)
        shutil.copyfile(support.MODEL, large.name)
        os.truncate(large.name, 3 << 30)
        d = support.Daemon("--listen", f"127.0.0.1:{port}", model=large.name, wait=False)
        self.addCleanup(d.stop)
        t.expect("load [")
        t.expect("the server is still starting and loads its model")
        self.assertNotIn("exact baseline", t.screen())
        t.expect("live", timeout=60)
        t.expect("No rollout yet")


class LostServerTest(unittest.TestCase):
    def test_stale_when_the_server_goes_and_live_when_it_returns(self):
        first = support.Daemon()
        t = Terminal(first.url)
        self.addCleanup(t.close)
        t.expect("live")
        first.kill()
        t.expect("STALE")
        t.keys("p")
        t.expect("stale")
        second = support.Daemon("--listen", f"127.0.0.1:{first.port}")
        self.addCleanup(second.stop)
        t.expect("STALE", timeout=30, absent=True)


if __name__ == "__main__":
    unittest.main()
