"""MessagePack values as JSON: the same JSON that ``JSON.stringify`` makes of each value.

Jobs are stored as JSON. A JavaScript client may send dates, bytes and NaN. They are stored as the JSON that the client
itself would write.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.time_slices import at_once
from penstock.doors.jobs.msgpack_parts import check_count

if TYPE_CHECKING:
    from penstock.core.time_slices import Steps

#: Number of values per step.
_STEP_VALUES: Final = 4_096
_encode: Final = msgspec.json.Encoder().encode
#: A command adds a few levels around a payload. The payload's own limit is checked later, when the payload is read.
LEVELS_MAX: Final = limits.payload_depth_max + 8
#: From here on a JavaScript client sends whole numbers as floats, and up to there they are exact.
_WHOLE_MIN: Final = 2**31 - 1
_WHOLE_MAX: Final = 2**53
BAD_KEY: Final = "Map keys must be text, numbers, booleans or null"
_PLAIN: Final = frozenset({str, int, bool, type(None), Raw})
#: The largest distance of a JavaScript date from 1970, in ms.
_DATE_MS_MAX: Final = 8_640_000_000_000_000
#: The calendar repeats after this many years.
_CYCLE_YEARS: Final = 400
_CYCLE_MS: Final = 146_097 * 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Undefined:
    """The JavaScript value ``undefined``: left out of maps, and null elsewhere."""


UNDEFINED: Final = Undefined()


class Unfit(msgspec.Struct, frozen=True):
    """A result that has no JSON, and why."""

    reason: str


class _NotJson(InvalidInput):
    """A value that has no JSON."""


def convert(message: dict[str, Any]) -> None:
    """Turn the values of a small command into values of JSON, in place: see ``convert_steps``."""
    at_once(convert_steps(message))


def convert_steps(message: dict[str, Any]) -> Steps[None]:
    """Turn the values of a command into values of JSON, in place and in steps. Raises InvalidInput for values without JSON.

    In a batch, the error names the job that it is about. A result without JSON becomes ``Unfit``, because the other results
    are valid.
    """
    try:
        yield from _convert(message)
    except _NotJson:
        yield from _convert_apart(message)


def _convert_apart(message: dict[str, Any]) -> Steps[None]:
    jobs, results = message.get("jobs"), message.get("results")
    if isinstance(jobs, list):
        for index, job in enumerate(jobs):
            try:
                yield from _convert([job])
            except _NotJson as error:
                raise InvalidInput(f"jobs[{index}]: {error}") from None
    if isinstance(results, list):
        for index, result in enumerate(results):
            try:
                yield from _convert([result])
            except _NotJson as error:
                results[index] = Unfit(str(error))
    yield from _convert(message)


def _convert(top: dict[str, Any] | list[Any]) -> Steps[None]:
    level: list[Any] = [top]
    values = work = 0
    for _ in range(LEVELS_MAX):
        below: list[Any] = []
        for each in level:
            values += len(each)
            check_count(values)
            work += 1 + len(each)  # an empty container also takes time
            if work > _STEP_VALUES:
                work = 0
                yield
            odd = False
            for number, (key, value) in enumerate(each.items() if type(each) is dict else enumerate(each), 1):
                if not number % _STEP_VALUES:
                    yield
                if type(value) is bytes:
                    values += len(value)
                    check_count(values)
                    each[key] = yield from _spelled(value)
                elif type(value) not in _PLAIN:
                    _put(each, key, value, below)
                    odd = odd or value is UNDEFINED
            if type(each) is dict and (odd or not all(type(key) is str for key in each)):
                yield from _tidy(each)
        if not below:
            return
        level = below
    for each in level:  # no payload may be this deep: it is refused when it is read, without refusing the other jobs
        each.clear()


def _spelled(value: bytes) -> Steps[Raw]:
    """Return the JSON of bytes, which is an object with one field per byte, in steps."""
    parts = []
    for start in range(0, len(value), _STEP_VALUES):
        parts.append(_encode(dict(enumerate(value[start : start + _STEP_VALUES], start)))[1:-1])
        yield
    return Raw(b"{%s}" % b",".join(parts))


def _put(container: Any, key: Any, value: object, below: list[Any]) -> None:
    """Replace a value that is not plain, or remember it for a later step."""
    if isinstance(value, dict | list):
        below.append(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            container[key] = None
        elif value.is_integer() and _WHOLE_MAX >= abs(value) > _WHOLE_MIN:
            container[key] = int(value)
    elif isinstance(value, datetime):
        container[key] = value.astimezone(UTC).isoformat(timespec="milliseconds")[: -len("+00:00")] + "Z"
    elif value is UNDEFINED:
        if type(container) is list:
            container[key] = None
    elif type(value) is not Unfit:
        raise _NotJson("Extension values are not supported, except dates: JSON has no such values")


def _tidy(container: dict[Any, Any]) -> Steps[None]:
    """Convert keys to text and remove undefined values, in steps; but an undefined payload is null."""
    tidy: dict[str, Any] = {}
    for number, (key, value) in enumerate(container.items(), 1):
        if not number % _STEP_VALUES:
            yield
        text = key if type(key) is str else _key(key)
        if value is not UNDEFINED:
            tidy[text] = value
        elif text == "data":
            tidy[text] = None
    container.clear()
    container.update(tidy)


def _key(key: object) -> str:
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, float):
        return str(int(key)) if key.is_integer() and abs(key) < 1e21 else repr(key)
    if isinstance(key, int):
        return str(key)
    raise _NotJson(BAD_KEY)


def date_text(timestamp: bytes) -> str | None:
    """Return the text of a MessagePack timestamp that no ``datetime`` can hold; None for an invalid date, as in JSON."""
    if len(timestamp) == 12:
        nanoseconds, seconds = int.from_bytes(timestamp[:4]), int.from_bytes(timestamp[4:], signed=True)
    elif len(timestamp) == 8:
        nanoseconds, seconds = divmod(int.from_bytes(timestamp), 2**34)
    else:
        return None
    ms = seconds * 1_000 + nanoseconds // 1_000_000
    if abs(ms) > _DATE_MS_MAX:
        return None
    cycles, rest = divmod(ms, _CYCLE_MS)
    moment = _EPOCH + timedelta(milliseconds=rest)
    year = moment.year + cycles * _CYCLE_YEARS
    digits = f"{year:04d}" if 0 <= year <= 9999 else f"{'-' if year < 0 else '+'}{abs(year):06d}"
    return f"{digits}{moment.isoformat(timespec='milliseconds')[4:-6]}Z"
