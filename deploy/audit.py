"""``make audit``: known vulnerabilities of what Penstock installs, and a bill of materials (SBOM) in the format CycloneDX.

Advisories come from the package index. Where they cannot be had, the last line says that packages were NOT CHECKED, and the
bill of materials is written all the same. The exit code is 1 if a vulnerability is known, 0 otherwise; with --strict, it is 3
if none is known and packages were not checked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements/runtime.lock", "requirements/build.lock")
SBOM = "penstock.cdx.json"
#: Seconds that the index of advisories may take to answer for one package.
TIMEOUT_S = 10
#: The exit code with --strict if packages could not be checked.
UNCHECKED = 3


def audit(tools: Path, lock: str) -> list[dict[str, Any]]:
    """Return what is known of the packages of a lock file: their names, versions and vulnerabilities, or why not."""
    command = [
        str(tools / "pip-audit"), "--disable-pip", "--require-hashes", "--requirement", lock, "--format", "json",
        "--progress-spinner", "off", "--timeout", str(TIMEOUT_S),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        sys.exit(f"pip-audit failed for {lock}:\n{done.stderr}")
    return found


def report(lock: str, packages: list[dict[str, Any]]) -> tuple[int, int]:
    """Print what is known of a lock file. Return how many vulnerabilities that is, and how many packages were not checked."""
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    known = [(each, flaw) for each in packages for flaw in each.get("vulns", ())]
    print(f"{lock}: {len(packages)} packages, {len(packages) - len(unknown)} checked, {len(known)} known vulnerabilities")
    for package, flaw in known:
        fixed = ", ".join(flaw["fix_versions"]) or "no version"
        print(f"  {package['name']} {package['version']}: {flaw['id']}, mended in {fixed}. Run: make lock")
    if unknown:
        print(f"  {len(unknown)} packages could not be checked, because no advisories can be had for them here.")
    return len(known), len(unknown)


def write_sbom(tools: Path, directory: Path) -> Path:
    """Write the bill of materials of what the server installs, and return its path. The same lock file gives the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / SBOM
    subprocess.run(
        [
            str(tools / "cyclonedx-py"), "requirements", LOCKS[0], "--pyproject", "pyproject.toml",
            "--output-reproducible", "--output-file", str(target),
        ],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return target


def main() -> None:
    """Check the lock files, and write the bill of materials."""
    parser = argparse.ArgumentParser(prog="deploy/audit.py", description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="the directory with pip-audit and cyclonedx-py")
    parser.add_argument("--sbom", type=Path, default=ROOT / "dist", help="where the bill of materials goes (dist)")
    parser.add_argument("--strict", action="store_true", help="fail if packages could not be checked")
    options = parser.parse_args()
    tools = options.tools.absolute()
    flaws, unchecked = map(sum, zip(*(report(lock, audit(tools, lock)) for lock in LOCKS), strict=True))
    sbom = write_sbom(tools, options.sbom.absolute())
    parts = len(json.loads(sbom.read_bytes())["components"])
    print(f"{sbom.name}: {parts} components")
    if unchecked:
        print(
            f"NOT CHECKED: {unchecked} packages. This says nothing about them. Run make audit again where the package index "
            "can be reached and has advisories."
        )
    sys.exit(1 if flaws else UNCHECKED if unchecked and options.strict else 0)


if __name__ == "__main__":
    main()
