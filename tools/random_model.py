#!/usr/bin/env python3
"""Writes a GGUF of a given architecture and shape with random weights: for measurements and tests, where what it says does not matter.

Usage: tools/random_model.py --shape 135m|1b|tiny --type q8_0|f16|f32 --out FILE.gguf [--architecture A] [--vocab OTHER.gguf] [--context N]
The vocabulary is copied from OTHER.gguf (say SmolLM2's, 49,152 tokens); without it a SentencePiece one is made up, valid for
other engines as well. Needs nothing but Python. Equal arguments give equal files.
"""
import argparse
import random
import struct
import sys

SHAPES = {  # layers, width, query heads, K/V heads, head width, feed-forward width
    "135m": (30, 576, 9, 3, 64, 1536),
    "1b": (16, 2048, 32, 8, 64, 8192),
    "tiny": (4, 64, 4, 2, 16, 96),
}
VOCABULARY = {"135m": 49152, "1b": 49152, "tiny": 320}
ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3", "granite")
GRANITE_SCALES = {"embedding_scale": 12, "residual_scale": 0.25, "attention.scale": 0.0625, "logit_scale": 8}
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TYPE_F32, TYPE_F16, TYPE_Q8_0 = 0, 1, 8
ALIGNMENT = 32


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def value(key, kind, packed):
    return text(key) + struct.pack("<I", kind) + packed


def array(key, kind, items):
    return value(key, ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def value_end(data, at, kind):
    """Where the value of this kind at `at` ends."""
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != ARRAY:
        return at + SIZES[kind]
    kind, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind != STRING:
        return at + n * SIZES[kind]
    for _ in range(n):
        at = value_end(data, at, STRING)
    return at


def copied_vocab(path):
    """Every tokenizer value of another file, as it stands there, and the number of tokens."""
    with open(path, "rb") as f:
        data = f.read(64 << 20)
    if data[:4] != b"GGUF":
        sys.exit(f"{path} is not a GGUF file")
    (n_values,) = struct.unpack_from("<Q", data, 16)
    at, out, n_tokens = 24, [], 0
    for _ in range(n_values):
        start, (n,) = at, struct.unpack_from("<Q", data, at)
        key = data[at + 8:at + 8 + n].decode()
        (kind,) = struct.unpack_from("<I", data, at + 8 + n)
        at = value_end(data, at + 12 + n, kind)
        if key.startswith("tokenizer."):
            out.append(data[start:at])
        if key == "tokenizer.ggml.tokens":
            n_tokens = struct.unpack_from("<Q", data, start + 8 + n + 8)[0]
    if not n_tokens:
        sys.exit(f"{path} holds no vocabulary")
    return out, n_tokens


def made_up_vocab(n):
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + ["\u2581"]
    tokens += ["\u2581w%d" % i for i in range(n - len(tokens))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (n - 259)
    return [
        value("tokenizer.ggml.model", STRING, text("llama")),
        value("tokenizer.ggml.pre", STRING, text("default")),
        array("tokenizer.ggml.tokens", STRING, [text(t) for t in tokens]),
        array("tokenizer.ggml.scores", F32, [struct.pack("<f", -i) for i in range(n)]),
        array("tokenizer.ggml.token_type", 5, [struct.pack("<i", k) for k in kinds]),
        value("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 1)),
        value("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 2)),
        value("tokenizer.ggml.unknown_token_id", U32, struct.pack("<I", 0)),
    ], n


def row_bytes(kind, cols):
    return {TYPE_F32: 4 * cols, TYPE_F16: 2 * cols, TYPE_Q8_0: cols // 32 * 34}[kind]


def weight_pool(kind, r):
    """Some MiB of random weights with a deviation near 0.02, of which tensors are made by repetition."""
    if kind == TYPE_Q8_0:
        scale = struct.pack("<H", 0x0C00)  # 2^-12
        return b"".join(scale + r.randbytes(32) for _ in range(1 << 17))
    if kind == TYPE_F32:
        return b"".join(struct.pack("<f", r.uniform(-0.1, 0.1)) for _ in range(1 << 18))
    n = 4 << 20
    bits = int.from_bytes(r.randbytes(n), "little")
    sign_and_fraction = int.from_bytes(b"\xff\x83" * (n // 2), "little")
    exponent = int.from_bytes(b"\x00\x20" * (n // 2), "little")  # magnitudes 2^-7 to 2^-6
    return (bits & sign_and_fraction | exponent).to_bytes(n, "little")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--shape", choices=SHAPES, required=True)
    ap.add_argument("--type", choices=("q8_0", "f16", "f32"), required=True)
    ap.add_argument("--architecture", choices=ARCHITECTURES, default="llama")
    ap.add_argument("--out", required=True)
    ap.add_argument("--vocab")
    ap.add_argument("--context", type=int, default=40960)
    a = ap.parse_args()
    layers, width, q_heads, kv_heads, d_head, ff = SHAPES[a.shape]
    vocab, n_vocab = copied_vocab(a.vocab) if a.vocab else made_up_vocab(VOCABULARY[a.shape])
    kind = {"q8_0": TYPE_Q8_0, "f16": TYPE_F16, "f32": TYPE_F32}[a.type]
    arch = a.architecture
    numbers = {"block_count": layers, "context_length": a.context, "embedding_length": width, "feed_forward_length": ff,
               "attention.head_count": q_heads, "attention.head_count_kv": kv_heads, "attention.key_length": d_head,
               "attention.value_length": d_head, "rope.dimension_count": d_head, "vocab_size": n_vocab}
    values = [value("general.architecture", STRING, text(arch)), value("general.name", STRING, text(f"random-{arch}-{a.shape}-{a.type}")),
              value("general.file_type", U32, struct.pack("<I", {TYPE_Q8_0: 7, TYPE_F16: 1, TYPE_F32: 0}[kind])),
              value("general.quantization_version", U32, struct.pack("<I", 2)),
              value(arch + ".rope.freq_base", F32, struct.pack("<f", 100000)),
              value(arch + ".attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5))]
    if arch == "granite":
        values += [value(f"granite.{k}", F32, struct.pack("<f", v)) for k, v in GRANITE_SCALES.items()]
    values += [value(f"{arch}.{k}", U32, struct.pack("<I", v)) for k, v in numbers.items()] + vocab
    tensors = [("token_embd.weight", kind, (width, n_vocab)), ("output_norm.weight", TYPE_F32, (width,))]
    for i in range(layers):
        for name, shape in (("attn_norm", (width,)), ("attn_q", (width, q_heads * d_head)), ("attn_k", (width, kv_heads * d_head)),
                            ("attn_v", (width, kv_heads * d_head)), ("attn_output", (q_heads * d_head, width)), ("ffn_norm", (width,)),
                            ("ffn_gate", (width, ff)), ("ffn_up", (width, ff)), ("ffn_down", (ff, width))):
            tensors.append((f"blk.{i}.{name}.weight", kind if len(shape) == 2 else TYPE_F32, shape))
        if arch == "qwen2":
            tensors += [(f"blk.{i}.attn_{c}.bias", TYPE_F32, (n * d_head,)) for c, n in (("q", q_heads), ("k", kv_heads), ("v", kv_heads))]
        if arch == "qwen3":
            tensors += [(f"blk.{i}.attn_{c}_norm.weight", TYPE_F32, (d_head,)) for c in "qk"]
    infos, at = [], 0
    for name, t, shape in tensors:
        infos.append(text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, t, at))
        at += -(-(row_bytes(t, shape[0]) * (shape[1] if len(shape) == 2 else 1)) // ALIGNMENT) * ALIGNMENT
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + b"".join(infos)
    r = random.Random(1)
    pool = weight_pool(kind, r)
    unit = {TYPE_Q8_0: 34, TYPE_F16: 2, TYPE_F32: 4}[kind]
    with open(a.out, "wb") as f:
        f.write(header + bytes(-len(header) % ALIGNMENT))
        for name, t, shape in tensors:
            left = n = row_bytes(t, shape[0]) * (shape[1] if len(shape) == 2 else 1)
            if len(shape) == 1:  # norms and biases
                f.write(b"".join(struct.pack("<f", r.uniform(0.9, 1.1) - name.endswith(".bias")) for _ in range(shape[0])))
                left = 0
            start = r.randrange(len(pool) // unit) * unit
            while left:
                take = min(left, len(pool) - start)
                f.write(pool[start:start + take])
                left -= take
                start = 0
            f.write(bytes(-n % ALIGNMENT))


if __name__ == "__main__":
    main()
