"""Every setting with its default, its environment variables and its description."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.config import parsers
from penstock.config.parsers import Listener
from penstock.core import limits
from penstock.core.addresses import IPV6_PREFIX
from penstock.core.durability import Durability
from penstock.core.pool_shares import ALL, HALF
from penstock.core.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Callable

_RETENTION: Final = Retention()  # its defaults are the defaults of the settings


class Config(msgspec.Struct, frozen=True):
    """All settings. A listener that is None is off."""

    data: Path = Path("data")
    stores: tuple[str, ...] = ()
    database_answer_ms: int = 5_000
    redis: tuple[str, ...] = ()
    redis_hot_jobs: int = 200
    #: Directory of the enqueue buffer's log; None: in the data directory.
    wal_dir: Path | None = None
    http: Listener = Listener("127.0.0.1", 6790)
    tcp: Listener | None = Listener("127.0.0.1", 6789)
    resp: Listener | None = Listener("127.0.0.1", 6380)
    resp_plain: Listener | None = None
    metrics: Listener | None = Listener("127.0.0.1", 9090)
    batches: Listener | None = None
    batches_max_retries: int = 3
    topics: Listener | None = None
    topics_lease_ms: int = 10_000
    messages: Listener | None = None
    messages_visibility_timeout_ms: int = 30_000
    messages_max_size_kb: int = 256
    messages_batch_max: int = 100
    messages_batch_default: int = 1
    messages_max: int = 100_000
    messages_max_retries: int = 3
    #: How long a message that is not consumed is kept, in milliseconds; 0: without limit.
    messages_retention: int = 0
    #: How far ahead a message may be scheduled, in milliseconds.
    messages_schedule_ahead: int = 90 * limits.DAY_MS
    messages_auto_create: bool = True
    push_retry_delays_ms: tuple[int, ...] = (1_000, 5_000, 30_000)
    push_timeout_ms: int = 5_000
    durability: Durability = Durability.ALWAYS
    sync_interval_ms: int = 100
    auth_tokens: tuple[str, ...] = ()
    api_key: str = ""
    auth_required: bool = False
    jwt_secret: str = ""
    jwt_key_file: Path | None = None
    jwt_jwks: str = ""
    jwt_leeway_ms: int = 0
    jwt_required_claims: tuple[str, ...] = ("exp",)
    jwt_audience: str = ""
    jwt_issuer: str = ""
    jwt_default_scopes: tuple[str, ...] = ()
    namespace_quotas: tuple[tuple[str, int], ...] = ()
    namespace_share: int = HALF
    namespace_queues_max: int = 100_000
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    #: Authorities that issue certificates of clients; None: clients need no certificate.
    tls_client_ca_file: Path | None = None
    dev_cert: bool = False
    metrics_auth: bool | None = None
    insecure: bool = False
    cors_allow_origin: str = "*"
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    rate_limit_window_ms: int = 60_000
    rate_limit_max_requests: int | None = None
    rate_limit_cleanup_ms: int = 60_000
    rate_limit_ipv6_prefix: int = IPV6_PREFIX
    #: Connections of all HTTP listeners together; 0: half of the file descriptors that are not reserved.
    http_connections_max: int = 0
    http_idle_timeout_ms: int = 5 * limits.MINUTE_MS
    shutdown_timeout_ms: int = 10_000
    completed_max: int = _RETENTION.completed_max
    completed_age_ms: int = _RETENTION.completed_age_ms
    journal_bytes_max: int = _RETENTION.journal_bytes_max
    journal_age_ms: int = _RETENTION.journal_age_ms
    ballast_bytes: int = 64 * limits.MEBIBYTE
    upgrade_copy: bool = True
    bulk_processes: int = 2
    bulk_memory_bytes: int = 2048 * limits.MEBIBYTE
    bulk_spool_bytes: int = 8192 * limits.MEBIBYTE
    bulk_journal_rows: int = 1_000_000
    bulk_snapshot_ms: int = 10 * limits.MINUTE_MS
    lake: str = ""
    queue_idle_threshold_ms: int = 30_000
    queue_size_threshold: int = 0
    memory_warning_mb: int = 0
    storage_warning_mb: int = 0
    worker_timeout_ms: int = 30_000
    worker_overload_threshold_ms: int = 30_000
    log_level: str = "info"
    log_format: str = "auto"
    webhook_allowed_hosts: tuple[str, ...] = ()
    push_allowed_hosts: tuple[str, ...] = ()
    accept_loss: bool = False
    #: The source of each setting that is not at its default: "--flag", "$VARIABLE", or a line of a file.
    origins: dict[str, str] = {}
    #: Notes about keys of the file that have no effect here, and about keys that were converted.
    notes: tuple[str, ...] = ()
    #: Listeners that the file opens to other machines while it explicitly disables keys.
    unguarded: frozenset[str] = frozenset()

    @property
    def asks_for_tokens(self) -> bool:
        """Return whether any client needs a token."""
        return bool(
            self.auth_tokens or self.api_key or self.auth_required or self.jwt_secret or self.jwt_key_file or self.jwt_jwks
        )


class Setting(NamedTuple):
    """The form and the description of a setting."""

    read: Callable[[str], Any]
    env: tuple[str, ...]
    help: str
    #: The name of its flag, if it differs from the name of the setting.
    flag: str = ""


#: Settings whose values may hold a secret.
SECRETS = frozenset({"api_key", "auth_tokens", "jwt_secret", "lake", "redis", "stores"})
#: Settings that are addresses: shown without passwords and queries.
ADDRESSES = frozenset({"jwt_jwks", "lake", "redis", "stores"})
#: The text for "no value", for settings that may have none.
NOTHING = {
    "cors_allow_origin": "none",
    "jwt_default_scopes": "none",
    "jwt_required_claims": "none",
    "push_retry_delays_ms": "none",
}
#: Durations without a unit in their names, because they are written with one.
SPELLED = frozenset({"messages_retention", "messages_schedule_ahead"})
_LONG = 100 * limits.YEAR_MS
SETTINGS: dict[str, Setting] = {
    "data": Setting(
        Path,
        ("PENSTOCK_DATA", "BUNQUEUE_DATA_PATH", "BQ_DATA_PATH", "DATA_PATH", "EPOCHQ_DATA_DIR", "EPOCHQUEUE_DATA_DIR"),
        "directory that holds the queue",
    ),
    "stores": Setting(
        parsers.stores,
        ("PENSTOCK_STORES",),
        "databases (postgresql://…) or directories (sqlite:DIR) to keep the queues in instead of data; --store once for each",
        "--store",
    ),
    "database_answer_ms": Setting(
        parsers.duration(1_000, 15_000),
        ("PENSTOCK_DATABASE_ANSWER_MS",),
        "after this time without an answer, a database counts as lost; requests are refused until it answers again",
    ),
    "redis": Setting(
        parsers.redis,
        ("PENSTOCK_REDIS",),
        "Redis (redis://…, rediss://…) or its Sentinels (sentinel://HOST,HOST/MASTER) for the fast path of databases; several "
        "addresses, separated by commas, are assigned to the shards in turn",
    ),
    "redis_hot_jobs": Setting(
        parsers.number(1, 10**9),
        ("PENSTOCK_REDIS_HOT_JOBS",),
        "number of jobs that must be claimed from a queue within a second to make it a hot queue",
    ),
    "wal_dir": Setting(
        Path,
        ("PENSTOCK_WAL_DIR", "WAL_DIR"),
        "directory of the log of the enqueue buffer, with databases and Redis; if not set: the data directory",
    ),
    "http": Setting(parsers.main_listener, ("PENSTOCK_HTTP",), "address of the main listener (HTTP_PORT and HOST work too)"),
    "tcp": Setting(
        parsers.listener,
        ("PENSTOCK_TCP",),
        "address of the jobs door's TCP protocol, or off (TCP_PORT and HOST work too)",
    ),
    "resp": Setting(
        parsers.listener,
        ("PENSTOCK_RESP",),
        "address of the Redis protocol, or off; with TLS if there is a certificate",
    ),
    "resp_plain": Setting(
        parsers.listener,
        ("PENSTOCK_RESP_PLAIN",),
        "a second listener of the Redis protocol that never uses TLS, or off",
    ),
    "metrics": Setting(
        parsers.listener, ("PENSTOCK_METRICS",), "address of the metrics for Prometheus, in addition to /prometheus, or off"
    ),
    "batches": Setting(
        parsers.listener,
        ("PENSTOCK_BATCHES",),
        "separate address of the batches door, as in mqueue (8080 there), or off",
    ),
    "batches_max_retries": Setting(
        parsers.number(1, limits.attempts_max),
        ("PENSTOCK_BATCHES_MAX_RETRIES",),
        "failed deliveries after which a message of the batches door is a dead letter, if the message has no limit of its own",
    ),
    "topics": Setting(
        parsers.listener,
        ("PENSTOCK_TOPICS",),
        "separate address of the topics door, as in miniqueue (8080 there), or off",
    ),
    "topics_lease_ms": Setting(
        parsers.duration(300, limits.HOUR_MS),
        ("PENSTOCK_TOPICS_LEASE_MS",),
        "after this time, the messages that the subscribers of a killed server held are ready again",
    ),
    "messages": Setting(
        parsers.listener,
        ("PENSTOCK_MESSAGES",),
        "separate address of the messages door, as in EpochQ (8080 there), or off",
    ),
    "messages_visibility_timeout_ms": Setting(
        parsers.duration(1, limits.timeout_ms_max),
        ("PENSTOCK_MESSAGES_VISIBILITY_TIMEOUT_MS",),
        "how long a consumer has for a message, if neither its queue nor the consumer sets a time",
    ),
    "messages_max_size_kb": Setting(
        parsers.number(1, limits.payload_bytes_max // 1024), ("PENSTOCK_MESSAGES_MAX_SIZE_KB",), "how large a message may be"
    ),
    "messages_batch_max": Setting(
        parsers.number(1, limits.bulk_jobs_max),
        ("PENSTOCK_MESSAGES_BATCH_MAX",),
        "messages that may be published or consumed at once",
    ),
    "messages_batch_default": Setting(
        parsers.number(1, limits.bulk_jobs_max),
        ("PENSTOCK_MESSAGES_BATCH_DEFAULT",),
        "messages that a consumer gets if it names no number",
    ),
    "messages_max": Setting(
        parsers.number(1, limits.queue_messages_max),
        ("PENSTOCK_MESSAGES_MAX",),
        "messages that a queue holds, ready and in flight, if the queue has no limit of its own",
    ),
    "messages_max_retries": Setting(
        parsers.number(0, limits.attempts_max),
        ("PENSTOCK_MESSAGES_MAX_RETRIES",),
        "how often a message is delivered before it is a dead letter, if neither its queue nor the message sets a limit",
    ),
    "messages_retention": Setting(
        parsers.duration(0, _LONG),
        ("PENSTOCK_MESSAGES_RETENTION",),
        "how long a message that is not consumed is kept after its due time; 0: without limit",
    ),
    "messages_schedule_ahead": Setting(
        parsers.duration(1, limits.delay_ms_max),
        ("PENSTOCK_MESSAGES_SCHEDULE_AHEAD",),
        "how far ahead a message may be scheduled",
    ),
    "messages_auto_create": Setting(
        parsers.yes_or_no,
        ("PENSTOCK_MESSAGES_AUTO_CREATE",),
        "create a namespace when its first message is published",
    ),
    "push_retry_delays_ms": Setting(
        parsers.durations(limits.push_retries_max, limits.DAY_MS),
        ("PENSTOCK_PUSH_RETRY_DELAYS_MS",),
        "waits before each retry of a push to a subscription, or none",
    ),
    "push_timeout_ms": Setting(
        parsers.duration(1, limits.HOUR_MS),
        ("PENSTOCK_PUSH_TIMEOUT_MS",),
        "how long a subscription may take to accept a message",
    ),
    "durability": Setting(
        parsers.durability, ("PENSTOCK_DURABILITY",), "what an answer means: always (on disk), interval, or never"
    ),
    "sync_interval_ms": Setting(
        parsers.duration(1, 60_000),
        ("PENSTOCK_SYNC_INTERVAL_MS",),
        "with interval: how much time of writes a power cut may lose",
    ),
    "auth_tokens": Setting(parsers.tokens, ("AUTH_TOKENS",), "tokens with all permissions, separated by commas"),
    "api_key": Setting(
        parsers.static_key,
        ("PENSTOCK_AUTH_API_KEY", "EPOCHQ_AUTH_API_KEY", "EPOCHQUEUE_AUTH_API_KEY"),
        "one key with all permissions, sent as X-Api-Key; others are created with penstock keys",
    ),
    "auth_required": Setting(
        parsers.yes_or_no,
        ("PENSTOCK_AUTH_REQUIRED",),
        "require a token or a key at every door, even while there is none",
    ),
    "jwt_secret": Setting(str, ("JWT_SECRET",), "secret that JSON Web Tokens are signed with (HS256), of 32 bytes or more"),
    "jwt_key_file": Setting(
        Path, ("JWT_KEY_FILE",), "PEM file with the public key that JSON Web Tokens are checked with (RS256, ES256)"
    ),
    "jwt_jwks": Setting(str, ("JWT_JWKS",), "JWKS with such public keys: a file, or an https URL"),
    "jwt_leeway_ms": Setting(
        parsers.duration(0, limits.HOUR_MS), ("JWT_LEEWAY_MS",), "by how much clocks of issuers may differ"
    ),
    "jwt_required_claims": Setting(
        parsers.claims, ("JWT_REQUIRED_CLAIMS",), "claims that a JSON Web Token must have, separated by commas, or none"
    ),
    "jwt_audience": Setting(str, ("JWT_AUDIENCE",), "required audience of a JSON Web Token (its aud)"),
    "jwt_issuer": Setting(str, ("JWT_ISSUER",), "required issuer of a JSON Web Token (its iss)"),
    "jwt_default_scopes": Setting(
        parsers.claims,
        ("JWT_DEFAULT_SCOPES",),
        "scopes of a JSON Web Token that has no claim with scopes or namespaces, separated by commas, or none",
    ),
    "namespace_quotas": Setting(
        parsers.quotas,
        ("NAMESPACE_QUOTAS",),
        "jobs per minute as namespace:number, separated by commas; * is each of the others",
    ),
    "namespace_share": Setting(
        parsers.number(1, ALL),
        ("PENSTOCK_NAMESPACE_SHARE",),
        "percent of each limited resource (connections, webhooks, crons and others) that one namespace may use, if"
        " namespaces are separated; 100: all of it",
    ),
    "namespace_queues_max": Setting(
        parsers.number(1, limits.queues_max),
        ("PENSTOCK_NAMESPACE_QUEUES_MAX",),
        "queues that one namespace may have in each store, if namespaces are separated",
    ),
    "tls_cert_file": Setting(
        Path, ("TLS_CERT_FILE",), "PEM file with the certificate, and its chain, of all listeners", "--cert"
    ),
    "tls_key_file": Setting(
        Path, ("TLS_KEY_FILE",), "PEM file with the certificate's private key, without a passphrase", "--key"
    ),
    "tls_client_ca_file": Setting(
        Path,
        ("TLS_CLIENT_CA_FILE",),
        "PEM file with the authorities of the certificates that clients must send, on every listener with TLS (mutual TLS)",
        "--client-ca",
    ),
    "dev_cert": Setting(
        parsers.yes_or_no,
        ("PENSTOCK_DEV_CERT",),
        "TLS with a certificate for this machine only, created in the data directory if it is missing",
    ),
    "metrics_auth": Setting(
        parsers.yes_or_no,
        ("METRICS_AUTH",),
        "require a token at /prometheus too; if not set: if there are API keys, or JSON Web Tokens are configured",
    ),
    "insecure": Setting(
        parsers.yes_or_no, ("PENSTOCK_INSECURE",), "allow listening to other machines without tokens, or with --dev-cert"
    ),
    "cors_allow_origin": Setting(
        parsers.origin,
        ("CORS_ALLOW_ORIGIN",),
        "web pages that may call the doors: * for all (if a token is required), an origin, or none",
    ),
    "allowed_hosts": Setting(
        parsers.own_hosts,
        ("PENSTOCK_ALLOWED_HOSTS",),
        "names of this server besides localhost and its address, as requests have them in Host, separated by commas; *.NAME "
        "for all names below one, * for every name; others are refused while no token is required",
    ),
    "trusted_proxies": Setting(
        parsers.networks,
        ("PENSTOCK_TRUSTED_PROXIES",),
        "networks whose X-Forwarded-For and X-Forwarded-Host are trusted, separated by commas",
    ),
    "rate_limit_window_ms": Setting(
        parsers.duration(1, limits.DAY_MS),
        ("RATE_LIMIT_WINDOW_MS",),
        "how long a request of a client counts",
    ),
    "rate_limit_max_requests": Setting(
        parsers.request_limit,
        ("RATE_LIMIT_MAX_REQUESTS",),
        "requests and commands per window and client; 0 or Infinity: no limit",
    ),
    "rate_limit_cleanup_ms": Setting(
        parsers.duration(1, limits.DAY_MS), ("RATE_LIMIT_CLEANUP_MS",), "how often inactive clients are removed"
    ),
    "rate_limit_ipv6_prefix": Setting(
        parsers.number(1, 128),
        ("PENSTOCK_RATE_LIMIT_IPV6_PREFIX",),
        "IPv6 addresses that have so many first bits in common count as one client; 128: each address counts alone",
    ),
    "http_connections_max": Setting(
        parsers.number(0, 1_000_000),
        ("PENSTOCK_HTTP_CONNECTIONS_MAX",),
        "connections of all HTTP listeners together; 0: as many as the limit of open files leaves room for, up to 20000",
    ),
    "http_idle_timeout_ms": Setting(
        parsers.duration(1_000, limits.DAY_MS),
        ("PENSTOCK_HTTP_IDLE_TIMEOUT_MS",),
        "how long a connection without a request in progress may send nothing",
    ),
    "shutdown_timeout_ms": Setting(
        parsers.duration(0, limits.HOUR_MS), ("SHUTDOWN_TIMEOUT_MS",), "how long a shutdown waits for requests in progress"
    ),
    "completed_max": Setting(parsers.number(0, 10**9), ("PENSTOCK_COMPLETED_MAX",), "completed jobs kept per queue"),
    "completed_age_ms": Setting(
        parsers.duration(0, _LONG), ("PENSTOCK_COMPLETED_AGE_MS",), "how long completed jobs are kept"
    ),
    "journal_bytes_max": Setting(
        parsers.number(1_000, 10**13), ("PENSTOCK_JOURNAL_BYTES_MAX",), "how many bytes of the journal are kept"
    ),
    "journal_age_ms": Setting(parsers.duration(0, _LONG), ("PENSTOCK_JOURNAL_AGE_MS",), "how long the journal is kept"),
    "upgrade_copy": Setting(
        parsers.yes_or_no, ("PENSTOCK_UPGRADE_COPY",), "keep a copy of a data file of an older schema before it is upgraded"
    ),
    "ballast_bytes": Setting(
        parsers.number(0, 10**12),
        ("PENSTOCK_BALLAST_BYTES",),
        "disk space reserved so that acks continue when the disk is full",
    ),
    "bulk_processes": Setting(
        parsers.number(1, 16), ("PENSTOCK_BULK_PROCESSES",), "processes that read in bulk, each started when it is needed"
    ),
    "bulk_memory_bytes": Setting(
        parsers.number(256 * limits.MEBIBYTE, 10**15),
        ("PENSTOCK_BULK_MEMORY_BYTES",),
        "memory that one bulk process may use, on Linux; larger work is refused",
    ),
    "bulk_spool_bytes": Setting(
        parsers.number(limits.MEBIBYTE, 10**14),
        ("PENSTOCK_BULK_SPOOL_BYTES",),
        "disk space for bulk reads, until they are fetched",
    ),
    "bulk_journal_rows": Setting(
        parsers.number(1, 10**8), ("PENSTOCK_BULK_JOURNAL_ROWS",), "events of the journal that may be read at once"
    ),
    "bulk_snapshot_ms": Setting(
        parsers.duration(1_000, limits.DAY_MS),
        ("PENSTOCK_BULK_SNAPSHOT_MS",),
        "how long a snapshot is kept after its last use",
    ),
    "lake": Setting(
        str,
        ("PENSTOCK_LAKE",),
        "directory, or URL in an object store, of the lake that penstock pipeline writes; /insights reads it",
    ),
    "queue_idle_threshold_ms": Setting(
        parsers.duration(0, _LONG),
        ("QUEUE_IDLE_THRESHOLD_MS",),
        "how long a queue must be without jobs until the event queue:idle; 0: never",
    ),
    "queue_size_threshold": Setting(
        parsers.number(0, 10**12),
        ("QUEUE_SIZE_THRESHOLD",),
        "number of jobs in a queue above which there is an event; 0: never",
    ),
    "memory_warning_mb": Setting(
        parsers.number(0, 10**9), ("MEMORY_WARNING_MB",), "size of the heap above which there is an event; 0: never"
    ),
    "storage_warning_mb": Setting(
        parsers.number(0, 10**9), ("STORAGE_WARNING_MB",), "size of the store above which there is an event; 0: never"
    ),
    "worker_timeout_ms": Setting(
        parsers.duration(1, limits.DAY_MS),
        ("WORKER_TIMEOUT_MS",),
        "a worker without a heartbeat for this long counts as disconnected",
    ),
    "worker_overload_threshold_ms": Setting(
        parsers.duration(0, limits.DAY_MS),
        ("WORKER_OVERLOAD_THRESHOLD_MS",),
        "how long a worker must be full until there is an event",
    ),
    "log_level": Setting(
        parsers.one_of("debug", "info", "warning", "error"),
        ("LOG_LEVEL",),
        "debug (also logs each request), info, warning or error",
    ),
    "log_format": Setting(parsers.log_format, ("LOG_FORMAT",), "auto (plain on a terminal, else JSON), plain or json"),
    "webhook_allowed_hosts": Setting(
        parsers.hosts,
        ("WEBHOOK_ALLOWED_HOSTS",),
        "private hosts that webhooks may call, as they are written in URLs, separated by commas",
    ),
    "push_allowed_hosts": Setting(
        parsers.hosts,
        ("PENSTOCK_PUSH_ALLOWED_HOSTS",),
        "private hosts that messages may be pushed to, as they are written in URLs, separated by commas",
    ),
    "accept_loss": Setting(
        parsers.yes_or_no, (), "start even if commits that were on disk are missing or damaged; these commits are lost"
    ),
}


def flag_of(name: str) -> str:
    """Return the flag of a setting. Not every setting has one on the command line."""
    return SETTINGS[name].flag or f"--{name.replace('_', '-')}"
