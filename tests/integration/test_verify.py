"""kvasir verify and generate as programs: equal digests in every case and on every instruction set, typed refusals."""
import json, os, subprocess, unittest

from support import smollm2

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KVASIR = os.path.join(ROOT, os.environ.get("KVASIR_BUILD", "build"), "kvasir")
MODEL = os.path.join(ROOT, "models", "kvasir-demo-q8_0.gguf")


def kvasir(*args, **env):
    return subprocess.run([KVASIR, *args], capture_output=True, text=True, timeout=300, env={**os.environ, **env})


class Verify(unittest.TestCase):
    def test_every_case_is_equal_on_every_instruction_set(self):
        digests = set()
        for isa, tokens in (("", "160"), ("scalar", "24"), ("avx2", "24"), ("avx512", "24"), ("", "24")):
            done = kvasir("verify", "--model", MODEL, "--tokens", tokens, "--json", KVASIR_ISA=isa)
            if isa.startswith("avx") and "KVASIR_ISA" in done.stderr:
                continue  # not on this machine
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            answer = json.loads(done.stdout)
            self.assertTrue(answer["equal"])
            names = [c["name"] for c in answer["cases"]]
            self.assertEqual(len(names), len(set(names)))
            for part in ("batch-7/", "batch-32/", "/chunk-1/", "/chunk-512/", "/threads-4", "placement/layerwise", "rollback/layerwise", "recompute/quest", "reuse/prefix", "restore/kept", "restore/host", "restore/recompute", "restore/disk"):
                self.assertTrue(any(part in n for n in names), part)
            here = {c["digest"] for c in answer["cases"]}
            self.assertEqual(len(here), 1)
            self.assertEqual([(r["name"], r["equal"]) for r in answer["rollbacks"]], [("rollback/quest/greedy", True), ("rollback/quest/sampled", True)])
            self.assertEqual(len({r["digest"] for r in answer["rollbacks"]}), 2)
            if tokens == "24":
                digests |= here
            else:
                other = here
        self.assertEqual(len(digests), 1)
        self.assertNotEqual(digests, other)

    def test_the_second_model_too(self):
        done = kvasir("verify", "--model", smollm2(), "--tokens", "32", "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len({c["digest"] for c in json.loads(done.stdout)["cases"]}), 1)

    def test_an_instruction_set_that_is_not_there_is_refused(self):
        done = kvasir("verify", "--model", MODEL, "--tokens", "24", KVASIR_ISA="avx1024")
        self.assertEqual(done.returncode, 1)
        self.assertIn("KVASIR_ISA", done.stderr)
        self.assertIn("avx2", done.stderr)

    def test_a_difference_is_named_by_position_layer_and_operation(self):
        """The last bits of one product are spoilt in batches of seven, as another order of adding would."""
        done = kvasir("verify", "--model", MODEL, "--tokens", "64", "--json", KVASIR_VERIFY_FAULT="2:down")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        answer = json.loads(done.stdout)
        self.assertFalse(answer["equal"])
        parted = [c for c in answer["cases"] if "differs_from_position" in c]
        self.assertEqual([c["name"] for c in parted], ["batch-7/chunk-whole/threads-2"])
        self.assertEqual((parted[0]["begins_in_layer"], parted[0]["begins_in_operation"], parted[0]["begins_at_position"]), (2, "down", 24))
        self.assertLessEqual(24, parted[0]["differs_from_position"])
        done = kvasir("verify", "--model", MODEL, "--tokens", "24", KVASIR_VERIFY_FAULT="2:nothing")
        self.assertEqual(done.returncode, 1)
        self.assertIn("LAYER:OPERATION", done.stderr)

    def test_refusals_name_reason_and_remedy(self):
        done = kvasir("verify")
        self.assertEqual(done.returncode, 1)
        self.assertIn("BAD_ARGUMENT", done.stderr)
        self.assertIn("--model", done.stderr)
        done = kvasir("verify", "--model", "/nonexistent.gguf")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FILE_UNREADABLE", done.stderr)
        self.assertEqual(kvasir("verify", "--matrix", "huge").returncode, 2)

    def test_generate_knows_its_pipelines(self):
        text = ("generate", "--model", MODEL, "--text", "The magic number", "--steps", "4")
        self.assertEqual(kvasir(*text).returncode, 0)
        for pipeline, reason in (("nosuch", "UNKNOWN_PIPELINE"), ("flexgen", "NOT_BUILT")):
            done = kvasir(*text, "--pipeline", pipeline)
            self.assertEqual(done.returncode, 1)
            self.assertIn(reason, done.stderr)
        done = kvasir(*text, "--pipeline", "quest", "--param", "budgit_rows=3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("budget_rows", done.stderr)
        self.assertEqual(kvasir("generate", "--model", MODEL).returncode, 2)


if __name__ == "__main__":
    unittest.main()
