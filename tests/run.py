#!/usr/bin/env python3
"""Runs every test there is and ends with a line for every failure and "N passed, N failed"; exit status 1 if any failed.

Nothing is skipped: what cannot run counts as failed. --sanitized runs unit and integration tests only."""
import argparse
import glob
import os
import re
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "integration"))
from support import mooncake_trace, smollm2


def short(text):
    """One line of a message that may have many, its start and its end."""
    line = " ".join(text.replace(ROOT + os.sep, "").split())
    return line if len(line) <= 400 else f"{line[:250]} … {line[-149:]}"


def place(frames, at):
    """The line of the test itself: first in Python's tracebacks, last in node's stacks, which may go on into the harness or not."""
    ours = [(path, line) for path, line in frames if path.startswith(ROOT + os.sep)]
    return "%s:%s: " % ours[at] if ours else ""


def check_failures(output):
    """Check's own lines: "tests/unit/a/test_b.c:12:F:case:test:0: message"."""
    for where, case, test, loop, message in re.findall(r"^(\S+?:\d+):[FE]:([^:\n]*):([^:\n]+):(-?\d+): (.*)$", output, re.M):
        yield f"{case}/{test}:{loop}", f"{where}: {message}"


def python_failures(output):
    for kind, test, body in re.findall(r"^={70}\n(FAIL|ERROR): (.+)\n(?:.*\n)*?-{70}\n((?:.*\n)*?)(?=\n={70}|\n-{70}|\Z)", output, re.M):
        last = re.search(r"^\S(?:.*\n?)*\Z", re.split(r'^  File ".*\n', body, flags=re.M)[-1], re.M)
        yield f"{kind} {test}", place(re.findall(r'^  File "(.+)", line (\d+)', body, re.M), 0) + (last[0] if last else "")
    for test, why in re.findall(r"^(test\w* \(.+\))(?:\n.*?)? \.\.\. (skipped .*|unexpected success)$", output, re.M):
        yield test, why
    if not re.search(r"^Ran \d+ tests?", output, re.M):
        begun = re.findall(r"^test\w* \(.+\)", output, re.M)
        yield begun[-1] if begun else "no test began", output[-400:]


def node_failures(output):
    for name, about in re.findall(r"^ *not ok \d+ - (.*)\n +---\n((?:.*\n)*?) +\.\.\.$", output, re.M):
        if "failureType: 'subtestsFailed'" in about:
            continue
        error = re.search(r"^( +)error: (?:\|-\n((?:\1 +.*\n|\s*\n)*)|(.*)$)", about, re.M)
        message = (error[2] or error[3].strip("'\"")) if error else ""
        thrown = re.findall(r"^# (\w*Error.*)$", output, re.M) if message == "test failed" else []
        yield name, place(re.findall(r"file://(.+?):(\d+):\d+", about), -1) + (thrown[-1] if thrown else message)
    for name, why in re.findall(r"^ *ok \d+ - (.*) # (SKIP.*|TODO.*)$", output, re.M):
        yield name, why


def whole(output):
    """Of a program that is one test."""
    yield "", output[-400:]


class Tally:
    passed = failed = 0
    one = threading.Lock()

    def __init__(self):
        self.failures = []

    def add(self, name, passed, failed, seconds, output, failures):
        """`failures` finds (test, where and what) in the output: the last lines of a long log name every one."""
        with self.one:
            self.passed += passed
            self.failed += failed
            print(f"{'ok  ' if not failed else 'FAIL'} {name}: {passed} passed, {failed} failed ({seconds:.1f} s)", flush=True)
            if failed:
                print("\n".join("     " + line for line in output.strip().splitlines()[-120:]), flush=True)
                self.failures += [short(f"{name} {test}".rstrip() + f": {what}") for test, what in list(failures(output)) or whole(output)]

    def end(self, start):
        """The last lines and the exit status."""
        print(f"{time.monotonic() - start:.0f} s in all")
        for line in self.failures:
            print(f"FAILED {line}")
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0


def execute(command, env, timeout):
    """(exit status, output, seconds); status None when it ran out of time or could not start."""
    start = time.monotonic()
    try:
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, env=env, timeout=timeout)
        return p.returncode, p.stdout.decode(errors="replace"), time.monotonic() - start
    except subprocess.TimeoutExpired as e:
        return None, (e.stdout or b"").decode(errors="replace") + f"\nran longer than {timeout} s", time.monotonic() - start
    except OSError as e:
        return None, f"{command[0]}: {e}", 0


def unit(tally, build, env):
    """Check's summary: "98%: Checks: 50, Failures: 1, Errors: 0" a suite runner."""
    status, output, seconds = execute([os.path.join(build, "tests", "unit", "unit")], {"CK_DEFAULT_TIMEOUT": "120", **env}, float(env.get("KVASIR_TEST_LIMIT_S", "900")))
    found = re.search(r"Checks: (\d+), Failures: (\d+), Errors: (\d+)", output)
    checks, bad = (int(found[1]), int(found[2]) + int(found[3])) if found else (0, 1)
    if status != 0 and not bad:
        bad = 1
    tally.add("unit", checks - bad if found else 0, bad, seconds, output, check_failures)


def soak(tally, build, env, only, watch_s):
    """The long forms: suites and cases whose length follows the environment. Both consoles are watched while the rest runs, one after the other."""
    unit_tests, integration = os.path.join(build, "tests", "unit", "unit"), os.path.join(ROOT, "tests", "integration")
    unittest, node = [sys.executable, "-m", "unittest", "-v"], ["node", "--test", "--test-reporter=tap"]
    rest = {suite: ([unit_tests], {"CK_RUN_SUITE": suite, "KVASIR_SOAK": "1"}, check_failures) for suite in ("directory_random", "disk_death", "schedules", "crash", "rollback_race")}
    rest |= {"remote-kills": ([*unittest, "test_remote.Remote.test_kill_9_at_every_step"], {"KVASIR_SOAK": "1"}, python_failures),
             "wrong-rows": ([*unittest, "test_sessions.WrongRows"], {"KVASIR_SOAK": "1"}, python_failures),
             "overload": ([*unittest, "test_overload"], {"KVASIR_OVERLOAD_S": "60"}, python_failures)}
    watched = {"console": ([*unittest, "tests.console.test_console.SoakTest"], {"KVASIR_SOAK_S": str(watch_s)}, python_failures),
               "web": ([*node, "tests/web/soak.test.mjs"], {"KVASIR_SOAK_S": str(watch_s)}, node_failures)}

    def run(jobs):
        for name, (command, more, failures) in jobs.items():
            if name.startswith(only):
                status, output, seconds = execute(command, {**env, "PYTHONPATH": integration, **more}, 14400)
                tally.add(f"soak/{name}", int(status == 0), int(status != 0), seconds, output, failures)

    beside = [threading.Thread(target=run, args=({name: job},)) for name, job in watched.items()]
    for t in beside:
        t.start()
    run(rest)
    for t in beside:
        t.join()


def fuzz(tally, build, env):
    for source in sorted(glob.glob(os.path.join(ROOT, "tests", "fuzz", "*.c"))):
        name = os.path.splitext(os.path.basename(source))[0]
        status, output, seconds = execute([os.path.join(build, "fuzz", name)], env, 300)
        tally.add(f"fuzz/{name}", int(status == 0), int(status != 0), seconds, output, whole)


def python(tally, folder, env, without=()):
    """unittest's summary: "Ran 9 tests" and "FAILED (failures=1, errors=2)"; a skipped test did not pass."""
    for path in sorted(glob.glob(os.path.join(ROOT, "tests", folder, "test_*.py"))):
        name = os.path.splitext(os.path.basename(path))[0]
        if name in without:
            continue
        status, output, seconds = execute([sys.executable, "-m", "unittest", "-v", os.path.relpath(path, ROOT)],
                                          {**env, "PYTHONPATH": os.path.join(ROOT, "tests", "integration")}, float(env.get("KVASIR_TEST_LIMIT_S", "900")))
        ran = re.search(r"^Ran (\d+) tests?", output, re.M)
        bad = sum(int(n) for n in re.findall(r"(?:failures|errors|skipped|unexpected successes)=(\d+)", output))
        if not ran or (status != 0 and not bad) or ran[1] == "0":
            bad = max(bad, 1)
        tally.add(f"{folder}/{name}", max(int(ran[1]) - bad, 0) if ran else 0, bad, seconds, output, python_failures)


def web(tally, env):
    files = sorted(os.path.relpath(p, ROOT) for p in glob.glob(os.path.join(ROOT, "tests", "web", "*.test.mjs")))
    if not files:
        return
    status, output, seconds = execute(["node", "--test", "--test-reporter=tap", "--test-concurrency=2", *files], env, 600)
    count = {k: int(n) for k, n in re.findall(r"^# (tests|pass|fail|cancelled|skipped) (\d+)$", output, re.M)}
    passed = count.get("pass", 0)
    bad = count.get("tests", 0) - passed
    if status != 0 and not bad:
        bad = 1
    tally.add("web", passed, bad, seconds, output, node_failures)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--build", default="build")
    p.add_argument("--soak", action="store_true", help="the long forms of the tests that have one")
    p.add_argument("--only", default="", metavar="PREFIX", help="with --soak: one of them (disk, crash, console ...)")
    p.add_argument("--watch-s", type=float, default=1800, metavar="SECONDS", help="with --soak: how long each console is watched")
    p.add_argument("--sanitized", action="store_true", help="unit and integration tests only")
    a = p.parse_args()
    build = os.path.join(ROOT, a.build)
    env = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")} | {"KVASIR_BUILD": a.build}
    for name in ("KVASIR_TEST_MODEL", "KVASIR_ISA"):
        if name in os.environ:
            env[name] = os.environ[name]
    start, tally = time.monotonic(), Tally()
    if a.sanitized:
        # Leaks of libraries' one-time state are not ours; everything else stops the program.
        env.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:quarantine_size_mb=16")  # a test bounds memory
        env.setdefault("LSAN_OPTIONS", "print_suppressions=0")
        env.setdefault("KVASIR_TEST_START_S", "120")
        env.setdefault("KVASIR_TEST_LIMIT_S", "2700")
    print(f"SmolLM2: {smollm2()}", flush=True)
    print(f"Mooncake's trace: {mooncake_trace() or 'not at hand, its test is left out'}", flush=True)
    if a.soak:
        soak(tally, build, env, a.only, a.watch_s)
        return tally.end(start)
    unit(tally, build, env)
    if not a.sanitized:
        fuzz(tally, build, env)
    # These two say nothing more under a sanitizer: one compiles kernels by itself, one scores a model for minutes.
    python(tally, "integration", env, without=("test_numerics_compilers", "test_eval") if a.sanitized else ())
    if not a.sanitized:
        python(tally, "console", env)
        python(tally, "faults", env)
        web(tally, env)
    return tally.end(start)


if __name__ == "__main__":
    sys.exit(main())
