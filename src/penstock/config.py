"""The one configuration: every setting with its default, its environment variables and what it is for.

Later sources win: defaults, the file given by ``--config`` (YAML, flat, the names below), environment variables, flags.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import yaml

from penstock.core import limits
from penstock.core.durability import Durability
from penstock.core.errors import ConfigInvalid
from penstock.core.ids import SHARDS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Listener(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Tell whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Config(msgspec.Struct, frozen=True):
    """All settings. A listener that is None is off."""

    data: Path = Path("data")
    stores: tuple[str, ...] = ()
    redis: str = ""
    redis_hot_jobs: int = 200
    http: Listener = Listener("127.0.0.1", 6790)
    tcp: Listener | None = Listener("127.0.0.1", 6789)
    resp: Listener | None = Listener("127.0.0.1", 6380)
    metrics: Listener | None = Listener("127.0.0.1", 9090)
    batches: Listener | None = None
    topics: Listener | None = None
    topics_lease_ms: int = 10_000
    durability: Durability = Durability.ALWAYS
    sync_interval_ms: int = 100
    auth_tokens: tuple[str, ...] = ()
    jwt_secret: str = ""
    jwt_key_file: Path | None = None
    jwt_jwks: str = ""
    jwt_leeway_ms: int = 0
    jwt_required_claims: tuple[str, ...] = ("exp",)
    jwt_audience: str = ""
    jwt_issuer: str = ""
    namespace_quotas: tuple[tuple[str, int], ...] = ()
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    dev_cert: bool = False
    metrics_auth: bool = False
    insecure: bool = False
    cors_allow_origin: str = "*"
    trusted_proxies: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    rate_limit_window_ms: int = 60_000
    rate_limit_max_requests: int | None = None
    rate_limit_cleanup_ms: int = 60_000
    shutdown_timeout_ms: int = 10_000
    completed_max: int = 50_000
    completed_age_ms: int = 7 * limits.DAY_MS
    journal_bytes_max: int = 256 * limits.MEBIBYTE
    journal_age_ms: int = 7 * limits.DAY_MS
    ballast_bytes: int = 64 * limits.MEBIBYTE
    queue_idle_threshold_ms: int = 30_000
    queue_size_threshold: int = 0
    memory_warning_mb: int = 0
    storage_warning_mb: int = 0
    worker_timeout_ms: int = 30_000
    worker_overload_threshold_ms: int = 30_000
    log_level: str = "info"
    log_format: str = "auto"
    webhook_allowed_hosts: tuple[str, ...] = ()
    accept_loss: bool = False
    #: Where each setting that is not at its default comes from: "--flag", "$VARIABLE", or a file.
    origins: dict[str, str] = {}

    @property
    def asks_for_tokens(self) -> bool:
        """Tell whether anybody needs a token."""
        return bool(self.auth_tokens or self.jwt_secret or self.jwt_key_file or self.jwt_jwks)


class Setting(NamedTuple):
    """How a setting is written and what it is for."""

    read: Callable[[str], Any]
    env: tuple[str, ...]
    help: str
    #: How its flag is called, where that is not the name of the setting.
    flag: str = ""


def _listener(text: str) -> Listener | None:
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_address = _is_address(host) or re.search(r"[A-Za-z]", host)  # 999.1.1.1 is neither an address nor a name
    if not colon or not is_address or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError("expected HOST:PORT, for example 127.0.0.1:6790, or off")
    return Listener(host, int(port))


def _main_listener(text: str) -> Listener:
    try:
        listener = _listener(text)
    except ValueError:
        listener = None
    if listener is None:
        raise ValueError("expected HOST:PORT, for example 127.0.0.1:6790")
    return listener


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return value

    return read


def _request_limit(text: str) -> int | None:
    """Infinity and 0 both switch the limit off."""
    if text.lower() in ("infinity", "inf"):
        return None
    return _number(0, 10**12)(text) or None


def _yes_or_no(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("expected yes or no")


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of: {', '.join(choices)}")
        return text.lower()

    return read


def _durability(text: str) -> Durability:
    return Durability(_one_of(*Durability)(text))


def _tokens(text: str) -> tuple[str, ...]:
    tokens = tuple(token.strip() for token in text.split(","))
    if not all(tokens):
        raise ValueError("an empty token would let everybody in; expected tokens separated by commas, or leave it unset")
    return tokens


def _stores(text: str) -> tuple[str, ...]:
    stores = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in stores:
        parts = urlsplit(each)
        if parts.scheme not in ("postgresql", "postgres", "sqlite") or not parts.path.strip("/"):
            raise ValueError("expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or sqlite:DIRECTORY")
    if len({urlsplit(each).scheme == "sqlite" for each in stores}) > 1:
        raise ValueError("expected shards of one kind: either databases or directories")
    if len(set(stores)) != len(stores):
        raise ValueError("expected each shard once")
    if len(stores) > SHARDS_MAX:
        raise ValueError(f"expected at most {SHARDS_MAX} shards")
    return stores


def _redis(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("redis", "rediss", "sentinel", "sentinels") or not parts.netloc:
        raise ValueError("expected redis://HOST:PORT/DB, rediss:// for TLS, or sentinel://HOST:PORT,HOST:PORT/MASTER")
    if parts.scheme.startswith("sentinel") and not parts.path.strip("/"):
        raise ValueError("expected the name of the master behind the Sentinels: sentinel://HOST:PORT,HOST:PORT/MASTER")
    return text


def _claims(text: str) -> tuple[str, ...]:
    """None requires nothing, not even an end."""
    return () if text.lower() == "none" else tuple(each.strip() for each in text.split(",") if each.strip())


def _quotas(text: str) -> tuple[tuple[str, int], ...]:
    quotas: dict[str, int] = {}
    for each in text.split(","):
        namespace, _, quota = each.strip().rpartition(":")  # a namespace may have colons in its name
        name = namespace.strip()
        if not re.fullmatch(r"[A-Za-z0-9_.:-]+|\*", name) or not re.fullmatch(r"[0-9]{1,12}", quota.strip()):
            raise ValueError("expected NAMESPACE:NUMBER, separated by commas, for example acme:1000,*:100")
        if name in quotas:
            raise ValueError(f"{name} has two quotas")
        quotas[name] = int(quota)
    if len(quotas) > limits.quota_namespaces_max:
        raise ValueError(f"too many namespaces (max {limits.quota_namespaces_max})")
    return tuple(quotas.items())


def _origin(text: str) -> str:
    return "" if text.lower() == "none" else text


def _networks(text: str) -> tuple[str, ...]:
    networks = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in networks:
        ipaddress.ip_network(each, strict=False)
    return networks


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(each.strip().lower().removeprefix("[").removesuffix("]") for each in text.split(",") if each.strip())
    if not all(_is_address(each) or re.fullmatch(r"[a-z0-9._-]+", each) for each in hosts):
        raise ValueError("expected names or addresses of hosts without scheme and port, separated by commas")
    return hosts


def _log_format(text: str) -> str:
    return _one_of("auto", "plain", "json")({"text": "plain", "pretty": "plain"}.get(text, text))


#: Settings whose values are never shown.
SECRETS = frozenset({"auth_tokens", "jwt_secret", "redis", "stores"})
_LONG = 100 * limits.YEAR_MS
SETTINGS: dict[str, Setting] = {
    "data": Setting(Path, ("PENSTOCK_DATA", "DATA_PATH"), "directory that holds the queue"),
    "stores": Setting(
        _stores,
        ("PENSTOCK_STORES",),
        "databases (postgresql://…) or directories (sqlite:DIR) to keep the queues in instead of data; --store once for each",
        "--store",
    ),
    "redis": Setting(
        _redis,
        ("PENSTOCK_REDIS",),
        "Redis (redis://…, rediss://…) or its Sentinels (sentinel://HOST,HOST/MASTER) for the fast path of databases",
    ),
    "redis_hot_jobs": Setting(
        _number(1, 10**9), ("PENSTOCK_REDIS_HOT_JOBS",), "jobs taken from a queue within a second that make it a hot one"
    ),
    "http": Setting(_main_listener, ("PENSTOCK_HTTP",), "where the doors listen (HTTP_PORT and HOST work too)"),
    "tcp": Setting(
        _listener, ("PENSTOCK_TCP",), "where the jobs door's TCP protocol listens, or off (TCP_PORT and HOST work too)"
    ),
    "resp": Setting(_listener, ("PENSTOCK_RESP",), "where the topics door speaks the Redis protocol, or off"),
    "metrics": Setting(_listener, ("PENSTOCK_METRICS",), "where Prometheus finds metrics besides /prometheus, or off"),
    "batches": Setting(
        _listener, ("PENSTOCK_BATCHES",), "where the batches door listens on its own, as mqueue does (8080 there), or off"
    ),
    "topics": Setting(
        _listener, ("PENSTOCK_TOPICS",), "where the topics door listens on its own, as miniqueue does (8080 there), or off"
    ),
    "topics_lease_ms": Setting(
        _number(300, limits.HOUR_MS),
        ("PENSTOCK_TOPICS_LEASE_MS",),
        "how long after the death of a server the messages come back that its subscribers held",
    ),
    "durability": Setting(
        _durability, ("PENSTOCK_DURABILITY",), "what an answer means: always (on disk), interval, or never"
    ),
    "sync_interval_ms": Setting(
        _number(1, 60_000), ("PENSTOCK_SYNC_INTERVAL_MS",), "with interval: how much a power cut may take"
    ),
    "auth_tokens": Setting(_tokens, ("AUTH_TOKENS",), "tokens that open the doors, separated by commas"),
    "jwt_secret": Setting(str, ("JWT_SECRET",), "secret that JSON Web Tokens are signed with (HS256), of 32 bytes or more"),
    "jwt_key_file": Setting(
        Path, ("JWT_KEY_FILE",), "PEM file with the public key that JSON Web Tokens are checked with (RS256, ES256)"
    ),
    "jwt_jwks": Setting(str, ("JWT_JWKS",), "JWKS with such public keys: a file, or an https URL"),
    "jwt_leeway_ms": Setting(_number(0, limits.HOUR_MS), ("JWT_LEEWAY_MS",), "by how much clocks of issuers may differ"),
    "jwt_required_claims": Setting(
        _claims, ("JWT_REQUIRED_CLAIMS",), "claims that a JSON Web Token must have, separated by commas, or none"
    ),
    "jwt_audience": Setting(str, ("JWT_AUDIENCE",), "who a JSON Web Token must be for (its aud)"),
    "jwt_issuer": Setting(str, ("JWT_ISSUER",), "who a JSON Web Token must be from (its iss)"),
    "namespace_quotas": Setting(
        _quotas, ("NAMESPACE_QUOTAS",), "jobs per minute as namespace:number, separated by commas; * is each of the others"
    ),
    "tls_cert_file": Setting(
        Path, ("TLS_CERT_FILE",), "PEM file with the certificate, and its chain, of all listeners", "--cert"
    ),
    "tls_key_file": Setting(
        Path, ("TLS_KEY_FILE",), "PEM file with the certificate's private key, without a passphrase", "--key"
    ),
    "dev_cert": Setting(
        _yes_or_no,
        ("PENSTOCK_DEV_CERT",),
        "TLS with a certificate for this machine only, made in the data directory if need be",
    ),
    "metrics_auth": Setting(_yes_or_no, ("METRICS_AUTH",), "ask for a token at /prometheus too"),
    "insecure": Setting(
        _yes_or_no, ("PENSTOCK_INSECURE",), "allow listening to other machines without tokens, or with --dev-cert"
    ),
    "cors_allow_origin": Setting(
        _origin, ("CORS_ALLOW_ORIGIN",), "web pages that may call the doors: * for all, an origin, or none"
    ),
    "trusted_proxies": Setting(
        _networks, ("PENSTOCK_TRUSTED_PROXIES",), "networks whose X-Forwarded-For is believed, separated by commas"
    ),
    "rate_limit_window_ms": Setting(_number(1, limits.DAY_MS), ("RATE_LIMIT_WINDOW_MS",), "sliding window per client"),
    "rate_limit_max_requests": Setting(
        _request_limit, ("RATE_LIMIT_MAX_REQUESTS",), "requests and commands per window and client; 0 or Infinity: no limit"
    ),
    "rate_limit_cleanup_ms": Setting(
        _number(1, limits.DAY_MS), ("RATE_LIMIT_CLEANUP_MS",), "how often clients not seen for long are forgotten"
    ),
    "shutdown_timeout_ms": Setting(
        _number(0, limits.HOUR_MS), ("SHUTDOWN_TIMEOUT_MS",), "how long a shutdown waits for requests under way"
    ),
    "completed_max": Setting(_number(0, 10**9), ("PENSTOCK_COMPLETED_MAX",), "completed jobs kept per queue"),
    "completed_age_ms": Setting(_number(0, _LONG), ("PENSTOCK_COMPLETED_AGE_MS",), "how long completed jobs are kept"),
    "journal_bytes_max": Setting(_number(1_000, 10**13), ("PENSTOCK_JOURNAL_BYTES_MAX",), "how much of the journal is kept"),
    "journal_age_ms": Setting(_number(0, _LONG), ("PENSTOCK_JOURNAL_AGE_MS",), "how long the journal is kept"),
    "ballast_bytes": Setting(
        _number(0, 10**12), ("PENSTOCK_BALLAST_BYTES",), "disk space reserved so that acks go on when the disk is full"
    ),
    "queue_idle_threshold_ms": Setting(
        _number(0, _LONG), ("QUEUE_IDLE_THRESHOLD_MS",), "a queue without jobs for this long is told to be idle; 0: never"
    ),
    "queue_size_threshold": Setting(
        _number(0, 10**12), ("QUEUE_SIZE_THRESHOLD",), "more jobs than this in a queue are told; 0: never"
    ),
    "memory_warning_mb": Setting(_number(0, 10**9), ("MEMORY_WARNING_MB",), "a larger heap than this is told; 0: never"),
    "storage_warning_mb": Setting(_number(0, 10**9), ("STORAGE_WARNING_MB",), "a larger store than this is told; 0: never"),
    "worker_timeout_ms": Setting(
        _number(1, limits.DAY_MS), ("WORKER_TIMEOUT_MS",), "a worker silent for this long counts as disconnected"
    ),
    "worker_overload_threshold_ms": Setting(
        _number(0, limits.DAY_MS), ("WORKER_OVERLOAD_THRESHOLD_MS",), "a worker that is full for this long is told"
    ),
    "log_level": Setting(_one_of("debug", "info", "warning", "error"), ("LOG_LEVEL",), "debug, info, warning or error"),
    "log_format": Setting(_log_format, ("LOG_FORMAT",), "auto (plain on a terminal, else JSON), plain or json"),
    "webhook_allowed_hosts": Setting(
        _hosts,
        ("WEBHOOK_ALLOWED_HOSTS",),
        "private hosts that webhooks may call, as they are written in URLs, separated by commas",
    ),
    "accept_loss": Setting(_yes_or_no, (), "start although the log is damaged, without the commits behind the damage"),
}


def load(flags: Mapping[str, str], env: Mapping[str, str], file: Path | None = None) -> Config:
    """Put the configuration together. Raises ConfigInvalid, naming the setting, where it came from and what was expected."""
    texts: dict[str, tuple[str, str]] = {}
    if file is not None:
        texts.update(_from_file(file))
    texts.update(_from_env(env))
    texts.update({name: (text, flag_of(name)) for name, text in flags.items()})
    values: dict[str, Any] = {}
    for name, (text, origin) in texts.items():
        try:
            values[name] = SETTINGS[name].read(text.strip())
        except ValueError as error:
            shown = "***" if name in SECRETS else repr(text)
            raise ConfigInvalid(f"{name} (from {origin}) is {shown}: {error}.") from None
    config = Config(**values, origins={name: origin for name, (_, origin) in texts.items()})
    _check_listeners(config)
    _check_tls(config)
    return config


def flag_of(name: str) -> str:
    """Return the flag of a setting. Not every setting has one at the command line."""
    return SETTINGS[name].flag or f"--{name.replace('_', '-')}"


def _from_env(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    texts: dict[str, tuple[str, str]] = {}
    host, defaults = env.get("HOST"), Config()
    for listener, default in (("http", defaults.http), ("tcp", defaults.tcp)):
        assert default is not None
        variable = f"{listener.upper()}_PORT"
        port = env.get(variable)
        if port or (host and f"PENSTOCK_{listener.upper()}" not in env and _is_address(host)):
            address = host if host and _is_address(host) else default.host
            names = [f"${name}" for name, value in (("HOST", host), (variable, port)) if value]
            texts[listener] = (f"{address}:{port or default.port}", " and ".join(names))
    for name, setting in SETTINGS.items():
        for variable in setting.env:
            if env.get(variable):
                texts[name] = (env[variable], f"${variable}")
                break
    return texts


def _is_address(host: str) -> bool:
    """Tell whether $HOST is meant for us: many shells set it to the name of the machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _from_file(file: Path) -> dict[str, tuple[str, str]]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigInvalid(f"The configuration file {file} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"The configuration file {file} is not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigInvalid(f"The configuration file {file} must hold settings, one per line, as in 'durability: always'.")
    texts: dict[str, tuple[str, str]] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f" Did you mean {close[0]}?" if close else f" There are: {', '.join(SETTINGS)}."
            raise ConfigInvalid(f"The configuration file {file} has an unknown setting {key!r}.{hint}")
        texts[name] = (_text_of(name, value, file), str(file))
    return texts


def _text_of(name: str, value: object, file: Path) -> str:
    """Turn what YAML read back into what was written. Raises ConfigInvalid where that cannot be told."""
    if name == "namespace_quotas" and isinstance(value, dict):
        value = [f"{namespace}:{quota}" for namespace, quota in value.items()]
    items = value if isinstance(value, list) else [value]
    if isinstance(value, bool):  # YAML reads a bare off, no, on or yes as a truth value
        return "on" if value else "off"
    if name in SECRETS and not all(isinstance(each, str) for each in items):
        raise ConfigInvalid(f"The configuration file {file} has a value of {name} that is not text. Put it in quotes.")
    if not items or not all(isinstance(each, str | int | float) for each in items):
        raise ConfigInvalid(
            f"The configuration file {file} has no usable value for {name}. Leave the line out for the default."
        )
    return ",".join(map(str, items))


def _check_listeners(config: Config) -> None:
    listeners = [each for name in SETTINGS if isinstance(each := getattr(config, name), Listener)]
    for listener in listeners:
        if listeners.count(listener) > 1:
            raise ConfigInvalid(f"Two listeners share the address {listener}. Give each its own, or switch one off.")
    exposed = [str(listener) for listener in listeners if not listener.is_loopback]
    if exposed and not config.asks_for_tokens and not config.insecure:
        raise ConfigInvalid(
            f"Listening on {', '.join(exposed)} would let everybody who can reach this machine in. Set AUTH_TOKENS or "
            "JWT_SECRET, listen on 127.0.0.1, or say --insecure if that is what you want."
        )
    if exposed and config.dev_cert and not config.insecure:
        # Clients on other machines would switch the check off, and then anybody in between can read along, tokens and all.
        raise ConfigInvalid(
            f"Listening on {', '.join(exposed)} with a development certificate: it is for this machine, others have no reason "
            "to trust it. Bring a certificate of your own with --cert and --key, listen on 127.0.0.1, or say --insecure if "
            "that is what you want."
        )


def _check_tls(config: Config) -> None:
    files = ("tls_cert_file", "tls_key_file")
    given = [f"{name} (from {config.origins[name]})" for name in files if getattr(config, name) is not None]
    if len(given) == 1:
        (missing,) = (name for name in files if getattr(config, name) is None)
        raise ConfigInvalid(
            f"TLS needs both a certificate and its key, and there is only {given[0]}. Set {missing} too, with "
            f"{flag_of(missing)} or ${SETTINGS[missing].env[0]}, or neither."
        )
    if given and config.dev_cert:
        raise ConfigInvalid(
            f"There is a certificate in {' and '.join(given)}, and dev_cert (from {config.origins['dev_cert']}) asks for "
            "another one. Choose one of them."
        )


def without_password(url: str) -> str:
    """Spell an address so that it can be shown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username}@{host}" if parts.username else host, query="").geturl()
