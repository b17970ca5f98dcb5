"""``make audit``: vulnerabilities are named with their remedy, and packages that could not be checked are not called sound.

The tools themselves ask the network, so stand-ins answer here what the real ones answer.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SOUND = {"name": "sound", "version": "1.0", "vulns": []}
FLAW = {"id": "PYSEC-2030-1", "fix_versions": ["2.1"], "aliases": [], "description": ""}
BROKEN = {"name": "broken", "version": "2.0", "vulns": [FLAW]}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}


def run_audit(directory: Path, *packages: dict[str, Any], flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    answers = {
        "pip-audit": f"print({json.dumps({'dependencies': packages})!r})",
        "cyclonedx-py": "import sys; open(sys.argv[sys.argv.index('--output-file') + 1], 'w').write('{\"components\": [{}]}')",
    }
    for name, code in answers.items():
        tool = directory / name
        tool.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
        tool.chmod(0o700)
    command = [
        sys.executable,
        str(ROOT / "deploy/audit.py"),
        "--tools",
        str(directory),
        "--sbom",
        str(directory / "out"),
        *flags,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_vulnerability_is_named_with_its_remedy(tmp_path: Path) -> None:
    done = run_audit(tmp_path, SOUND, BROKEN)
    assert done.returncode == 1
    assert "requirements/runtime.lock: 2 packages, 2 checked, 1 known vulnerabilities" in done.stdout
    assert "broken 2.0: PYSEC-2030-1, mended in 2.1. Run: make lock" in done.stdout
    assert "could not be checked" not in done.stdout
    assert "penstock.cdx.json: 1 components" in done.stdout


def test_packages_without_advisories_are_not_called_sound(tmp_path: Path) -> None:
    done = run_audit(tmp_path, SOUND, UNKNOWN)
    assert done.returncode == 0
    assert "2 packages, 1 checked, 0 known vulnerabilities" in done.stdout
    assert "1 packages could not be checked" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("NOT CHECKED: 2 packages."), "one of each lock file"
    assert run_audit(tmp_path, SOUND, UNKNOWN, flags=("--strict",)).returncode == 3
    assert run_audit(tmp_path, SOUND, flags=("--strict",)).returncode == 0
    assert run_audit(tmp_path, BROKEN, UNKNOWN, flags=("--strict",)).returncode == 1


def test_the_tools_are_pinned_with_hashes() -> None:
    locked = (ROOT / "requirements" / "audit.lock").read_text(encoding="utf-8")
    for line in (ROOT / "requirements" / "audit.in").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            assert re.search(rf"^{line.split()[0]}==\S+ \\\n    --hash=sha256:", locked, re.MULTILINE), line
