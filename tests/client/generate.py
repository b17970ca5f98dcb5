"""Makes the synchronous client from the asynchronous one, word by word: ``make sdk``. A test says when that was forgotten."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "src" / "penstock" / "client"

HEAD: Final = "# Made from _async/{name} by make sdk. Change that one.\n"
WORDS: Final = (
    (r"The asynchronous client\. .*; change this one\.", "The synchronous client."),
    (r"\basync def\b", "def"),
    (r"\basync (with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\baclose\b", "close"),
    (r"\baread\b", "read"),
    (r"\baiter_lines\b", "iter_lines"),
    (r"\b_async\b", "_sync"),
    (r"\bimport pause\b", "import block"),
    (r"(?<!\.)(?<!def )\bpause\(", "block("),
    (r"\bAsync([A-Z]\w+)", r"\1"),
    (r"  # noqa: ASYNC109, .*$", ""),
)  # fmt: skip


def synchronous(name: str, text: str) -> str:
    """Return a module of the synchronous client."""
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    ruff = [str(Path(sys.executable).parent / "ruff")]
    text = HEAD.format(name=name) + text
    for step in (["check", "--quiet", "--select=I", "--fix"], ["format", "--quiet"]):
        command = [*ruff, *step, "--stdin-filename", str(CLIENT / "_sync" / name), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def modules() -> dict[Path, str]:
    """Return what the modules of the synchronous client must be, by their paths."""
    return {
        CLIENT / "_sync" / source.name: synchronous(source.name, source.read_text(encoding="utf-8"))
        for source in sorted((CLIENT / "_async").glob("*.py"))
    }


if __name__ == "__main__":
    for source in (CLIENT / "_async").glob("*.py"):
        (CLIENT / "_sync" / source.name).touch()  # what exists is known to be ours, when imports are sorted
    for path, text in modules().items():
        path.write_text(text, encoding="utf-8")
