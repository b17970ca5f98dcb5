"""A client of ``/bulk`` of a server: small requests in JSON, rows in Arrow. Plain and synchronous, for Spark's workers.

Every request here can be repeated: claims, acknowledgements and commits have names. Rows that have arrived already are
skipped when an answer breaks off and is requested again.
"""

from __future__ import annotations

import io
import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2
import msgspec
import pyarrow as pa

from penstock.client import _tls
from penstock.client._clock import block
from penstock.client._request import ApiCall, body, path, query
from penstock.client._retry import Attempts
from penstock.client._settings import UNSENDABLE, is_sendable
from penstock.client.errors import PenstockError, UnexpectedReply
from penstock.spark.options import OptionInvalid

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from penstock.spark.options import Options

#: The end of every answer with rows: this, and the number of rows (uint64, little endian).
TRAILER: Final = struct.Struct("<8sQ")
TRAILER_MARK: Final = b"PNSTROWS"
#: For the longest work of a server on one request, in ms: a snapshot of many jobs.
LONG_MS: Final = 600_000


class RowsMissing(UnexpectedReply):
    """The rows of an answer are incomplete, or their number is wrong. A proxy may have cut it off."""


class BulkClient:
    """A client of one server, for one task or query. Use it as a context manager. It reads secrets in its own process.

    ``pause``: waits so many seconds before a retry; an error that it raises ends the retries.
    """

    def __init__(self, options: Options, pause: Callable[[float], None] = block) -> None:
        self._pause = pause
        self.retry_for = options.retry_for / 1000
        self.timeout = options.timeout / 1000
        self.http = httpx2.Client(
            base_url=options.url,
            headers=_headers(options),
            timeout=self.timeout,
            verify=_trust(options),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.http.close()

    def get(self, path: str, **params: object) -> Any:
        """Send a GET request, and return its JSON answer. Raises PenstockError."""
        return self._ask(ApiCall("GET", path, msgspec.json.decode, params=query(**params)))

    def post(self, path: str, fields: Mapping[str, object], *, wait_ms: int = 0) -> Any:
        """Send a POST request, return its answer. ``wait_ms``: how long the server may wait on purpose. Raises like ``get``."""
        return self._ask(ApiCall("POST", path, msgspec.json.decode, body=body(**fields), wait_ms=wait_ms))

    def put_rows(self, path: str, rows: bytes, params: Mapping[str, str]) -> Any:
        """Send rows, as an Arrow IPC stream. Raises PenstockError."""
        headers = {"content-type": "application/vnd.apache.arrow.stream"}
        return self._ask(
            ApiCall("POST", path, msgspec.json.decode, body=rows, params=params, headers=headers, wait_ms=LONG_MS)
        )

    def rows(self, path: str, **params: object) -> Iterator[pa.RecordBatch]:
        """Request rows, and again from where an answer broke off. Raises PenstockError; RowsMissing if rows are missing."""
        call: ApiCall[Any] = ApiCall("GET", path, msgspec.json.decode, params=query(**params))
        attempts, given, known = Attempts(call, self.retry_for), 0, 0
        while True:
            try:
                with self.http.stream(
                    call.method, call.path, params=call.params, timeout=self._timeout(LONG_MS)
                ) as response:
                    if response.is_success:
                        for batch in _after(given, _checked(response)):
                            given += batch.num_rows
                            yield batch
                        return
                    response.read()
                    wait = attempts.after_refusal(response)
            except httpx2.TransportError as error:
                if given > known:  # rows arrived in between: the time for retries starts again
                    attempts, known = Attempts(call, self.retry_for), given
                wait = attempts.after_no_answer(error)
            self._pause(wait or 0)

    def _ask(self, call: ApiCall[Any]) -> Any:
        attempts = Attempts(call, self.retry_for)
        while True:
            try:
                response = self.http.request(
                    call.method,
                    call.path,
                    content=call.body,
                    params=call.params,
                    headers=call.headers,
                    timeout=self._timeout(call.wait_ms),
                )
            except httpx2.TransportError as error:
                wait: float | None = attempts.after_no_answer(error)
            else:
                if response.is_success:
                    return _decoded(call, response.content)
                wait = attempts.after_refusal(response)
            self._pause(wait or 0)

    def _timeout(self, wait_ms: int) -> httpx2.Timeout:
        return httpx2.Timeout(self.timeout, read=self.timeout + wait_ms / 1000)


def _decoded(call: ApiCall[Any], content: bytes) -> Any:
    try:
        return call.decode(content) if content else {}
    except msgspec.DecodeError as error:
        raise UnexpectedReply(f"{call.method} {call.path} was answered with something else: {error}") from error


def _trust(options: Options) -> ssl.SSLContext | bool:
    """Return the TLS settings: the options, and the variables of this process for those not given. Raises OptionInvalid."""
    if not options.url.startswith("https"):
        return False
    ca, cert = _tls.from_environment()
    if options.tls_cert_file is not None:
        cert = options.tls_cert_file if options.tls_key_file is None else (options.tls_cert_file, options.tls_key_file)
    try:
        return _tls.context(options.tls_ca_file or ca, cert)
    except ValueError as error:
        raise OptionInvalid(f"The files of TLS: {error}") from None


def _headers(options: Options) -> dict[str, str]:
    headers = {"content-type": "application/json", "user-agent": "penstock-spark"}
    token = _secret(options.token_env, options.token_file, "token", "PENSTOCK_TOKEN")
    api_key = _secret(options.api_key_env, options.api_key_file, "apiKey", "PENSTOCK_API_KEY")
    if token:
        headers["authorization"] = f"Bearer {token}"
    if api_key:
        headers["x-api-key"] = api_key
    if options.namespace is not None:
        headers["x-namespace"] = options.namespace
    return headers


def _secret(variable: str | None, file: str | None, option: str, usual: str) -> str | None:
    """Read a secret from the place that an option gives. Raises OptionInvalid, whose text never contains the secret."""
    if file is not None:
        try:
            found, where = Path(file).read_text(encoding="utf-8").strip(), f"Option {option}File: {file}"
        except UnicodeDecodeError:
            raise OptionInvalid(f"Option {option}File: {file} {UNSENDABLE}") from None
        except OSError as error:
            raise OptionInvalid(
                f"Option {option}File: {file} cannot be read here ({error.strerror}). Every worker needs it."
            ) from None
    else:
        name = variable or usual
        found, where = os.environ.get(name, "").strip(), f"Option {option}Env: {name}"
        if variable is not None and not found:
            raise OptionInvalid(
                f"{where} is not set in this process. Every worker needs it, in a cluster by"
                f" spark.executorEnv.{variable}, or use {option}File."
            )
    if not is_sendable(found):
        raise OptionInvalid(f"{where} {UNSENDABLE}")
    return found or None


def _after(count: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Skip rows that Spark has received before an answer broke off. The same request returns the same rows."""
    for batch in batches:
        if count >= batch.num_rows:
            count -= batch.num_rows
        else:
            yield batch.slice(count) if count else batch
            count = 0


def _checked(response: httpx2.Response) -> Iterator[pa.RecordBatch]:
    """Read an answer to its end, and count its rows. Raises RowsMissing."""
    source = _Body(response)
    count = 0
    try:
        for batch in pa.ipc.open_stream(pa.PythonFile(source, mode="r")):
            count += batch.num_rows
            yield batch
    except (pa.ArrowException, EOFError) as error:
        if source.failed is not None:
            raise source.failed from error
        raise RowsMissing(f"The answer to {response.url.path} broke off after {count} rows: {error}") from error
    end = source.read()
    if len(end) != TRAILER.size or TRAILER.unpack(end)[0] != TRAILER_MARK:
        raise RowsMissing(f"The answer to {response.url.path} has no count of its rows at its end.")
    said = {int(TRAILER.unpack(end)[1]), int(response.headers.get("x-penstock-rows", count))}
    if said != {count}:
        raise RowsMissing(f"The answer to {response.url.path} has {count} rows, and says it has {max(said - {count})}.")


class _Body(io.RawIOBase):
    """The body of an answer as a file, so that Arrow reads it while it arrives."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__()
        self._chunks = response.iter_bytes()
        self._left = memoryview(b"")
        self.failed: httpx2.TransportError | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, missing = [], size
        while size < 0 or missing > 0:
            if not self._left:
                chunk = self._next()
                if not chunk:
                    break
                self._left = memoryview(chunk)
            taken = self._left if size < 0 else self._left[:missing]
            self._left = self._left[len(taken) :]
            missing -= len(taken)
            parts.append(taken)
        return b"".join(parts)

    def _next(self) -> bytes:
        try:
            return next(self._chunks, b"")
        except httpx2.TransportError as error:
            self.failed = error
            raise


def queues_of(wire: BulkClient, options: Options) -> tuple[str, ...]:
    """Return the requested queues: by their names, or the existing queues whose names match. Empty: all queues."""
    if options.queues_pattern is None:
        return options.queues
    fits = re.compile(options.queues_pattern).fullmatch
    return tuple(name for name in wire.get("/queues")["queues"] if fits(name))


def acknowledge(wire: BulkClient, options: Options, group: str, epoch: int) -> int:
    """Acknowledge the jobs that a group has claimed, up to an epoch. Return how many of these leases were lost.

    With ``onLeaseLost=fail``: raises Conflict if leases have ended, and acknowledges nothing then.
    """
    done = {"epoch": epoch, "lost": options.on_lease_lost}
    return int(wire.post(path("/bulk/groups/{}/ack", group), done, wait_ms=LONG_MS).get("lost", 0))


def wrong_shard(text: str, shards: Mapping[str, Any]) -> PenstockError:
    """Return the error for an offset of a shard that does not exist."""
    return OptionInvalid(f"{text}: the server has the shards {', '.join(sorted(shards, key=int))}.")
