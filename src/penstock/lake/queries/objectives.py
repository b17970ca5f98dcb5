"""Objectives: how quickly, or how well, jobs should be done. From ``<lake>/objectives.yaml``.

::

    objectives:
      - name: mail is prompt
        namespace: default     # * (all of them, each separately); the default
        queue: mail            # likewise
        kind: wait             # wait, run or total: how long; success: that jobs complete
        within: 30s            # for how long
        target: 0.99           # of jobs
        window: 30d            # over which the target applies; 30d is the default

Without the file there is one objective, DEFAULT: 99 % of jobs wait a minute at most, over 30 days, in every queue.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, cast

import yaml

from penstock.lake.queries.latency import KINDS
from penstock.lake.queries.window import DAY_MS, HOUR_MS, MINUTE_MS, length_ms

FILE: Final = "objectives.yaml"
#: The largest number of objectives of a lake.
OBJECTIVES_MAX: Final = 100
ANY: Final = "*"

Kind = Literal["wait", "run", "total", "success"]


class ObjectivesInvalid(ValueError):
    """The file of objectives is invalid."""


class Objective(NamedTuple):
    """One objective. ``within_ms``: the allowed time; 0 for ``success``. ``target``: share of jobs, below 1."""

    name: str
    kind: Kind
    target: float
    within_ms: int = 0
    namespace: str = ANY
    queue: str = ANY
    window_ms: int = 30 * DAY_MS

    def covers(self, namespace: str, queue: str) -> bool:
        """Return whether the objective applies to a queue."""
        return self.namespace in (ANY, namespace) and self.queue in (ANY, queue)


DEFAULT: Final = Objective("jobs start within a minute", "wait", 0.99, MINUTE_MS)


def parse(text: str | None, where: str = FILE) -> list[Objective]:
    """Parse objectives; None: the default one. Raises ObjectivesInvalid, with the entry and what was expected."""
    if text is None:
        return [DEFAULT]
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ObjectivesInvalid(f"{where} is no YAML: {error}") from None
    entries = given.get("objectives") if isinstance(given, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ObjectivesInvalid(f"{where} must have a list called objectives")
    if len(entries) > OBJECTIVES_MAX:
        raise ObjectivesInvalid(f"{where} has {len(entries)} objectives: at most {OBJECTIVES_MAX} are looked at")
    found = [_objective(entry, f"{where}, objective {number}") for number, entry in enumerate(entries, 1)]
    names = [each.name for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ObjectivesInvalid(f"{where} has two objectives called {twice!r}")
    return found


def _objective(entry: Any, where: str) -> Objective:
    if not isinstance(entry, dict):
        raise ObjectivesInvalid(f"{where} must be a mapping with name, kind and target")
    known = ("name", "kind", "target", "within", "namespace", "queue", "window")
    unknown = next((key for key in entry if key not in known), None)
    if unknown is not None:
        raise ObjectivesInvalid(f"{where} has {unknown!r}: expected some of {', '.join(known)}")
    kind = entry.get("kind")
    if kind not in (*KINDS, "success"):
        raise ObjectivesInvalid(f"{where}: kind must be one of wait, run, total, success")
    target = entry.get("target")
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target < 1:
        raise ObjectivesInvalid(f"{where}: target must be a share of jobs between 0 and 1, such as 0.99")
    within = _length(entry, "within", where) if kind != "success" else 0
    if kind == "success" and "within" in entry:
        raise ObjectivesInvalid(f"{where}: within is for wait, run and total; success is about whether jobs complete")
    window = _length(entry, "window", where) if "window" in entry else 30 * DAY_MS
    if not HOUR_MS <= window <= 366 * DAY_MS:
        raise ObjectivesInvalid(f"{where}: window must be from 1h to 366d")
    texts = {key: entry.get(key, ANY) for key in ("namespace", "queue")}
    name = entry.get("name")
    for key, value in {**texts, "name": name}.items():
        if not isinstance(value, str) or not value:
            raise ObjectivesInvalid(f"{where}: {key} must be some text")
    return Objective(cast("str", name), cast("Kind", kind), float(target), within, **texts, window_ms=window)


def _length(entry: dict[str, Any], key: str, where: str) -> int:
    try:
        length = length_ms(str(entry[key]))
    except (KeyError, ValueError):
        raise ObjectivesInvalid(f"{where}: {key} must be a length of time such as 30s, 5m or 30d") from None
    if length < 1:
        raise ObjectivesInvalid(f"{where}: {key} must be more than nothing")
    return length
