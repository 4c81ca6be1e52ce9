"""kvasir tokenize and detokenize: the reference's tokens, the way back, and clear refusals. SmolLM2 is tested where its file is at hand."""
import json
import os
import subprocess
import tempfile
import unittest

from support import smollm2

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KVASIR = os.path.join(ROOT, os.environ.get("KVASIR_BUILD", "build"), "kvasir")
DEMO = os.path.join(ROOT, "models", "kvasir-demo-q8_0.gguf")
FIXTURES = os.path.join(ROOT, "tests", "fixtures")


def kvasir(*args, **more):
    p = subprocess.run([KVASIR, *args], capture_output=True, text=True, timeout=60, **more)
    return p.returncode, p.stdout, p.stderr


class Tokens(unittest.TestCase):
    def check(self, model, fixture):
        path = os.path.join(FIXTURES, fixture)
        with open(path) as f:
            rows = json.load(f)
        status, out, err = kvasir("tokenize", "--model", model, "--texts", path, "--json")
        self.assertEqual(status, 0, err)
        got = json.loads(out)
        self.assertEqual([r["ids"] for r in got], [r["ids"] for r in rows])
        status, out, err = kvasir("detokenize", "--model", model, "--ids", "-", "--special", "--json", input=json.dumps(got))
        self.assertEqual(status, 0, err)
        self.assertEqual([r["text"] for r in json.loads(out)], [r["text"] for r in rows])

    def test_demo(self):
        self.check(DEMO, "tokens-demo.json")

    def test_smollm2(self):
        self.check(smollm2(), "tokens-smollm2.json")

    def test_plain_output(self):
        status, out, _ = kvasir("tokenize", "--model", DEMO, "--text", "Hello, world!")
        self.assertEqual((status, out), (0, "996 372 957 973 776 326 1010\n"))
        status, out, _ = kvasir("detokenize", "--model", DEMO, *out.split())
        self.assertEqual((status, out), (0, "Hello, world!\n"))

    def test_special_tokens_only_when_asked(self):
        ids = lambda *more: json.loads(kvasir("tokenize", "--model", DEMO, "--text", "</s>", "--json", *more)[1])[0]["ids"]
        self.assertEqual(ids("--special"), [2])
        self.assertNotIn(2, ids())
        self.assertEqual(kvasir("detokenize", "--model", DEMO, "2", "--special")[1], "</s>\n")
        self.assertEqual(kvasir("detokenize", "--model", DEMO, "2")[1], "\n")

    def test_half_a_character_stays_json(self):
        status, out, _ = kvasir("tokenize", "--model", DEMO, "--text", "\u2603", "--json")
        first = json.loads(out)[0]["ids"][0]
        status, out, _ = kvasir("detokenize", "--model", DEMO, str(first), "--json")
        self.assertEqual((status, json.loads(out)), (0, [{"text": "\ufffd"}]))


class Refusals(unittest.TestCase):
    def refused(self, status, reason, *args, **more):
        got, out, err = kvasir(*args, **more)
        self.assertEqual((got, out), (status, ""), err)
        self.assertIn(reason, err)

    def test_usage(self):
        self.refused(2, "usage:", "tokenize", "--model", DEMO)
        self.refused(2, "usage:", "tokenize", "--model", DEMO, "--text", "a", "--texts", "b")
        self.refused(2, "usage:", "tokenize", "--model")
        self.refused(2, "--sideways", "tokenize", "--sideways")
        self.refused(2, "usage:", "detokenize", "--model", DEMO)
        self.refused(2, "12x", "detokenize", "--model", DEMO, "12x")

    def test_models(self):
        self.refused(1, "FILE_UNREADABLE", "tokenize", "--model", "/nonexistent.gguf", "--text", "a")
        self.refused(1, "NOT_GGUF", "tokenize", "--model", __file__, "--text", "a")
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f, open(DEMO, "rb") as whole:
            f.write(whole.read(200000))
            f.flush()
            self.refused(1, "MODEL_TRUNCATED", "tokenize", "--model", f.name, "--text", "a")

    def test_input(self):
        self.refused(1, "BAD_JSON", "tokenize", "--model", DEMO, "--texts", "-", input="[")
        self.refused(1, "row 1", "tokenize", "--model", DEMO, "--texts", "-", input='["a", 3]')
        self.refused(1, "BAD_JSON", "tokenize", "--model", DEMO, "--texts", "-", input='{"text":"a"}')
        self.refused(1, "TOKEN_OUT_OF_RANGE", "detokenize", "--model", DEMO, "1024")
        self.refused(1, "BAD_JSON", "detokenize", "--model", DEMO, "--ids", "-", input='[[1.5]]')
        self.refused(1, "BODY_TOO_LARGE", "tokenize", "--model", DEMO, "--texts", "-", input=json.dumps(["a" * ((4 << 20) + 1)]))


if __name__ == "__main__":
    unittest.main()
