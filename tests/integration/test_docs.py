"""Every command in a ```sh block of the README and the operators' pages runs, in order, as written, against a live daemon.

Blocks marked text are what a test cannot run inside itself (make run, make check) or what only illustrates. Links between pages lead to files."""
import glob
import os
import re
import subprocess
import tempfile
import unittest

from tests.integration import support

PAGES = [os.path.join(support.ROOT, "README.md"), *sorted(glob.glob(os.path.join(support.ROOT, "docs", "*", "*.md")))]


def blocks(path):
    with open(path, encoding="utf-8") as f:
        return re.findall(r"^```sh\n(.*?)^```", f.read(), re.M | re.S)


class DocsTest(unittest.TestCase):
    def run_page(self, path):
        script = "\n".join(blocks(path))
        if not script:
            return
        with support.Daemon() as d, tempfile.TemporaryDirectory() as home:
            if not re.search("rollout (apply|create)", script):
                d.post("/api/v1/rollouts", {"name": "before-reading", "pipeline": "layerwise", "contract": "exact"})
            env = support.environment(KVASIR_URL=d.url, HOME=home, PATH=support.BUILD + ":" + os.environ["PATH"], B=support.BUILD)
            script = script.replace("http://127.0.0.1:7070", d.url).replace("build/", support.BUILD + "/").replace("/tmp/kvasir-", home + "/kvasir-")
            p = subprocess.run(["bash", "-e", "-x", "-o", "pipefail", "-c", script], cwd=support.ROOT, env=env, capture_output=True, text=True, timeout=240)
            self.assertEqual(p.returncode, 0, f"{os.path.relpath(path, support.ROOT)}:\n{p.stdout[-1500:]}\n{p.stderr[-3000:]}")

    def test_commands_run_or_say_that_they_do_not(self):
        for page in PAGES:
            with open(page, encoding="utf-8") as f:
                for language, body in re.findall(r"^```(\w*)\n(.*?)^```", f.read(), re.M | re.S):
                    if re.search(r"^(kvasird?|curl|make) ", body, re.M):
                        self.assertIn(language, ("sh", "text"), f"{page}: {body[:80]}")

    def test_links_lead_to_files(self):
        for page in PAGES:
            with open(page, encoding="utf-8") as f:
                for target in re.findall(r"\]\(([^)#]+)[^)]*\)", f.read()):
                    if not re.match(r"[a-z]+:", target):
                        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(page), target)), f"{page} links to {target}")

    def test_the_api_page_and_the_routes_are_the_same(self):
        with support.Daemon() as d:
            paths = d.get("/api/v1/openapi.json")[1]["paths"]
        routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
        with open(os.path.join(support.ROOT, "docs", "developers", "api.md"), encoding="utf-8") as f:
            named = set(re.findall(r"`(GET|POST|PUT|DELETE) (/[^\s`?]+)", f.read()))

        def route_of(method, path):
            """As the server does it: a part as written goes before a part that holds anything."""
            fits = [t for m, t in routes if m == method and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(t)), path)]
            return (method, min(fits, key=lambda t: t.count("{"))) if fits else None

        self.assertEqual([n for n in sorted(named) if not route_of(*n)], [], "in docs/developers/api.md without a route")
        self.assertEqual(sorted(routes - {route_of(*n) for n in named}), [], "routes that docs/developers/api.md lacks")

    def test_every_command_is_on_a_page(self):
        with open(os.path.join(support.ROOT, "console", "commands.def"), encoding="utf-8") as f:
            commands = set(re.findall(r"^KV_COMMAND\((\w+),", f.read(), re.M))
        self.assertGreater(len(commands), 20)
        named = set()
        for page in PAGES:
            with open(page, encoding="utf-8") as f:
                named.update(re.findall(r"\bkvasir ([a-z]+)", f.read()))
        self.assertEqual(sorted(commands - named), [])

    def test_reason_codes_have_the_status_and_meaning_of_the_program(self):
        def read(*path):
            with open(os.path.join(support.ROOT, *path), encoding="utf-8") as f:
                return f.read()

        codes = {c: (http, meaning) for c, http, meaning in re.findall(r'^KV_STATUS\((\w+), \w+, (\d+), "(.*)"\)', read("runtime", "status.def"), re.M)}
        told = re.findall(r"^\| `(\w+)` \| (\d+) \| (.*?) \|", read("docs", "operators", "failures.md"), re.M)
        self.assertGreater(len(told), 60)
        for code, *rest in told:
            self.assertEqual(tuple(rest), codes.get(code), code)


def page_test(path):
    return lambda self: self.run_page(path)


for _page in PAGES:
    if blocks(_page):
        _name = re.sub(r"\W+", "_", os.path.relpath(_page, support.ROOT).removesuffix(".md"))
        setattr(DocsTest, f"test_commands_of_{_name}", page_test(_page))

# Parts that no path of the daemon reaches: fixtures, the planner, comparisons whose field is not told, copies between tiers of one process.
OFFLINE = ("fixture", "planner", "simulate", "identity/identity.c", "identity/receipt.c", "residency/directory_move.c", "evaluate/lab.c", "status.", ".def")


class ReasonsTest(unittest.TestCase):
    def test_every_code_is_listed_where_it_comes_from(self):
        """A code in the tables is built outside fixtures; one in the lab's list is not; every code is in one of them."""
        root = support.ROOT
        with open(os.path.join(root, "runtime", "status.def"), encoding="utf-8") as f:
            known = set(re.findall(r"^KV_STATUS\((\w+)", f.read(), re.M)) - {"OK"}
        with open(os.path.join(root, "docs", "operators", "failures.md"), encoding="utf-8") as f:
            tables, lab = f.read().split("## Reason codes")[1].split("## Codes of the lab")
        names = lambda text: set(re.findall(r"`([A-Z][A-Z0-9_]+)`", text))
        produced, offline = set().union(*(names(row) for row in re.findall(r"^\|(.*?)\|", tables, re.M))), names(lab)
        built = set()
        for part in ("runtime", "controller"):
            for path in glob.glob(os.path.join(root, part, "**", "*.c"), recursive=True):
                if not any(o in path for o in OFFLINE):
                    with open(path, encoding="utf-8") as f:
                        built |= set(re.findall(r"\bKV_([A-Z0-9_]+)\b", re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)))
        self.assertEqual(produced - built, set(), "listed as produced, built nowhere outside fixtures")
        self.assertEqual(offline & built, set(), "listed as the lab's, built outside fixtures")
        self.assertEqual(known - produced - offline, set(), "listed nowhere")
        self.assertEqual((produced | offline) - known, set(), "no such code")
        self.assertFalse(produced & offline)


if __name__ == "__main__":
    unittest.main()
