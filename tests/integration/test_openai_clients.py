"""OpenAI's wire format, through OpenAI's own clients for Python and JavaScript and by hand."""
import json
import os
import subprocess
import unittest

from support import ROOT, Daemon

PROMPT = ("The magic number for amber anchor is 4711.\nThe magic number for calm river is 9021.\n"
          "Question: what is the magic number for amber anchor?\nAnswer: The magic number for amber anchor is ")


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon()

    @classmethod
    def tearDownClass(cls):
        assert cls.d.stop() == 0, "".join(cls.d.err)[-3000:]

    def test_python_client(self):
        import openai
        with openai.OpenAI(base_url=f"{self.d.url}/v1", api_key="none", max_retries=0) as client:
            self.assertEqual([m.id for m in client.models.list()], ["kvasir-demo"])
            self.assertEqual(client.models.retrieve("kvasir-demo").id, "kvasir-demo")
            whole = client.completions.create(model="kvasir-demo", prompt=PROMPT, max_tokens=12, temperature=0, logprobs=3)
            self.assertTrue(whole.choices[0].text.startswith("4711"), whole.choices[0].text)
            self.assertEqual(whole.usage.completion_tokens, 12)
            self.assertEqual(len(whole.choices[0].logprobs.tokens), 12)
            self.assertEqual(len(whole.choices[0].logprobs.top_logprobs[0]), 3)
            self.assertEqual(whole.model_extra["kvasir"]["published_contract"], "exact")
            text, finish, usage = "", None, None
            for chunk in client.completions.create(model="kvasir-demo", prompt=PROMPT, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}):
                self.assertEqual(chunk.model_extra["kvasir"]["contract"], "exact")
                usage = chunk.usage or usage
                if chunk.choices:
                    text += chunk.choices[0].text
                    finish = chunk.choices[0].finish_reason or finish
            self.assertEqual((text, finish, usage.total_tokens), (whole.choices[0].text, "length", whole.usage.total_tokens))
            messages = [{"role": "user", "content": "Hello there"}]
            chat = client.chat.completions.create(model="kvasir-demo", messages=messages, max_completion_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
            self.assertEqual(chat.choices[0].message.role, "assistant")
            self.assertEqual(len(chat.choices[0].logprobs.content[0].top_logprobs), 2)
            deltas = [c.choices[0].delta for c in client.chat.completions.create(model="kvasir-demo", messages=messages, max_tokens=8, temperature=0, stream=True)]
            self.assertEqual(deltas[0].role, "assistant")
            self.assertEqual("".join(d.content or "" for d in deltas), chat.choices[0].message.content)
            with self.assertRaises(openai.NotFoundError) as caught:
                client.completions.create(model="no-such-model", prompt=PROMPT)
            self.assertEqual((caught.exception.code, caught.exception.param), ("NOT_FOUND", "model"))
            with self.assertRaises(openai.BadRequestError) as caught:
                client.completions.create(model="kvasir-demo", prompt=PROMPT, max_tokens=100000)
            self.assertEqual(caught.exception.code, "CONTEXT_OVERRUN")

    def test_javascript_client(self):
        folder = os.path.join(ROOT, "tests", "integration", "openai_node")
        if not os.path.exists(os.path.join(folder, "node_modules", "openai", "package.json")):
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"], cwd=folder, check=True, timeout=300)
        p = subprocess.run(["node", "client.mjs", self.d.url, PROMPT], cwd=folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(p.returncode, 0, p.stderr)
        seen = json.loads(p.stdout)
        self.assertEqual(seen["models"], ["kvasir-demo"])
        self.assertTrue(seen["text"].startswith("4711"))
        self.assertEqual(seen["streamed"], seen["text"])
        self.assertEqual((seen["finish"], seen["stream_usage"]), ("length", seen["usage"]))
        self.assertEqual((seen["chat"]["role"], seen["chat_streamed"]), ("assistant", seen["chat"]["content"]))
        self.assertEqual(seen["chat_logprobs"], 8)
        self.assertEqual(seen["error"], {"name": "NotFoundError", "status": 404, "code": "NOT_FOUND", "param": "model"})

    def test_token_ids_in_and_out(self):
        ids = self.d.post("/tokenize", {"text": PROMPT})[1]["ids"]
        self.assertEqual(self.d.post("/detokenize", {"ids": ids})[1]["text"].strip(), PROMPT.strip())
        by_text = self.d.complete(PROMPT, max_tokens=8)
        by_ids = self.d.complete([1] + ids, max_tokens=8)
        self.assertEqual(by_ids["choices"][0]["text"], by_text["choices"][0]["text"])
        self.assertEqual(by_ids["usage"], by_text["usage"])

    def test_stop_strings_end_the_text_before_them(self):
        whole = self.d.complete(PROMPT, max_tokens=24)["choices"][0]["text"]
        stop = whole[6:9]
        cut = self.d.complete(PROMPT, max_tokens=24, stop=[stop, "never there"])["choices"][0]
        self.assertEqual((cut["text"], cut["finish_reason"]), (whole[:whole.index(stop)], "stop"))
        events = list(self.d.stream("/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, "stop": stop}))
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), cut["text"])

    def test_the_same_seed_draws_the_same(self):
        draw = lambda seed: self.d.post("/v1/completions", {"prompt": PROMPT, "temperature": 1.2, "seed": seed, "max_tokens": 24})[1]["choices"][0]["text"]
        self.assertEqual(draw(7), draw(7))
        self.assertGreater(len({draw(s) for s in range(6)}), 1)

    def test_requests_together_answer_as_alone(self):
        from concurrent.futures import ThreadPoolExecutor
        prompts = [PROMPT.replace("4711", str(1000 + i)) for i in range(8)]
        alone = [self.d.complete(p, max_tokens=16)["choices"][0]["text"] for p in prompts]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda p: self.d.complete(p, max_tokens=16)["choices"][0]["text"], prompts))
        self.assertEqual(alone, together)

    def test_a_deadline_that_cannot_be_met_is_refused(self):
        status, e = self.d.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "kvasir": {"deadline_ms": 1}})
        self.assertEqual((status, e["error"]["code"]), (504, "DEADLINE"))


if __name__ == "__main__":
    unittest.main()
