"""The remote tier on two real daemons: what left the disk of one comes back from the other with the same tokens, and whatever is wrong with the store is computed instead."""
import glob
import hashlib
import os
import shutil
import tempfile
import unittest

from support import Daemon
from test_sessions import STORY, chat, first_turn, saved, second_turn

SECRET = "extents-secret-of-a-test"
OTHERS = [STORY.replace("harbour", f"harbour of {name}") for name in ("Bergen", "Calais", "Dover", "Esbjerg", "Gdansk", "Hull", "Ostend", "Malmo")]


def sha(secret):
    return hashlib.sha256(secret.encode()).hexdigest()


class Store(Daemon):
    """A daemon that keeps extents for others."""

    def __init__(self, *args, **kw):
        config = {"auth": {"tokens": [{"name": "peer", "sha256": sha(SECRET), "rights": ["extents"]}, {"name": "reader", "sha256": sha("reader"), "rights": ["viewer"]}]}}
        super().__init__("--set", "extents.serve=true", "--set", "extents.reserve_bytes=0", *args, config=config, **kw)

    def files(self):
        return sorted(f for f in glob.glob(os.path.join(self.state, "extents", "*")) if len(os.path.basename(f)) == 64)

    def call(self, method, path="", body=None, token=SECRET):
        return self.request(method, "/v1/extents" + path, body, {"Authorization": f"Bearer {token}"} if token else {})


class Remote(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Daemon("--set", "engine.prefix_reuse=false") as plain:
            cls.answer, cls.first, _ = chat(plain, first_turn(), "s")
            cls.second = chat(plain, second_turn(cls.answer), "s")[1]

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvasir-remote-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = os.path.join(self.folder, "token")
        with open(self.token, "w") as f:
            f.write(SECRET + "\n")

    def client(self, url, *more, state="state", **kw):
        os.makedirs(os.path.join(self.folder, state), exist_ok=True)
        settings = {"engine.prefix_reuse": "false", "tiers.disk.path": os.path.join(self.folder, state, "disk"), "tiers.disk.capacity_bytes": "4MiB", "tiers.disk.reserve_bytes": "0",
                    "tiers.remote.url": url, "tiers.remote.token_file": self.token, "tiers.remote.timeout_ms": "2000"}
        settings.update(m.split("=", 1) for m in more)
        return Daemon(*(a for k, v in settings.items() for a in ("--set", f"{k}={v}")), state=os.path.join(self.folder, state), **kw)

    def tier(self, d):
        return next(t for t in d.get("/api/v1/tiers")[1]["tiers"] if t["name"] == "remote")

    def until(self, ask, good, times=20000):
        for _ in range(times):
            value = ask()
            if good(value):
                return value
        raise AssertionError(f"it did not come about: {value}")

    def crowd_out(self, d):
        """The first turn of session s, and others' until the disk has nothing of it; what left is in the store."""
        self.assertEqual(chat(d, first_turn(), "s")[1], self.first)
        saved(d, "s")
        for i, story in enumerate(OTHERS):
            chat(d, first_turn(story), f"other{i}")
            saved(d, f"other{i}")
            if d.get("/api/v1/sessions/s")[1]["held_blocks"] == 0:
                break
        self.assertEqual(d.get("/api/v1/sessions/s")[1]["held_blocks"], 0)
        return self.until(lambda: self.tier(d), lambda t: t["transfers_in_flight"] == 0 and t["scratch_bytes"] == 0 and t["objects"] > 0)

    def resumes(self, d):
        """The second turn with the recompute's tokens; the session's row after it."""
        self.assertEqual(chat(d, second_turn(self.answer), "s")[1], self.second)
        return saved(d, "s")

    def test_a_turn_resumes_from_the_store_alone(self):
        with Store() as store:
            with self.client(store.url) as d:
                tier = self.crowd_out(d)
                self.assertEqual(tier["objects"], len(store.files()))
                self.assertEqual((tier["breaker"], tier["failures"]), ("closed", 0))
            shutil.rmtree(os.path.join(self.folder, "state", "disk"))
            with self.client(store.url) as d:  # it knows nothing but its key
                row = self.resumes(d)
                tier = self.tier(d)
                self.assertGreater(row["restored_tokens"], 0)
                self.assertEqual(tier["hits"] * 64, row["restored_tokens"])
                self.assertEqual(tier["failures"], 0)


if __name__ == "__main__":
    unittest.main()
