"""bunqueue's npm package, in both versions, call by call against its own server and against ours.

Each script calls every public method of one class, or every command of the command line, and writes what each call answered.
The answers of both servers are compared one by one. What differs is in ``DIFFERENT``, with why; docs/jobs-door.md lists it for
users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.npm.conftest import PACKAGES, Address, Calls, OriginalServer, read_calls, start_script
from tests.npm.different import DIFFERENT, NOT_COMPARED
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS: Final = ("queue", "worker", "simple", "cli")
#: The command line prints whole replies: what ours has more, and what is null or left out, is no difference there.
LOOSE: Final = ("cli",)


@pytest.mark.parametrize("version", PACKAGES)
@pytest.mark.parametrize("script", SCRIPTS)
def test_call_by_call(script: str, version: str, tmp_path: Path, record_property: Any) -> None:
    theirs, ours = both(script, version, tmp_path)
    assert list(theirs) == list(ours), "both servers were asked the same"
    same = covers if script in LOOSE else equal
    different = {label: (theirs[label], ours[label]) for label in theirs if not same(theirs[label], ours[label])}
    for name, count in (("compared", len(theirs)), ("equal", len(theirs) - len(different)), ("different", len(different))):
        record_property(name, count)
    on_purpose = DIFFERENT[script, version]
    surprises = {label: pair for label, pair in different.items() if label not in on_purpose}
    assert not surprises, "theirs, then ours"
    if version == "2.9":  # what 2.7 answers depends on how far its write buffer is
        assert different.keys() == on_purpose.keys(), "the table tells of a difference that is none"


def both(script: str, version: str, folder: Path) -> tuple[Calls, Calls]:
    """Run a script against bunqueue's own server and against ours, at the same time."""
    with OriginalServer(version, folder / "original") as original, ServerProcess(folder / "penstock") as penstock:
        places = {"theirs": original.address, "ours": Address(penstock.tcp_port, penstock.port)}
        running = {}
        for name, address in places.items():
            (folder / name).mkdir()
            running[name] = start_script(script, version, address, folder / name / "calls")
        theirs, ours = (read_calls(process, folder / name / "calls") for name, process in running.items())
    return theirs, ours


def equal(theirs: Any, ours: Any) -> bool:
    """Tell whether two answers are the same."""
    return bool(theirs == ours)


def covers(theirs: Any, ours: Any) -> bool:
    """Tell whether everything that is said in the one reply is said in the other."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        told = {
            key: value
            for key, value in theirs.items()
            if key not in NOT_COMPARED and value is not None and value is not False
        }
        return all(covers(value, ours.get(key)) for key, value in told.items())
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(theirs) == len(ours) and all(map(covers, theirs, ours))
    return bool(theirs == ours)
