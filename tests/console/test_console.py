"""kvasir console in a real terminal (tmux) against the real kvasird: screens compared as text, keys as an operator presses them."""
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import support  # noqa: E402

ROLLOUT = {"name": "layers-by-hand", "pipeline": "layerwise", "contract": "exact"}


class Terminal:
    """One tmux server of its own, one window running the console."""

    def __init__(self, url, cols=80, rows=24, term="xterm-256color", lang="C.UTF-8", args=()):
        self.socket = tempfile.mktemp(prefix="kvasir-tmux-")
        command = f"env LC_ALL={lang} TERM={term} {support.KVASIR} --url {url} console {' '.join(args)}; echo; echo ended with $?; read x"
        env = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        subprocess.run(["tmux", "-u", "-S", self.socket, "-f", "/dev/null", "new-session", "-d", "-x", str(cols), "-y", str(rows), "sh", "-c", command], check=True, env=env)

    def tmux(self, *args):
        return subprocess.run(["tmux", "-u", "-S", self.socket, *args], check=True, capture_output=True, text=True).stdout

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def expect(self, text, timeout=20, absent=False):
        end = time.monotonic() + timeout
        while True:
            screen = self.screen()
            if (text in screen) != absent:
                return screen
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} {'still' if absent else 'not'} on the screen:\n{screen}")
            time.sleep(0.05)

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
            screen = t.expect("kvasir")
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
