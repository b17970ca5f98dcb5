"""Every option of ``format("penstock")``: one table with descriptions, and errors that name the option."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from penstock.client._durations import text_moment_ms
from penstock.client.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: The uses of the source, with the names that errors and the docs have for them.
JOBS: Final = "jobs"
JOURNAL: Final = "journal"
JOURNAL_STREAM: Final = "journal stream"
QUEUES: Final = "queues stream"
WRITE: Final = "write"
WRITE_STREAM: Final = "write stream"
_READS: Final = (JOBS, JOURNAL, JOURNAL_STREAM, QUEUES)
_WRITES: Final = (WRITE, WRITE_STREAM)
_ALL: Final = (*_READS, *_WRITES)

TABLES: Final = ("jobs", "journal", "queues")
#: The server's names of the states of jobs.
STATES: Final = ("waiting", "delayed", "active", "completed", "failed", "waiting-children")
#: Options that Spark itself adds or uses.
_SPARKS_OWN: Final = frozenset({"queryname", "outputmode", "mergeschema"})
_SECRETS: Final = frozenset({"token", "apikey", "api_key", "password", "secret", "authorization", "bearer", "directurl"})
_DURATION: Final = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_GROUP: Final = re.compile(r"[A-Za-z0-9_.:@=+~-]{1,200}")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG_UNITS: Final = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
#: The largest number of an option: Spark's rows and offsets are signed 64-bit integers.
_NUMBER_MAX: Final = 2**63 - 1
#: The server's limits: rows of a partition, characters of a key, milliseconds of a lease, of a wait for jobs, of a wait for
#: a commit, and since 1970. Without these checks the server would refuse only the last step.
_PARTITION_ROWS_MAX: Final = 1_000_000
_KEY_MAX: Final = 512
_LEASE_MAX_MS: Final = 86_400_000
_POLL_MAX_MS: Final = 60_000
_PUBLISH_WAIT_MAX_MS: Final = 600_000
_MOMENT_MAX: Final = 9_999_999_999_999
#: How long a batch waits for minOffsetsPerTrigger by default, in ms.
TRIGGER_DELAY_MS: Final = 900_000


class OptionInvalid(PenstockError, ValueError):
    """An option of ``format("penstock")`` is missing, unknown, or has an invalid value. The message names the option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The checked options of a user. Durations in milliseconds; ``OPTIONS`` describes each."""

    mode: str
    url: str = ""
    namespace: str | None = None
    token_env: str | None = None
    token_file: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    direct_url_env: str | None = None
    direct_url_file: str | None = None
    timeout: int = 60_000
    retry_for: int = 120_000
    table: str = ""
    columns: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    queues_pattern: str | None = None
    states: tuple[str, ...] = ()
    created_from: int | None = None
    created_to: int | None = None
    include_payload: bool = True
    rows_per_partition: int = 100_000
    starting_offsets: str | dict[str, int] = "earliest"
    ending_offsets: str | dict[str, int] = "latest"
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    consumer_group: str = "spark"
    lease_timeout: int = 300_000
    on_lease_lost: str = "fail"
    poll_timeout: int = 1_000
    checkpoint_location: str | None = None
    queue: str | None = None
    priority: int | None = None
    delay: int | None = None
    run_at: int | None = None
    max_attempts: int | None = None
    backoff: int | None = None
    ttl: int | None = None
    job_timeout: int | None = None
    headers: str | None = None
    lifo: bool | None = None
    durable: bool | None = None
    remove_on_complete: bool | None = None
    idempotency_key: str | None = None
    writer_id: str | None = None
    publish_wait: int | None = None

    @property
    def is_direct(self) -> bool:
        """Return whether workers read the database directly."""
        return self.direct_url_env is not None or self.direct_url_file is not None

    def constants(self) -> dict[str, str]:
        """Return the job options for all rows of a write, with the server's names."""
        given = {wire: getattr(self, name) for name, wire in JOB_OPTIONS.items()}
        return {name: _wire(value) for name, value in given.items() if value is not None}


#: Job options that can be given once for all rows: Penstock's field, and the server's name.
JOB_OPTIONS: Final = {
    "queue": "queue",
    "priority": "priority",
    "delay": "delay",
    "run_at": "run_at",
    "max_attempts": "max_attempts",
    "backoff": "backoff",
    "ttl": "ttl",
    "job_timeout": "timeout",
    "headers": "headers",
    "lifo": "lifo",
    "durable": "durable",
    "remove_on_complete": "remove_on_complete",
}


def _wire(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"must begin with http:// or https://, not {text!r}. Try http://{text}")
    if "@" in text.split("/", 3)[2]:
        raise ValueError(
            "must not contain a password, because options are shown in plans. Use tokenEnv, tokenFile, apiKeyEnv or apiKeyFile"
        )
    return text.rstrip("/")


def _names(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise ValueError("must have at least one entry, several separated by commas")
    return found


def _states(text: str) -> tuple[str, ...]:
    found = _names(text)
    for name in found:
        if name not in STATES:
            raise ValueError(f"has no state {name}.{meant(name, STATES)} There are: {', '.join(STATES)}")
    return found


def meant(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean" question for an unknown name; empty if no name is similar."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f" Is it {close[0]}?" if close else ""


def _json_object(text: str) -> str:
    wrong = ValueError(f'must be a JSON object such as {{"a": 1}}, not {text!r}')
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict):
        raise wrong
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(_text(text))
    except re.error as error:
        raise ValueError(f"must be a regular expression, not {text!r} ({error})") from None
    return text


def _number(least: int, most: int = _NUMBER_MAX) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            bounds = f" of {least} or more" if least >= 0 else ""
            bounds = bounds if most == _NUMBER_MAX else f" from {least} to {most}"
            raise ValueError(f"must be a whole number{bounds}, not {text!r}")
        return number

    return read


def _yes_or_no(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _duration(least_ms: int = 0, most_ms: int = _NUMBER_MAX) -> Callable[[str], int]:
    def read(text: str) -> int:
        found = _DURATION.fullmatch(text.lower())
        unit = found[2] if found else "?"
        unit = _LONG_UNITS.get(unit.removesuffix("s"), unit)
        if found is None or unit not in _UNITS_MS:
            raise ValueError(f"must be a duration such as 500ms, 30s, 5m or 1h, not {text!r}")
        duration_ms = int(found[1]) * _UNITS_MS[unit]
        if duration_ms < least_ms:
            raise ValueError(f"must be {least_ms} ms or more, not {text!r}")
        if duration_ms > most_ms:
            raise ValueError(f"must be {most_ms} ms or less, not {text!r}")
        return duration_ms

    return read


def _moment(text: str) -> int:
    found = text_moment_ms(f"{text.strip()}T00:00:00Z" if _DAY.fullmatch(text.strip()) else text, "it")
    if found > _MOMENT_MAX:
        raise ValueError(f"must be milliseconds since 1970, up to {_MOMENT_MAX}, not {text!r}")
    return found


def _namespace(text: str) -> str:
    if text != "*" and _NAMESPACE.fullmatch(text) is None:
        raise ValueError(f"must be letters, digits and any of _.:-, or *, not {text!r}")
    return text


def _key(text: str) -> str:
    if not 0 < len(text) <= _KEY_MAX:
        raise ValueError(f"must have between 1 and {_KEY_MAX} characters, and has {len(text)}")
    return text


def _one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() not in values:
            raise ValueError(f"must be one of {', '.join(values)}, not {text!r}")
        return text.strip().lower()

    return read


def _group(text: str) -> str:
    if _GROUP.fullmatch(text) is None:
        raise ValueError(f"must be 1 to 200 letters, digits and any of _.:@=+~-, not {text!r}")
    return text


def _offsets(text: str) -> str | dict[str, int]:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    wrong = ValueError(f'must be earliest, latest, or JSON with a number per shard like {{"0": 1200}}, not {text!r}')
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not all(
        type(seq) is int and seq >= 0 and key.isdecimal() for key, seq in found.items()
    ):
        raise wrong
    return found


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its uses, its parser, its default as the docs show it, and its description."""

    modes: tuple[str, ...]
    read: Callable[[str], Any]
    default: str
    help: str


OPTIONS: Final[dict[str, Option]] = {
    "url": Option(_ALL, _url, "required", "the server, such as `http://queue.internal:6790`; reachable from executors, too"),
    "namespace": Option(_ALL, _namespace, "that of the key", "namespace of the jobs; `*` for all, with a key for all"),
    "tokenEnv": Option(
        _ALL, _text, "`PENSTOCK_TOKEN`", "environment variable with the bearer token, read where it is needed"
    ),
    "tokenFile": Option(_ALL, _text, "none", "file with the bearer token, on every worker"),
    "apiKeyEnv": Option(_ALL, _text, "`PENSTOCK_API_KEY`", "environment variable with the API key"),
    "apiKeyFile": Option(_ALL, _text, "none", "file with the API key, on every worker"),
    "tlsCaFile": Option(
        _ALL,
        _text,
        "`$PENSTOCK_TLS_CA_FILE`, or those of the system",
        "PEM file with the authorities to trust, on every worker",
    ),
    "tlsCertFile": Option(
        _ALL,
        _text,
        "`$PENSTOCK_TLS_CERT_FILE`, or none",
        "PEM file with the certificate for a server that requires one, on every worker",
    ),
    "tlsKeyFile": Option(
        _ALL, _text, "`$PENSTOCK_TLS_KEY_FILE`, or none", "PEM file with its key, unless that is in the same file"
    ),
    "directUrlEnv": Option(
        (JOBS, JOURNAL, JOURNAL_STREAM),
        _text,
        "none",
        "environment variable with the addresses of the PostgreSQL shards: workers read these themselves",
    ),
    "directUrlFile": Option((JOBS, JOURNAL, JOURNAL_STREAM), _text, "none", "file with these addresses, on every worker"),
    "timeout": Option(_ALL, _duration(1), "60s", "for an answer to begin"),
    "retryFor": Option(_ALL, _duration(), "2m", "how long requests to a server that does not answer are repeated"),
    "table": Option(_READS, _one_of(*TABLES), "`queues`, if `queues` is given", "`jobs`, `journal` or `queues`"),
    "columns": Option(
        _READS, _names, "all", "only these columns; Spark does not report to a Python source which columns a query needs"
    ),
    "queues": Option((JOBS, QUEUES), _names, "all; required for a queues stream", "names of queues, separated by commas"),
    "queuesPattern": Option(
        (JOBS, QUEUES),
        _pattern,
        "none",
        "a regular expression for whole names, instead of queues; a stream looks for new ones before each batch",
    ),
    "states": Option((JOBS,), _states, "all", "jobs in these states only, such as `failed,completed`"),
    "createdFrom": Option((JOBS,), _moment, "none", "jobs made at this moment or later: ms, ISO 8601, or a day (UTC)"),
    "createdTo": Option((JOBS,), _moment, "none", "jobs made before this moment"),
    "includePayload": Option((JOBS,), _yes_or_no, "true", "false: `value` is null, and much less is sent"),
    "rowsPerPartition": Option((JOBS,), _number(1, _PARTITION_ROWS_MAX), "100000", "rows of a partition, at most"),
    "startingOffsets": Option(
        (JOURNAL, JOURNAL_STREAM), _offsets, "earliest", '`earliest`, `latest`, or JSON per shard: `{"0": 1200}`'
    ),
    "endingOffsets": Option((JOURNAL,), _offsets, "latest", "the same, for the end, which is not included"),
    "startingTimestamp": Option(
        (JOURNAL, JOURNAL_STREAM),
        _moment,
        "none",
        "start with the first event at or after this time; instead of startingOffsets",
    ),
    "endingTimestamp": Option((JOURNAL,), _moment, "none", "end before the first event at or after this time"),
    "maxOffsetsPerTrigger": Option(
        (JOURNAL_STREAM, QUEUES), _number(1), "all there is; 100000 for queues", "rows of a micro-batch, at most"
    ),
    "minOffsetsPerTrigger": Option(
        (JOURNAL_STREAM, QUEUES),
        _number(1),
        "1",
        "a micro-batch waits for this number of rows, or for maxTriggerDelay; not with `availableNow`",
    ),
    "maxTriggerDelay": Option(
        (JOURNAL_STREAM, QUEUES), _duration(1), "15m", "how long a micro-batch waits for minOffsetsPerTrigger"
    ),
    "minPartitions": Option((JOURNAL, JOURNAL_STREAM, QUEUES), _number(1), "by size", "partitions of a batch, at least"),
    "failOnDataLoss": Option(
        (JOBS, JOURNAL, JOURNAL_STREAM),
        _yes_or_no,
        "true; false for jobs",
        "false: continue with the rest, if the journal has fewer events than requested or is not the one that was read, or"
        " if jobs are damaged",
    ),
    "consumerGroup": Option((QUEUES,), _group, "`spark`", "name of the consumer, as the server shows it"),
    "leaseTimeout": Option(
        (QUEUES,),
        _duration(1_000, _LEASE_MAX_MS),
        "5m",
        "jobs go back to their queue when the query has been stopped for this time; renewed while it runs",
    ),
    "onLeaseLost": Option(
        (QUEUES,),
        _one_of("fail", "skip"),
        "fail",
        "what to do if the query lost jobs before it acknowledged them: stop, or continue without them",
    ),
    "pollTimeout": Option(
        (QUEUES,), _duration(0, _POLL_MAX_MS), "1s", "how long an idle stream waits for jobs in one request"
    ),
    "checkpointLocation": Option(
        (QUEUES, WRITE_STREAM, WRITE),
        _text,
        "none",
        "the query's; given to `readStream` as well, batches are acknowledged as soon as Spark has logged them",
    ),
    "queue": Option(_WRITES, _text, "the column `queue`", "queue of all rows; overrides the column"),
    "priority": Option(_WRITES, _number(-_NUMBER_MAX), "the column, or 0", "of all jobs"),
    "delay": Option(_WRITES, _duration(), "the column, or none", "until jobs are due"),
    "runAt": Option(_WRITES, _moment, "the column, or now", "when jobs are due"),
    "maxAttempts": Option(_WRITES, _number(1), "the column, or the queue's", "of all jobs"),
    "backoff": Option(_WRITES, _duration(), "the column, or the queue's", "between attempts"),
    "ttl": Option(_WRITES, _duration(), "the column, or none", "jobs that were not claimed expire after this time"),
    "jobTimeout": Option(_WRITES, _duration(), "the column `timeout`, or none", "of an attempt"),
    "headers": Option(_WRITES, _json_object, "the column, or none", "JSON, for all jobs"),
    "lifo": Option(_WRITES, _yes_or_no, "the column, or false", "newest first"),
    "durable": Option(_WRITES, _yes_or_no, "the column, or the server's", "on disk before a worker can claim it"),
    "removeOnComplete": Option(_WRITES, _yes_or_no, "the column, or false", "remove jobs when they are completed"),
    "idempotencyKey": Option(
        (WRITE,), _key, "a new one", "a write with a key that was used in the last 7 days does nothing"
    ),
    "writerId": Option(
        (WRITE_STREAM,), _text, "the query's id, from its checkpoint", "only where the checkpoint cannot be read from Python"
    ),
    "publishWait": Option(
        _WRITES,
        _duration(0, _PUBLISH_WAIT_MAX_MS),
        "1m; 0 for streams",
        "how long a commit waits until its jobs are published; they will be, in any case",
    ),
}
_BY_LOWER: Final = {name.lower(): name for name in OPTIONS}


def shape_of(given: Mapping[str, str]) -> Options:
    """Return the options on which the columns depend. Raises OptionInvalid."""
    table = _table(given)
    # Spark reads the columns before it decides between a batch and a stream.
    found = {name: value for name, value in given.items() if name.lower() in ("columns", "url")}
    return _read(found | {"table": table}, {"jobs": JOBS, "journal": JOURNAL, "queues": QUEUES}[table], needs_url=False)


def for_batch(given: Mapping[str, str]) -> Options:
    """Return the options of ``spark.read``. Raises OptionInvalid."""
    table = _table(given)
    if table == "queues":
        raise OptionInvalid(
            "Option table: queues are read as a stream (spark.readStream); a batch reads table=jobs, which claims nothing,"
            " or table=journal."
        )
    if table == "jobs":  # one damaged job should not prevent reading the others
        usual = {} if "failondataloss" in {name.lower() for name in given} else {"failOnDataLoss": "false"}
        return _checked(_read(usual | dict(given) | {"table": table}, JOBS))
    return _checked(_read(dict(given) | {"table": table}, JOURNAL))


def for_stream(given: Mapping[str, str]) -> Options:
    """Return the options of ``spark.readStream``. Raises OptionInvalid."""
    table = _table(given)
    if table == "jobs":
        raise OptionInvalid(
            "Option table: jobs are read as a batch (spark.read); a stream reads table=journal, or queues=…, to consume."
        )
    found = _read(dict(given) | {"table": table}, QUEUES if table == "queues" else JOURNAL_STREAM)
    if table == "queues" and not found.queues and found.queues_pattern is None:
        raise OptionInvalid("Option queues is missing: set the queues to consume, separated by commas, or queuesPattern=…")
    return _checked(found)


def for_write(given: Mapping[str, str], *, overwrite: bool) -> Options:
    """Return the options of ``df.write``. Raises OptionInvalid."""
    if overwrite:
        raise OptionInvalid('A queue cannot be overwritten: use mode("append").')
    return _checked(_read(dict(given), WRITE))


def for_write_stream(given: Mapping[str, str], *, overwrite: bool) -> Options:
    """Return the options of ``df.writeStream``. Raises OptionInvalid."""
    if overwrite:
        raise OptionInvalid('A queue cannot be overwritten: use outputMode("append") or outputMode("update").')
    found = _checked(_read(dict(given), WRITE_STREAM))
    if found.checkpoint_location is None and found.writer_id is None:
        raise OptionInvalid(
            "Option checkpointLocation is missing: without it, a repeated batch could not be distinguished from a new one."
        )
    return found


def _table(given: Mapping[str, str]) -> str:
    lower = {name.lower(): value for name, value in given.items()}
    if "table" in lower:
        return str(_value("table", lower["table"]))
    if "queues" in lower or "queuespattern" in lower:
        return "queues"
    raise OptionInvalid("Option table is missing: set jobs or journal; or set queues=…, to consume these as a stream.")


def _value(name: str, text: str) -> Any:
    try:
        return OPTIONS[name].read(text)
    except ValueError as error:
        raise OptionInvalid(f"Option {name} {str(error).removeprefix('it ')}.") from None


def _read(given: Mapping[str, str], mode: str, *, needs_url: bool = True) -> Options:
    found: dict[str, Any] = {}
    for key, text in given.items():
        lower = key.lower()
        if lower in _SPARKS_OWN or lower.startswith(("spark.", "__")):
            continue
        if lower in _SECRETS:
            raise OptionInvalid(
                f"Option {key}: do not put a secret into options, because they are shown in plans. Name an environment variable"
                " (tokenEnv, apiKeyEnv, directUrlEnv) or a file (tokenFile, apiKeyFile, directUrlFile) instead."
            )
        if lower == "pushdown":
            raise OptionInvalid(
                "Option pushDown was removed: Spark keeps the filters of one query with the DataFrame, so that the next one"
                " lacked rows. Choose with options: queues, states, createdFrom, createdTo for jobs; startingTimestamp,"
                " endingTimestamp for the journal. What a query filters, Spark filters."
            )
        name = _BY_LOWER.get(lower)
        if name is None:
            close = difflib.get_close_matches(lower, _BY_LOWER, n=1)
            raise OptionInvalid(f"Option {key} is unknown.{f' Is it {_BY_LOWER[close[0]]}?' if close else ''}")
        if mode not in OPTIONS[name].modes:
            raise OptionInvalid(f"Option {name} is for {' and '.join(OPTIONS[name].modes)}, not for {mode}.")
        found[_FIELD_OF[name]] = _value(name, text)
    if needs_url and "url" not in found:
        raise OptionInvalid("Option url is missing: set the address of the server, such as http://127.0.0.1:6790.")
    return Options(mode=mode, **found)


def _checked(options: Options) -> Options:
    """Check options that depend on each other. Raises OptionInvalid."""
    for one, other in (
        ("token_file", "token_env"),
        ("api_key_file", "api_key_env"),
        ("direct_url_file", "direct_url_env"),
        ("delay", "run_at"),
    ):
        if getattr(options, one) is not None and getattr(options, other) is not None:
            raise OptionInvalid(f"Options {_NAME_OF[one]} and {_NAME_OF[other]} exclude each other.")
    if options.namespace == "*" and options.mode in (QUEUES, *_WRITES):
        raise OptionInvalid(f"Option namespace: * is for reading jobs and journal. Name one namespace for {options.mode}.")
    if options.starting_timestamp is not None and options.starting_offsets != "earliest":
        raise OptionInvalid("Options startingTimestamp and startingOffsets exclude each other.")
    if options.ending_timestamp is not None and options.ending_offsets != "latest":
        raise OptionInvalid("Options endingTimestamp and endingOffsets exclude each other.")
    if options.queues and options.queues_pattern is not None:
        raise OptionInvalid("Options queues and queuesPattern exclude each other.")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionInvalid(f"Option minOffsetsPerTrigger ({least}) must not be above maxOffsetsPerTrigger ({most}).")
    if options.max_trigger_delay is not None and least is None:
        raise OptionInvalid("Option maxTriggerDelay is of use only with minOffsetsPerTrigger.")
    return options


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", name).lower()


_FIELD_OF: Final = {name: _snake(name) for name in OPTIONS}
_NAME_OF: Final = {field: name for name, field in _FIELD_OF.items()}
assert set(_NAME_OF) | {"mode"} == {each.name for each in fields(Options)}, (
    "every option has a field, and every field an option"
)
