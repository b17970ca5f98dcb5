"""Moves and renames modules and classes by the tables beside this file: see README.md. One-time use; not part of the product."""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import table_moves as moves  # noqa: E402
from proof import Differs, Proof  # noqa: E402
from rewrite import DOTTED, PATHS, Plan, plan_path, plan_text, rewrite  # noqa: E402

SRC = "src/penstock/"
#: This script: its tables contain the old names and must stay as they are.
OWN = "tools/reorder/"
TEXTS = (".md", ".toml", ".yml", ".yaml", ".cfg", ".ini", ".sh", ".txt", ".mjs", ".js", ".env.example")
PLAIN = ("Makefile", "Dockerfile", ".ci/run")


class Repo:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.load()
        self.first = list(self.python)  # before anything was moved

    def git(self, *args: str) -> str:
        return subprocess.run(["git", *args], cwd=self.root, check=True, capture_output=True, text=True).stdout

    def load(self) -> None:
        listed = self.git("ls-files", "-z").split("\0")
        self.files = [each for each in listed if each and not each.startswith(OWN) and (self.root / each).is_file()]
        self.python = [each for each in self.files if each.endswith(".py")]
        self.modules = {module_of(each): each for each in self.python}
        self.text: dict[str, str] = {each: (self.root / each).read_text(encoding="utf-8") for each in self.python}

    def origins(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Names that a module imports, and may pass on: where each is from."""
        found = {}
        for module, path in self.modules.items():
            for node in ast.walk(ast.parse(self.text[path])):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    for alias in node.names:
                        if node.module in self.modules and f"{node.module}.{alias.name}" not in self.modules:
                            found[module, alias.asname or alias.name] = (node.module, alias.name)
        return found


def module_of(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    if parts[0] == "src":
        parts = parts[1:]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def rows(table: str, prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for line in table.splitlines():
        line = line.partition("#")[0].strip()
        if line:
            old, _, new = line.partition(" -> ")
            found.append((prefix + old.strip(), prefix + new.strip()))
    return found


def moved_files(repo: Repo, table: list[tuple[str, str]], report: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for old, new in table:
        if old.endswith("/"):
            inside = [each for each in repo.files if each.startswith(old)]
            for each in inside:
                found[each] = new + each[len(old) :]
    for old, new in table:
        if not old.endswith("/"):
            if old in repo.files:
                found[old] = new
    for old, new in list(found.items()):
        if old == new:
            del found[old]
        elif new in repo.files and new not in found:
            report.append(f"PROBLEM {old} -> {new}: there is such a file already")
    return found


def text_paths(repo: Repo, files: dict[str, str]) -> dict[str, str]:
    paths: dict[str, str] = {}
    by_name: dict[str, set[str]] = defaultdict(set)
    for path in repo.first:
        if path.startswith(SRC):
            by_name[path.rpartition("/")[2]].add(path)
    for old, new in files.items():
        paths[old] = new
        if old.startswith(SRC):
            a, b = old.removeprefix(SRC), new.removeprefix(SRC)
            paths[a] = b
            paths["penstock/" + a] = "penstock/" + b
            name, its = old.rpartition("/")[2], new.rpartition("/")[2]
            if len(by_name[name]) == 1 and name != its and name not in ("__init__.py",) and "/" in a:
                paths.setdefault(name, its)
    return paths


def groups() -> list[tuple[str, list[tuple[str, str]]]]:
    """The rows of the tables by package, in the order of commits."""
    source = rows(moves.SRC, SRC)
    order = [
        "core",
        "store",
        "engine",
        "access",
        "outbound",
        "bulkwork",
        "lake",
        "doors",
        "client",
        "spark",
        "config",
        "cli",
        "server",
    ]
    found: dict[str, list[tuple[str, str]]] = {each: [] for each in order}
    for old, new in source:
        found[new.removeprefix(SRC).split("/")[0]].append((old, new))
    titles = {"server": "Server: put the composition root and its helpers into a package"}
    out = [
        (titles.get(each, f"{each.capitalize()}: name modules after what they hold"), table)
        for each, table in found.items()
        if table
    ]
    out.append(("Tests: mirror the packages of the source", rows(moves.TESTS)))
    return out


def make_plan(repo: Repo, files: dict[str, str], symbols: dict) -> Plan:
    modules = {module_of(old): module_of(new) for old, new in files.items() if old.endswith(".py")}
    plan = Plan(
        modules={k: v for k, v in modules.items() if k != v},
        symbols=symbols,
        known=set(repo.modules) | packages(repo.python),
    )
    plan.origins = repo.origins()
    plan.paths = text_paths(repo, files)
    plan.aliases = getattr(moves, "ALIASES", {})
    return plan


def packages(python: list[str]) -> set[str]:
    found = set()
    for path in python:
        parts = module_of(path).split(".")
        for n in range(1, len(parts)):
            found.add(".".join(parts[:n]))
    return found - {"src"}


def rewrite_text(path: str, text: str, plan: Plan) -> str:
    """Prose and configuration. Blocks of Python in pages are rewritten as Python."""

    def block(match: re.Match[str]) -> str:
        try:
            return match[1] + rewrite(match[2], plan, path, None) + match[3]
        except SyntaxError:
            return match[0]

    if path.endswith(".md"):
        pieces, last = [], 0
        for match in re.finditer(r"(^ *```(?:python|py)[^\n]*\n)(.*?)(^ *```)", text, re.DOTALL | re.MULTILINE):
            pieces += [plan_text(text[last : match.start()], plan, {}), block(match)]
            last = match.end()
        return "".join(pieces) + plan_text(text[last:], plan, {})
    text = DOTTED.sub(lambda m: plan.dotted(m[0]), text)
    return PATHS.sub(lambda m: plan_path(m[0], plan), text)


def deeper(path: str, new: str, text: str) -> str:
    """``Path(__file__).parents[2]`` of a test that is now further down."""
    by = new.count("/") - path.count("/")
    if not by or not path.startswith("tests/"):
        return text
    text = re.sub(r"(Path\(__file__\)(?:\.resolve\(\))?\.parents\[)(\d+)\]", lambda m: f"{m[1]}{int(m[2]) + by}]", text)
    return re.sub(
        r"(Path\(__file__\)(?:\.resolve\(\))?)((?:\.parent){2,})\b(?!s)", lambda m: m[1] + m[2] + ".parent" * by, text
    )


def execute(repo: Repo, files: dict[str, str], symbols: dict, report: list[str], folders: list[tuple[str, str]]) -> Plan:
    plan = make_plan(repo, files, symbols)
    plan.folders = sorted(folders, key=lambda row: -len(row[0]))
    after: dict[str, str] = {}
    for path in repo.python:
        new = rewrite(repo.text[path], plan, path, module_of(path))
        after[path] = deeper(path, files.get(path, path), new)
    for path in repo.files:
        if path.endswith(TEXTS) or path.endswith(PLAIN):
            try:
                text = (repo.root / path).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            new = rewrite_text(path, text, plan)
            if new != text:
                after[path] = new
        elif path.endswith(".ipynb"):
            text = (repo.root / path).read_text(encoding="utf-8")
            new = DOTTED.sub(lambda m: plan.dotted(m[0]), text)
            if new != text:
                after[path] = new
    # The proof, before anything is written.
    allowed = {(a.rpartition(".")[2], b.rpartition(".")[2]) for a, b in plan.modules.items()}
    allowed |= {(name, new) for (_, name), (_, new) in symbols.items()}
    allowed |= set(plan.aliases.items()) | {
        (a.rpartition(".")[2], plan.aliases[b]) for a, b in plan.modules.items() if b in plan.aliases
    }
    checked = Proof(
        plan,
        allowed,
        lambda text: {
            plan_text(text, plan, {}),
            PATHS.sub(lambda m: plan_path(m[0], plan, bare=True), DOTTED.sub(lambda m: plan.dotted(m[0]), text)),
        },
    )
    failures = 0
    for path in repo.python:
        if deeper(path, files.get(path, path), repo.text[path]) != repo.text[path]:
            before = deeper(path, files.get(path, path), repo.text[path])
        else:
            before = repo.text[path]
        try:
            checked.module(before, after[path])
        except Differs as error:
            failures += 1
            report.append(f"PROBLEM {path}: the proof fails at {error}")
    report.append(
        f"proof: {len(repo.python) - failures} of {len(repo.python)} modules are the same but for names of the table"
    )
    for problem in plan.problems:
        report.append(f"PROBLEM {problem}")
    report.extend(f"note {each}" for each in plan.notes)
    # Now write.
    for old, new in files.items():
        (repo.root / new).parent.mkdir(parents=True, exist_ok=True)
    for old, new in files.items():
        repo.git("mv", old, new)
    for path, text in after.items():
        target = repo.root / files.get(path, path)
        if target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
    return plan


def make_packages(repo: Repo, files: dict[str, str]) -> None:
    for new in set(files.values()):
        if not new.endswith(".py"):
            continue
        folder = Path(new).parent
        while folder.as_posix() not in ("src", "tests", "."):
            init = repo.root / folder / "__init__.py"
            if not init.exists():
                inside = folder.as_posix().removeprefix(SRC)
                text = f'"""{moves.PACKAGES[inside]}"""\n' if new.startswith(SRC) else ""
                init.write_text(text, encoding="utf-8")
                repo.git("add", init.relative_to(repo.root).as_posix())
            folder = folder.parent


def literals(repo: Repo, table: list[tuple[str, str, str]], report: list[str], *, late: bool) -> None:
    for path, old, new in table:
        target = repo.root / path
        text = target.read_text(encoding="utf-8") if target.exists() else ""
        if old in text:
            target.write_text(text.replace(old, new), encoding="utf-8")
        elif new not in text and late:
            report.append(f"PROBLEM {path}: no text {old!r}")


def tidy(repo: Repo) -> None:
    ruff = repo.root / ".venv/bin/ruff"
    subprocess.run(
        [ruff, "check", "-q", "--fix", "--unsafe-fixes", "--select", "I,RUF022,TC", "."],
        cwd=repo.root,
        check=False,
        capture_output=True,
    )
    subprocess.run([ruff, "format", "-q", "."], cwd=repo.root, check=False)
    shorten(repo)


def shorten(repo: Repo) -> None:
    """Prose that got too long by a longer name: its last words go to the next line."""
    ruff = repo.root / ".venv/bin/ruff"
    for _ in range(8):
        done = subprocess.run(
            [ruff, "check", "-q", "--select", "E501", "--output-format", "json", "."],
            cwd=repo.root,
            capture_output=True,
            text=True,
            check=False,
        )
        found = defaultdict(set)
        for each in json.loads(done.stdout or "[]"):
            found[each["filename"]].add(each["location"]["row"])
        if not found:
            return
        for name, numbers in found.items():
            lines = Path(name).read_text(encoding="utf-8").split("\n")
            for number in sorted(numbers, reverse=True):
                line = lines[number - 1]
                lead = re.match(r"\s*(?:#:? |\* )?", line)[0]
                if not line.strip().startswith("#") and '"""' not in line and not _in_docstring(lines, number):
                    continue
                head, _, tail = line[:126].rpartition(" ")
                rest = (tail + line[126:]).strip()
                if not head.strip() or '"""' in rest:
                    continue
                lines[number - 1] = head
                following = lines[number] if number < len(lines) else ""
                plain = lead.replace("* ", "  ")
                if (
                    following.strip()
                    and following.startswith(plain)
                    and not following[len(plain) :].startswith((" ", "* ", '"""', "#", "@"))
                    and (plain.strip() or _in_docstring(lines, number))
                ):
                    lines[number] = f"{plain}{rest} {following[len(plain) :]}"
                else:
                    lines.insert(number, plain + rest)
            Path(name).write_text("\n".join(lines), encoding="utf-8")


def _in_docstring(lines: list[str], number: int) -> bool:
    return sum(line.count('"""') for line in lines[: number - 1]) % 2 == 1


def commit(repo: Repo, title: str) -> None:
    repo.git("add", "-A")
    if repo.git("status", "--porcelain"):
        subprocess.run(["git", "commit", "-q", "-m", title], cwd=repo.root, check=True)


def stage_a(repo: Repo, report: list[str], *, commits: bool) -> None:
    stay = {
        SRC + each
        for each in (
            "engine/__init__.py",
            "engine/engine.py",
            "engine/batcher.py",
            "engine/command.py",
            "engine/stats.py",
            "engine/api.py",
            "engine/fair_share.py",
        )
    }
    table = dict(rows(moves.SRC, SRC))
    for path in repo.python:
        if re.fullmatch(SRC + r"(engine/)?\w+\.py", path) and path not in table and path not in stay:
            if path.count("/") > 2:
                report.append(f"NEW {path}: not in the table, stays where it is")
    for old, new in rows(moves.SRC, SRC):
        if not old.endswith("/") and old not in repo.files and new not in repo.files:
            report.append(f"GONE {old}: in the table, not in the tree")
    for title, table_ in groups():
        files = moved_files(repo, table_, report)
        if not files:
            continue
        folders = [(old.rstrip("/"), new.rstrip("/")) for old, new in table_ if old.endswith("/")]
        folders += [(a.removeprefix(SRC), b.removeprefix(SRC)) for a, b in folders if a.startswith(SRC)]
        report.append(f"== {title}: {len(files)} files")
        literals(repo, [row for row in moves.LITERAL if row[0].endswith(".md")], report, late=False)
        execute(repo, files, {}, report, folders)
        repo.load()
        make_packages(repo, files)
        literals(repo, moves.LITERAL, report, late=False)
        tidy(repo)
        if commits:
            commit(repo, title)
        repo.load()
    literals(repo, moves.LITERAL, report, late=True)
    if commits:
        commit(repo, "Configuration: follow the new layout")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(__file__).resolve().parents[2],
        help="the checkout to change; default: the one that holds this script",
    )
    parser.add_argument(
        "--stages", default="ABC", help="A moves modules, B renames classes, C splits and merges modules; default: ABC"
    )
    parser.add_argument("--commit", action="store_true", help="make one commit per package and stage")
    given = parser.parse_args()
    repo = Repo(given.root.resolve())
    report: list[str] = []
    if repo.git("status", "--porcelain"):
        sys.exit("The checkout has changes or files that are not committed.")
    try:
        if "A" in given.stages:
            stage_a(repo, report, commits=given.commit)
        if "B" in given.stages:
            from stage_b import stage_b

            stage_b(repo, report, commits=given.commit)
        if "C" in given.stages:
            from stage_c import stage_c

            stage_c(repo, report, commits=given.commit)
    finally:
        print("\n".join(report))
    if any(each.startswith("PROBLEM") for each in report):
        sys.exit("The report has lines that begin with PROBLEM: look at each of them.")


if __name__ == "__main__":
    main()
