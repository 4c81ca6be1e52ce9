"""kvasir generate against reference continuations computed in double precision from the dequantised weights.

The vectors lie beside the tests (tests/fixtures/vectors). Tolerances on the logprob of the reference's first token: int8 activations mean |Δ| ≤ 0.05 and no other first
token where the margin exceeds 0.5; float activations 1e-3 and 0.01."""
import json, os, subprocess, tempfile, unittest

from support import smollm2

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("KVASIR_BUILD", "build"))
KVASIR = os.path.join(BUILD, "kvasir")
FIXTURES = os.path.join(ROOT, "tests", "fixtures", "vectors")


def generate(model, prompts, force, *more):
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, value in (("prompts", prompts), ("force", force)):
            files[name] = os.path.join(folder, name + ".json")
            with open(files[name], "w") as f:
                json.dump(value, f)
        command = [KVASIR, "generate", "--model", model, "--prompts", files["prompts"], "--json", *more]
        if force is not None:
            command += ["--force", files["force"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


class Vectors(unittest.TestCase):
    def check(self, vectors, model, mean_limit, margin_limit):
        with open(os.path.join(FIXTURES, vectors)) as f:
            rows = json.load(f)
        answers = generate(model, [{"ids": r["ids"], "steps": len(r["greedy"])} for r in rows], [r["greedy"] for r in rows])
        errors, flips, nll, tokens = [], [], 0.0, 0
        for row, answer in zip(rows, answers):
            self.assertEqual(answer["ids"], row["greedy"])
            self.assertTrue(all(answer["exact"]))
            nll += abs(answer["prompt_nll"] - row["prompt_nll"])
            tokens += len(row["ids"]) - 1
            for step, (want, got, margin) in enumerate(zip(row["top"], answer["top"], row["margin"])):
                self.assertEqual(len(got), 5)
                ours = dict((i, p) for i, p in got)
                first, logprob = want[0]
                self.assertIn(first, ours)
                errors.append(abs(ours[first] - logprob))
                if got[0][0] != want[0][0] and margin > margin_limit:
                    flips.append((row["name"], step, margin))
        mean = sum(errors) / len(errors)
        print("%s: mean |Δlogprob| %.6f, max %.4f over %d; prompt nll off by %.5f a token" % (vectors, mean, max(errors), len(errors), nll / tokens))
        self.assertEqual(flips, [])
        self.assertLessEqual(mean, mean_limit)
        self.assertLessEqual(nll / tokens, mean_limit)

    def test_demo_q8_0(self):
        self.check("demo-q8_0-greedy.json", os.path.join(ROOT, "models", "kvasir-demo-q8_0.gguf"), 0.05, 0.5)

    def test_demo_f16(self):
        self.check("demo-f16-greedy.json", os.path.join(ROOT, "models", "kvasir-demo-f16.gguf"), 1e-3, 0.01)

    def test_smollm2(self):
        self.check("smollm2-greedy.json", smollm2(), 0.05, 0.5)


if __name__ == "__main__":
    unittest.main()
