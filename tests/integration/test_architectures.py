"""Every architecture against a plain forward pass in double precision, written here from its definition, on small random F32 models.

The engine keeps K/V rows in half precision: the five best log-probabilities must agree within 2e-3."""
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KVASIR = os.path.join(ROOT, os.environ.get("KVASIR_BUILD", "build"), "kvasir")
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Model:
    """Metadata and F32 tensors of a GGUF file, as lists of rows."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 8
        n_tensors, n_values = self.take("Q"), self.take("Q")
        self.meta = {}
        for _ in range(n_values):
            key = self.text()
            self.meta[key] = self.value(self.take("I"))
        infos = []
        for _ in range(n_tensors):
            name = self.text()
            dims = [self.take("Q") for _ in range(self.take("I"))]
            assert self.take("I") == 0, "F32 only"
            infos.append((name, dims, self.take("Q")))
        base = -(-self.at // 32) * 32
        self.tensors = {}
        for name, dims, offset in infos:
            n = math.prod(dims)
            flat = struct.unpack_from("<%df" % n, self.data, base + offset)
            self.tensors[name] = flat if len(dims) == 1 else [flat[i:i + dims[0]] for i in range(0, n, dims[0])]

    def take(self, code):
        (v,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return v

    def text(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(n)]
        return self.take(SCALARS[kind])


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def times(matrix, x):
    return [dot(row, x) for row in matrix]


def norm(x, weight, eps):
    scale = 1 / math.sqrt(dot(x, x) / len(x) + eps)
    return [v * scale * w for v, w in zip(x, weight)]


def rotate(head, position, base, neox):
    d, out = len(head), list(head)
    for i in range(d // 2):
        a, b = (i, i + d // 2) if neox else (2 * i, 2 * i + 1)
        angle = position * base ** (-2 * i / d)
        out[a] = head[a] * math.cos(angle) - head[b] * math.sin(angle)
        out[b] = head[a] * math.sin(angle) + head[b] * math.cos(angle)
    return out


def logprobs(m, ids):
    """Log-probabilities of what follows ids."""
    arch = m.meta["general.architecture"]
    get = lambda key, default=None: m.meta.get(f"{arch}.{key}", default)
    layers, hq, hk, d = get("block_count"), get("attention.head_count"), get("attention.head_count_kv"), get("attention.key_length")
    eps, base, w = get("attention.layer_norm_rms_epsilon"), get("rope.freq_base"), m.tensors
    neox, scale, residual = arch.startswith("qwen"), get("attention.scale", d ** -0.5), get("residual_scale", 1)
    keys, values = [[[] for _ in range(hk)] for _ in range(layers)], [[[] for _ in range(hk)] for _ in range(layers)]

    def heads(x, layer, letter, n, position):
        y = times(w[f"blk.{layer}.attn_{letter}.weight"], x)
        bias = w.get(f"blk.{layer}.attn_{letter}.bias")
        if bias:
            y = [a + b for a, b in zip(y, bias)]
        y = [y[i * d:(i + 1) * d] for i in range(n)]
        if letter == "v":
            return y
        weight = w.get(f"blk.{layer}.attn_{letter}_norm.weight")
        if weight:
            y = [norm(h, weight, eps) for h in y]
        if arch == "smollm3" and (layer + 1) % 4 == 0:
            return y
        return [rotate(h, position, base, neox) for h in y]

    for position, token in enumerate(ids):
        x = [v * get("embedding_scale", 1) for v in w["token_embd.weight"][token]]
        for l in range(layers):
            h = norm(x, w[f"blk.{l}.attn_norm.weight"], eps)
            for j, (k, v) in enumerate(zip(heads(h, l, "k", hk, position), heads(h, l, "v", hk, position))):
                keys[l][j].append(k)
                values[l][j].append(v)
            out = []
            for i, q in enumerate(heads(h, l, "q", hq, position)):
                j = i // (hq // hk)
                p = [math.exp(scale * dot(q, k)) for k in keys[l][j]]
                out += [dot(p, column) / sum(p) for column in zip(*values[l][j])]
            x = [a + residual * b for a, b in zip(x, times(w[f"blk.{l}.attn_output.weight"], out))]
            h = norm(x, w[f"blk.{l}.ffn_norm.weight"], eps)
            g = [a / (1 + math.exp(-a)) * b for a, b in zip(times(w[f"blk.{l}.ffn_gate.weight"], h), times(w[f"blk.{l}.ffn_up.weight"], h))]
            x = [a + residual * b for a, b in zip(x, times(w[f"blk.{l}.ffn_down.weight"], g))]
    z = [v / get("logit_scale", 1) for v in times(w.get("output.weight", w["token_embd.weight"]), norm(x, w["output_norm.weight"], eps))]
    total = math.log(sum(math.exp(v) for v in z))
    return [v - total for v in z]


class Architectures(unittest.TestCase):
    def check(self, arch):
        with tempfile.TemporaryDirectory() as folder:
            model, prompts = os.path.join(folder, "m.gguf"), os.path.join(folder, "p.json")
            subprocess.run([sys.executable, os.path.join(ROOT, "tools", "random_model.py"), "--shape", "tiny", "--type", "f32", "--architecture", arch, "--out", model], check=True)
            ids = random.Random(arch).choices(range(320), k=20)
            with open(prompts, "w") as f:
                json.dump([{"ids": ids, "steps": 1}], f)
            p = subprocess.run([KVASIR, "generate", "--model", model, "--prompts", prompts, "--json"], capture_output=True, text=True, timeout=60)
            self.assertEqual(p.returncode, 0, p.stderr)
            top, want = json.loads(p.stdout)[0]["top"][0], logprobs(Model(model), ids)
        self.assertEqual(len(top), 5)
        for token, logprob in top:
            self.assertAlmostEqual(logprob, want[token], delta=2e-3)
        self.assertEqual(top[0][0], max(range(320), key=lambda i: want[i]))

    def test_llama(self):
        self.check("llama")

    def test_qwen2(self):
        self.check("qwen2")

    def test_qwen3(self):
        self.check("qwen3")

    def test_smollm3(self):
        self.check("smollm3")

    def test_granite(self):
        self.check("granite")


if __name__ == "__main__":
    unittest.main()
