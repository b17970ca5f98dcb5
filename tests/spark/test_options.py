"""Options that are wrong, missing or meant for something else give an error that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from penstock.core import limits
from penstock.spark import options, schemas
from penstock.spark.http_client import BulkClient
from penstock.spark.options import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

URL = {"url": "http://127.0.0.1:1"}


def test_a_batch_has_defaults() -> None:
    found = options.for_batch(URL | {"table": "jobs"})
    assert (found.url, found.include_payload, found.rows_per_partition) == ("http://127.0.0.1:1", True, 100_000)


def test_options_are_read_whatever_their_case() -> None:
    given = URL | {
        "QUEUES": "mail, billing,mail",
        "leasetimeout": "5 minutes",
        "onLeaseLost": "SKIP",
        "maxOffsetsPerTrigger": "7",
    }
    found = options.for_stream(given)
    assert found.queues == ("mail", "billing")
    assert (found.lease_timeout, found.on_lease_lost, found.max_offsets_per_trigger) == (300_000, "skip", 7)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("250", 250), ("250ms", 250), ("30s", 30_000), ("2 minutes", 120_000), ("1h", 3_600_000), ("1 day", 86_400_000)],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert options.for_batch(URL | {"table": "jobs", "retryFor": text}).retry_for == duration_ms


@pytest.mark.parametrize(
    ("text", "moment"),
    [("1000", 1000), ("1970-01-02", 86_400_000), ("1970-01-01T00:00:01Z", 1000), ("1970-01-01T01:00:01+01:00", 1000)],
)
def test_moments(text: str, moment: int) -> None:
    assert options.for_batch(URL | {"table": "journal", "startingTimestamp": text}).starting_timestamp == moment


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "Option table is missing"),
        ({"table": "jobs"}, "Option url is missing"),
        (URL | {"table": "job"}, "Option table must be one of jobs, journal, queues"),
        (URL | {"queues": "mail"}, "Option table: queues are read as a stream"),
        ({"url": "localhost:6790", "table": "jobs"}, "Option url must begin with http"),
        ({"url": "http://me:secret@host", "table": "jobs"}, "Option url must not contain a password"),
        (URL | {"table": "jobs", "token": "t"}, "Option token: do not put a secret"),
        (URL | {"table": "jobs", "apiKey": "t"}, "Option apiKey: do not put a secret"),
        (URL | {"table": "jobs", "stats": "failed"}, "Option stats is unknown. Is it states?"),
        (URL | {"table": "jobs", "leaseTimeout": "5m"}, "Option leaseTimeout is for queues stream, not for jobs"),
        (URL | {"table": "jobs", "includePayload": "yes"}, "Option includePayload must be true or false"),
        (
            URL | {"table": "jobs", "rowsPerPartition": "0"},
            "Option rowsPerPartition must be a whole number from 1 to 1000000",
        ),
        (URL | {"table": "jobs", "rowsPerPartition": "2000000"}, "must be a whole number from 1 to 1000000"),
        (URL | {"table": "journal", "minPartitions": "0"}, "Option minPartitions must be a whole number of 1 or more"),
        (URL | {"table": "jobs", "namespace": "ünï"}, "Option namespace must be letters, digits"),
        (URL | {"table": "jobs", "timeout": "9" * 20 + "d"}, "Option timeout must be 9223372036854775807 ms or less"),
        (URL | {"table": "jobs", "createdTo": "9" * 20}, "Option createdTo must be milliseconds since 1970, up to"),
        (URL | {"table": "jobs", "queues": " , "}, "Option queues must have at least one entry"),
        (URL | {"table": "jobs", "createdFrom": "yesterday"}, "Option createdFrom must be milliseconds"),
        (URL | {"table": "jobs", "createdFrom": "2026-01-01T00:00:00"}, "Option createdFrom needs a time zone"),
        (URL | {"table": "jobs", "states": "failed,complete"}, "Option states has no state complete. Is it completed?"),
        (URL | {"table": "jobs", "timeout": "soon"}, "Option timeout must be a duration"),
        (URL | {"table": "jobs", "timeout": "0"}, "Option timeout must be 1 ms or more"),
        (
            URL | {"table": "journal", "startingOffsets": "newest"},
            "Option startingOffsets must be earliest, latest, or JSON",
        ),
        (URL | {"table": "journal", "startingOffsets": '{"a": 1}'}, "Option startingOffsets must be"),
        (URL | {"table": "journal", "endingOffsets": '{"0": -1}'}, "Option endingOffsets must be"),
        (
            URL | {"table": "journal", "startingOffsets": "latest", "startingTimestamp": "1"},
            "startingTimestamp and startingOffsets exclude",
        ),
        (URL | {"table": "jobs", "tokenEnv": "A", "tokenFile": "b"}, "tokenFile and tokenEnv exclude"),
    ],
)
def test_wrong_options_of_a_batch(given: Mapping[str, str], says: str) -> None:
    with pytest.raises(OptionInvalid) as caught:
        options.for_batch(given)
    assert says in str(caught.value)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (URL | {"table": "jobs"}, "Option table: jobs are read as a batch"),
        (URL | {"table": "queues"}, "Option queues is missing"),
        (URL | {"queues": "q", "leaseTimeout": "5"}, "Option leaseTimeout must be 1000 ms or more"),
        (URL | {"queues": "q", "leaseTimeout": "2d"}, "Option leaseTimeout must be 86400000 ms or less"),
        (URL | {"queues": "q", "pollTimeout": "2m"}, "Option pollTimeout must be 60000 ms or less"),
        (URL | {"queues": "q", "namespace": "*"}, r"Option namespace: \* is for reading .* one namespace for queues stream"),
        (URL | {"queues": "q", "consumerGroup": "my group"}, "Option consumerGroup must be 1 to 200 letters"),
        (URL | {"queues": "q", "onLeaseLost": "ignore"}, "Option onLeaseLost must be one of fail, skip"),
        (URL | {"queues": "q", "startingOffsets": "latest"}, "Option startingOffsets is for journal and journal stream"),
        (URL | {"table": "journal", "failOnDataLoss": "1"}, "Option failOnDataLoss must be true or false"),
        (URL | {"table": "journal", "minPartitions": "many"}, "Option minPartitions must be a whole number"),
    ],
)
def test_wrong_options_of_a_stream(given: Mapping[str, str], says: str) -> None:
    with pytest.raises(OptionInvalid, match=says):
        options.for_stream(given)


def test_wrong_options_of_writes() -> None:
    with pytest.raises(OptionInvalid, match=r'use mode\("append"\)'):
        options.for_write(URL, overwrite=True)
    with pytest.raises(OptionInvalid, match="delay and runAt exclude"):
        options.for_write(URL | {"delay": "1s", "runAt": "1"}, overwrite=False)
    with pytest.raises(OptionInvalid, match="Option priority must be a whole number, not 'high'"):
        options.for_write(URL | {"priority": "high"}, overwrite=False)
    for headers in ("[1]", "a: 1"):
        with pytest.raises(OptionInvalid, match="Option headers must be a JSON object"):
            options.for_write(URL | {"headers": headers}, overwrite=False)
    with pytest.raises(OptionInvalid, match="Option idempotencyKey must have between 1 and 512 characters, and has 600"):
        options.for_write(URL | {"idempotencyKey": "k" * 600}, overwrite=False)
    with pytest.raises(OptionInvalid, match="Option publishWait must be 600000 ms or less"):
        options.for_write(URL | {"publishWait": "1h"}, overwrite=False)
    with pytest.raises(OptionInvalid, match="Option checkpointLocation is missing"):
        options.for_write_stream(URL, overwrite=False)
    with pytest.raises(OptionInvalid, match="Option idempotencyKey is for write, not for write stream"):
        options.for_write_stream(URL | {"idempotencyKey": "k"}, overwrite=False)


def test_bounds_are_those_of_the_server() -> None:
    bounds = options._PARTITION_ROWS_MAX, options._KEY_MAX, options._LEASE_MAX_MS, options._POLL_MAX_MS
    assert bounds == (
        limits.bulk_part_rows_max, limits.idempotency_key_chars_max, limits.lease_ms_max, limits.claim_wait_ms_max,
    )  # fmt: skip
    more = options._PUBLISH_WAIT_MAX_MS, options._MOMENT_MAX
    assert more == (limits.completion_wait_ms_max, limits.timestamp_ms_max)


def test_constants_are_spelled_as_the_server_has_them() -> None:
    found = options.for_write(URL | {"queue": "q", "jobTimeout": "5s", "lifo": "true", "priority": "-3"}, overwrite=False)
    assert found.constants() == {"queue": "q", "timeout": "5000", "lifo": "true", "priority": "-3"}


def schema_of(**types: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (schema_of(valu=StringType()), "column value is missing"),
        (schema_of(value=IntegerType()), "Column value must be binary or string, not int"),
        (schema_of(value=StringType(), priority=StringType()), "Column priority must be int"),
        (
            schema_of(value=StringType(), priorty=IntegerType()),
            r"Column priorty is not a column of a job\. Is it priority\?",
        ),
    ],
)
def test_wrong_columns_of_writes(schema: StructType, says: str) -> None:
    with pytest.raises(OptionInvalid, match=says):
        schemas.check_sink(schema, options.for_write(URL | {"queue": "q"}, overwrite=False))


def test_a_write_needs_a_queue_and_the_option_beats_the_column() -> None:
    with pytest.raises(OptionInvalid, match="There is no queue to push to"):
        schemas.check_sink(schema_of(value=StringType()), options.for_write(URL, overwrite=False))
    both = schema_of(value=StringType(), queue=StringType(), job_id=StringType())
    assert schemas.check_sink(both, options.for_write(URL, overwrite=False)) == ["value", "queue"]
    assert schemas.check_sink(both, options.for_write(URL | {"queue": "q"}, overwrite=False)) == ["value"]


def test_columns_that_are_asked_for() -> None:
    assert schemas.ddl(options.shape_of({"table": "jobs", "columns": "id,size"})) == "`id` string, `size` bigint"
    with pytest.raises(OptionInvalid, match=r"Option columns: jobs has no column colour\. It has: namespace"):
        schemas.ddl(options.shape_of({"table": "jobs", "columns": "colour"}))
    with pytest.raises(OptionInvalid, match="column id of jobs is string, not int"):
        schemas.arrow_schema("jobs", schema_of(id=IntegerType()))
    with pytest.raises(OptionInvalid, match="jobs has no column colour"):
        schemas.arrow_schema("jobs", schema_of(colour=IntegerType()))


def test_secrets_are_read_where_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)
    (tmp_path / "key").write_text("k-1\n")
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    found = options.for_batch(
        URL | {"table": "jobs", "tokenEnv": "MY_TOKEN", "apiKeyFile": str(tmp_path / "key"), "namespace": "a"}
    )
    assert "hush-hush" not in repr(found)
    with BulkClient(found) as wire:
        headers = wire.http.headers
        assert (headers["authorization"], headers["x-api-key"], headers["x-namespace"]) == ("Bearer hush-hush", "k-1", "a")
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(OptionInvalid, match="Option tokenEnv: MY_TOKEN is not set in this process"):
        BulkClient(found)
    with pytest.raises(OptionInvalid, match=r"Option apiKeyFile: .*missing cannot be read"):
        BulkClient(options.for_batch(URL | {"table": "jobs", "apiKeyFile": str(tmp_path / "missing")}))
    for wrong in ("hush\nhush", "hüsh", "hush\x00"):
        (tmp_path / "key").write_text(wrong)
        with pytest.raises(OptionInvalid, match=r"Option apiKeyFile: .*key must be of printable ASCII") as error:
            BulkClient(options.for_batch(URL | {"table": "jobs", "apiKeyFile": str(tmp_path / "key")}))
        assert wrong not in str(error.value)
    monkeypatch.setenv("PENSTOCK_TOKEN", "hush-hush\n")
    with BulkClient(options.for_batch(URL | {"table": "jobs"})) as wire:
        assert wire.http.headers["authorization"] == "Bearer hush-hush"
    monkeypatch.setenv("PENSTOCK_TOKEN", "hush\nhush")
    with pytest.raises(OptionInvalid, match="Option tokenEnv: PENSTOCK_TOKEN must be of printable ASCII"):
        BulkClient(options.for_batch(URL | {"table": "jobs"}))
