"""bunqueue's FlowProducer, QueueEvents and MCP server: our server beside the original one, answer by answer.

``DIFFERENT`` names every answer that differs on purpose, and why. docs/jobs-door.md lists the reasons for users.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.npm.conftest import Address, OriginalServer, read_calls, start_script
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

KEYS = "the values of children are listed by their ids, as the document has it"
FAILED = "a child that failed is listed until the parent goes on without it"
TEXT = "the text is the document's"
NOTE = "parentId is a note on the job; its payload stays as it was pushed"
REMOVED = "each job that is removed is told of, by whatever means it was removed"
NULL = "a result that is null is no result"
MORE = "there is more in the answer"
HELD = "the progress of a job that waits is 0, not an error"

READY = "delayed jobs are not counted among the jobs of a group"

#: By script and version: the answers that differ, and why.
DIFFERENT: dict[tuple[str, str], dict[str, str]] = {
    ("flows", "2.9"): {
        "flow add: getChildrenValues": KEYS,
        "flow job: updateProgress": TEXT,
        "flow job: moveToDelayed": TEXT,
        "flow failParentOnFailure: GetFailedChildrenValues": FAILED,
        "flow ignoreDependencyOnFailure: GetIgnoredChildrenFailures": KEYS,
        "flow continueParentOnFailure: GetFailedChildrenValues": KEYS,
        "flow none: GetFailedChildrenValues": FAILED,
        "flow parked: moveToWaitingChildren": "a job that waits for nothing stays with its worker",
    },
    ("flows", "2.7"): {
        "flow add: the first child": NOTE,
        "flow add: the leaf": NOTE,
        "flow add: the second child": NOTE,
        "flow add: getChildrenValues": KEYS,
        "flow job: its data": "what a producer of flows notes in a payload stays when the data change, as in 2.9",
        "flow job: updateProgress": HELD,
        "flow job: its state after that": "a job that waits for its children can be cancelled, as in 2.9",
        "flow failParentOnFailure: GetFailedChildrenValues": FAILED,
        "flow ignoreDependencyOnFailure: GetIgnoredChildrenFailures": KEYS,
        "flow continueParentOnFailure: GetFailedChildrenValues": KEYS,
        "flow none: GetFailedChildrenValues": FAILED,
    },
    ("events", "2.9"): {
        "events complete-batch: events": NULL,
        "events drain: events": REMOVED,
        "events clean: events": REMOVED,
        "events dead-letters: events": REMOVED,
        "events retry-completed: events": "a completed job that runs again is told of",
        "events obliterate: events": REMOVED,
    },
    ("groups", "2.9"): {
        "groups: getGroupJobsCount": READY,
        "groups: getGroupsJobsCount": READY,
        "groups: a job of it": "jobs with and without a group are handed out in their order",
        "groups: getGroupActiveCount then": "the job that was pulled belongs to the group",
        "trimEvents: a bad number": TEXT,
    },
    ("mcp", "2.9"): {
        "mcp jobs: get_progress": HELD,
        "mcp server: get_stats": MORE,
        "mcp server: get_memory_stats": MORE,
        "mcp server: resource bunqueue://stats": MORE,
    },
    ("mcp", "2.7"): {
        "mcp jobs: get_progress": HELD,
        "mcp jobs: get_job_result": NULL,
        "mcp jobs: change_delay": "the delay of a delayed job can be changed, as in 2.9",
        "mcp jobs: get_jobs": "a job that was promoted is listed among the waiting ones, as in 2.9",
        "mcp flows: get_children_values": "children that have not completed have no value, as in 2.9",
        "mcp server: get_stats": MORE,
        "mcp server: get_memory_stats": MORE,
        "mcp server: resource bunqueue://stats": MORE,
    },
}
#: How many calls each script makes.
CALLS = {
    ("flows", "2.9"): 107,
    ("flows", "2.7"): 77,
    ("events", "2.9"): 83,
    ("groups", "2.9"): 34,
    ("mcp", "2.9"): 90,
    ("mcp", "2.7"): 90,
}


@pytest.mark.parametrize(("script", "version"), DIFFERENT)
def test_every_call_answers_as_at_the_original_server(script: str, version: str, tmp_path: Path) -> None:
    with OriginalServer(version, tmp_path / "original") as original, ServerProcess(tmp_path / "data") as server:
        addresses = original.address, Address(server.tcp_port, server.port)
        running = [start_script(script, version, each, tmp_path / str(each.tcp_port)) for each in addresses]
        theirs, ours = (read_calls(each, tmp_path / str(at.tcp_port)) for each, at in zip(running, addresses, strict=True))
    found = {label for label in theirs.keys() | ours.keys() if theirs.get(label) != ours.get(label)}
    expected = DIFFERENT[script, version].keys()
    shown = {label: [theirs.get(label), ours.get(label)] for label in found ^ expected}
    assert found == expected, json.dumps(shown, indent=1)
    print(f"{script} {version}: {len(theirs)} calls, {len(theirs) - len(found)} equal, {len(found)} different on purpose")
    assert len(theirs) == CALLS[script, version]
