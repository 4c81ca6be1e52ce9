"""The self-test's bytes are the same from gcc and clang, at -O2 and -O3, with and without FMA in the scalar code, on every
instruction set of this machine: the numerics_id belongs to the definition and not to a build. (gcc -O3 is the product's own
build, whose bytes the unit tests pin.)"""
import glob
import os
import platform
import shutil
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-I" + ROOT]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"]
MAIN = """
#include <stdio.h>
#include "kernels/scalar/scalar.h"
int main(int argc, char **argv)
{
    static unsigned char bytes[KV_SELFTEST_BYTES];
    const struct kv_kernels *k = argc < 2 ? &kv_scalar_kernels : LOOKUP(argv[1]);
    if (!k) return 3;
    return fwrite(bytes, 1, kv_numerics_selftest(k, bytes, sizeof bytes), stdout) ? 0 : 1;
}
"""


class Compilers(unittest.TestCase):
    def sources(self, everything):
        found = glob.glob(ROOT + "/kernels/*.c") + glob.glob(ROOT + "/kernels/scalar/*.c")
        if everything and platform.machine() == "x86_64":
            found += glob.glob(ROOT + "/kernels/x86/*.c")
        return sorted(f for f in found if everything or not f.endswith(("select.c", "digest.c")))

    def build(self, folder, compiler, opt, scalar_flags=(), everything=True, source_edit=None):
        """One program, of all tables or of the scalar one alone; source_edit(path, text) may change a source before it is compiled."""
        os.makedirs(folder)
        main = os.path.join(folder, "main.c")
        with open(main, "w") as f:
            f.write(MAIN)

        def compile_one(path):
            name = os.path.basename(path)
            flags = AVX512 if name.startswith("avx512") else AVX2 if name.startswith("avx2") else list(scalar_flags)
            if source_edit and path != main:
                with open(path) as f:
                    text = f.read()
                edited = source_edit(path, text)
                if edited != text:
                    path = os.path.join(folder, name)
                    with open(path, "w") as f:
                        f.write(edited)
            out = os.path.join(folder, os.path.relpath(path, "/").replace("/", "_") + ".o")
            subprocess.run([compiler, *FLAGS, opt, *flags, "-DLOOKUP=" + ("kv_kernels_for" if everything else "(void *)"), "-c", path, "-o", out], check=True)
            return out

        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(compile_one, [main] + self.sources(everything)))
        program = os.path.join(folder, "selftest")
        subprocess.run([compiler, *objects, "-o", program], check=True)
        return program

    def run_isa(self, program, isa=None):
        r = subprocess.run([program] + ([isa] if isa else []), stdout=subprocess.PIPE, timeout=60)
        return None if r.returncode == 3 else (self.assertEqual(r.returncode, 0), r.stdout)[1]

    def test_every_build_gives_the_same_bytes(self):
        builds = [("gcc", "-O2", ("-mfma",)), ("clang", "-O2", ("-mfma",)), ("clang", "-O3", ())]
        if platform.machine() != "x86_64":
            builds = [(c, o, ()) for c, o, _ in builds]
        for compiler in ("gcc", "clang"):
            self.assertTrue(shutil.which(compiler), compiler + " is missing: run make deps")
        want = None
        with tempfile.TemporaryDirectory() as folder:
            for i, (compiler, opt, scalar_flags) in enumerate(builds):
                program = self.build(os.path.join(folder, str(i)), compiler, opt, scalar_flags)
                for isa in ("scalar", "avx2", "avx512"):
                    got = self.run_isa(program, isa)
                    if got is None:
                        continue
                    want = want or got
                    self.assertEqual(want, got, f"{compiler} {opt} {scalar_flags}: {isa} differs")
            self.assertGreater(len(want), 10000)

    def test_another_order_gives_other_bytes(self):
        """The comparison can fail: the tree adds neighbours first instead of halves."""
        def reorder(path, text):
            if os.path.basename(path) != "products.c":
                return text
            self.assertIn("kv_tree(lane)", text)
            swap = "(kv_float_swap(lane), kv_tree(lane))"
            define = ("static void kv_float_swap(float *l) { float t[16]; for (int i = 0; i < 16; i++) t[i] = l[i / 8 + 2 * (i % 8)];"
                      " for (int i = 0; i < 16; i++) l[i] = t[i]; }\n")
            at = text.index("static float float_at")
            return text[:at] + define + text[at:].replace("kv_tree(lane)", swap)

        with tempfile.TemporaryDirectory() as folder:
            right = self.build(os.path.join(folder, "right"), "gcc", "-O2", everything=False)
            wrong = self.build(os.path.join(folder, "wrong"), "gcc", "-O2", everything=False, source_edit=reorder)
            self.assertNotEqual(self.run_isa(right), self.run_isa(wrong))

    def test_kernels_are_built_at_the_level_meant(self):
        """Without unrolling a tile's sums lie in memory, and prefill takes three times as long; nothing else would tell."""
        for given, level in ((["OPT=-O2"], "-O3"), (["SAN=-fsanitize=address", "OPT=-O1"], "-O1")):
            with tempfile.TemporaryDirectory() as folder:
                out = f"{folder}/kernels/scalar/pack.o"
                r = subprocess.run(["make", "-n", f"B={folder}", "V=1", *given, out], cwd=ROOT, capture_output=True, text=True, timeout=120)
            compiles = [line.split() for line in r.stdout.splitlines() if "-c kernels/scalar/pack.c" in line]
            self.assertEqual([[w for w in line if w.startswith("-O")] for line in compiles], [[level]], r.stdout + r.stderr)


if __name__ == "__main__":
    unittest.main()
