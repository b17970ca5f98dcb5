"""Payloads that are bytes on one door and JSON on another.

A payload that is JSON is stored as it is: every door can show it. Any other bytes are stored as a JSON string, in base64,
with a mark among the job's options. The doors for bytes decode it; the jobs door shows the string. In both cases the
consumer receives the same bytes that the producer sent.
"""

from __future__ import annotations

import binascii
import contextlib
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from penstock.core.errors import InvalidInput
from penstock.core.json_depth import check_depth, depth_steps

if TYPE_CHECKING:
    from penstock.core.job import Payload
    from penstock.core.time_slices import Steps


NOTHING: Final = Raw()


class Wrapping(msgspec.Struct, omit_defaults=True):
    """What is stored of a payload besides its bytes: options of the job, beside those of other doors."""

    base64: bool = False  #: the payload is a JSON string that holds the bytes in base64
    metadata: Raw = NOTHING  #: a JSON object that is delivered with the payload


_PLAIN: Final = Wrapping()


_decode = msgspec.json.Decoder(Wrapping).decode


_encode = msgspec.json.Encoder().encode


_scan = msgspec.json.Decoder(Raw).decode


def wrap(data: bytes, metadata: Raw | None = None) -> tuple[bytes, bytes | None]:
    """Return how bytes are stored: the data and the options of a job. For large payloads use ``wrap_steps``."""
    try:
        _check_json(data)
        check_depth(data)
    except _NOT_JSON:
        return _stored(data, metadata, wrapped=True)
    return (data, None) if metadata is None else _stored(data, metadata, wrapped=False)


def wrap_steps(data: bytes, metadata: Raw | None = None) -> Steps[tuple[bytes, bytes | None]]:
    """Return how bytes are stored, in steps."""
    try:
        if not data.isascii():
            data.decode()
            yield
        _scan(data)
        yield
        yield from depth_steps(data)
    except _NOT_JSON:
        return _stored(data, metadata, wrapped=True)
    return _stored(data, metadata, wrapped=False)


#: The exceptions that mean that bytes are no JSON, or nested too deeply.
_NOT_JSON: Final = (msgspec.DecodeError, InvalidInput, RecursionError, UnicodeDecodeError)


def _check_json(data: bytes) -> None:
    if not data.isascii():
        data.decode()
    _scan(data)


def _stored(data: bytes, metadata: Raw | None, *, wrapped: bool) -> tuple[bytes, bytes | None]:
    stored = b'"' + b64encode(data) + b'"' if wrapped else data
    if not wrapped and metadata is None:
        return stored, None
    return stored, _encode(Wrapping(wrapped, NOTHING if metadata is None else metadata))


def unwrap(payload: Payload) -> tuple[bytes, Raw | None]:
    """Return the bytes of a stored payload, and its metadata."""
    return unwrapped(payload.data, payload.options)


def unwrapped(data: bytes, options: bytes | None) -> tuple[bytes, Raw | None]:
    """Return the bytes that were stored in this form, and their metadata."""
    wrapping = _PLAIN if options is None else _decode(options)
    if wrapping.base64:
        with contextlib.suppress(binascii.Error):  # another door may have replaced the payload by JSON
            data = b64decode(data.strip(b'"'), validate=True)
    return data, wrapping.metadata if bytes(wrapping.metadata) else None
