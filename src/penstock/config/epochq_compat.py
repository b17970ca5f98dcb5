"""Convert the sections of EpochQ's config.yaml to settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.config.parsers import yes_or_no
from penstock.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping


class Given(NamedTuple):
    """The value of a setting as written, its source, and the name under which it was given."""

    text: str
    origin: str
    key: str


class SectionKey(NamedTuple):
    """A key of a section, its value, and its position."""

    key: str
    text: str
    origin: str


class ParsedFile(NamedTuple):
    """The content of a file: settings, notes about them, and hosts of listeners that are deliberately open without a key."""

    texts: dict[str, Given]
    notes: tuple[str, ...] = ()
    unguarded: Mapping[str, str] = {}


#: Keys that are settings with another name.
SAME: Final = {
    "node.data_dir": "data",
    "storage.fsync_interval_ms": "sync_interval_ms",
    "queue.default_visibility_timeout_ms": "messages_visibility_timeout_ms",
    "queue.max_message_size_kb": "messages_max_size_kb",
    "queue.max_batch_size": "messages_batch_max",
    "queue.default_batch_size": "messages_batch_default",
    "queue.max_messages": "messages_max",
    "queue.max_retries": "messages_max_retries",
    "queue.retention_period": "messages_retention",
    "queue.max_schedule_ahead": "messages_schedule_ahead",
    "namespaces.auto_create": "messages_auto_create",
    "webhook.retry_delays_ms": "push_retry_delays_ms",
    "webhook.timeout_ms": "push_timeout_ms",
}
#: Keys that are accepted and have no effect, and why.
WITHOUT_MEANING: Final = {
    "node.id": "servers name themselves",
    "cluster.peers": "servers find each other through their store",
    "storage.segment_size_mb": "there are no segments",
    "storage.compaction_interval": "space is used again without compaction",
    "storage.fsync_batch_size": "what arrives together is written together, however much it is",
    "producers.max_rate": "requests are limited by rate_limit_max_requests, and the jobs of a namespace by namespace_quotas",
    "producers.burst": "requests are limited by rate_limit_max_requests within rate_limit_window_ms",
}
#: Keys that become a setting together with others, or with a different value.
_WOVEN: Final = (
    "node.host",
    "node.port",
    "cluster.enabled",
    "storage.fsync",
    "auth.enabled",
    "auth.api_key",
    "metrics.enabled",
    "metrics.port",
)
KEYS: Final = (*SAME, *WITHOUT_MEANING, *_WOVEN)
NAMES: Final = frozenset(key.partition(".")[0] for key in KEYS)
SECRETS: Final = frozenset({"auth.api_key"})
_FSYNC: Final = {"always": "always", "interval": "interval", "batch": "always", "never": "never"}
_HOST: Final = "127.0.0.1"
_PORT: Final = "8080"
_METRICS_PORT: Final = "9090"


def translate(entries: Mapping[str, SectionKey]) -> ParsedFile:
    """Return the settings for the keys of sections. Raises ConfigInvalid, with the key and what was expected."""
    if _is_on(entries.get("cluster.enabled"), default=False):
        raise ConfigInvalid(
            f"cluster.enabled (from {entries['cluster.enabled'].origin}) is true, and Penstock has no cluster of peers. "
            "Remove the line, and let several servers share PostgreSQL stores instead: --store postgresql://…"
        )
    texts = {SAME[key]: Given(text, origin, key) for key, text, origin in entries.values() if key in SAME}
    notes = [
        f"{key} ({origin}) has no meaning here: {WITHOUT_MEANING[key]}."
        for key, _, origin in entries.values()
        if key in WITHOUT_MEANING
    ]
    texts |= _listeners(entries) | _fsync(entries)
    asked, more = _auth(entries)
    return ParsedFile(texts | asked, (*notes, *more), _unguarded(entries))


def _listeners(entries: Mapping[str, SectionKey]) -> dict[str, Given]:
    texts: dict[str, Given] = {}
    host, port = entries.get("node.host"), entries.get("node.port")
    if host is not None and not host.text:
        raise ConfigInvalid(f"node.host (from {host.origin}) is empty: expected an address, for example 0.0.0.0 for all.")
    address = _HOST if host is None else host.text
    shown = f"[{address}]" if ":" in address else address
    _check_port(port)
    if host is not None or port is not None:
        said = port or host
        assert said is not None
        texts["messages"] = Given(f"{shown}:{_PORT if port is None else port.text}", said.origin, said.key)
    on, number = entries.get("metrics.enabled"), entries.get("metrics.port")
    _check_port(number)
    said = number or on
    if said is not None:
        port_text = _METRICS_PORT if number is None else number.text
        is_on = _is_on(on, default=True)
        texts["metrics"] = Given(f"{shown}:{port_text}" if is_on else "off", said.origin, said.key)
    return texts


def _check_port(entry: SectionKey | None) -> None:
    if entry is not None and not (entry.text.isdigit() and 0 < int(entry.text) < 65_536):
        raise ConfigInvalid(f"{entry.key} (from {entry.origin}) is {entry.text!r}: expected a whole number from 1 to 65535.")


def _fsync(entries: Mapping[str, SectionKey]) -> dict[str, Given]:
    entry = entries.get("storage.fsync")
    if entry is None:
        return {}
    if entry.text not in _FSYNC:
        raise ConfigInvalid(f"{entry.key} (from {entry.origin}) is {entry.text!r}: expected one of: {', '.join(_FSYNC)}.")
    return {"durability": Given(_FSYNC[entry.text], entry.origin, entry.key)}


def _auth(entries: Mapping[str, SectionKey]) -> tuple[dict[str, Given], list[str]]:
    on, key = entries.get("auth.enabled"), entries.get("auth.api_key")
    if on is not None and _is_on(on, default=False):
        if key is not None and key.text:
            return {"api_key": Given(key.text, key.origin, key.key)}, []
        note = f"auth.enabled ({on.origin}) requires keys, and the file has none. Create them with penstock keys create."
        return {"auth_required": Given("yes", on.origin, on.key)}, [note]
    if key is not None and key.text:
        return {}, [f"auth.api_key ({key.origin}) is not used: auth.enabled is not true."]
    return {}, []


def _unguarded(entries: Mapping[str, SectionKey]) -> dict[str, str]:
    """Return the hosts of two listeners that are open deliberately, because the file sets the host and disables keys."""
    on, host = entries.get("auth.enabled"), entries.get("node.host")
    if on is None or host is None or _is_on(on, default=False):
        return {}
    return {"messages": host.text, "metrics": host.text}


def _is_on(entry: SectionKey | None, *, default: bool) -> bool:
    if entry is None:
        return default
    try:
        return yes_or_no(entry.text)
    except ValueError as error:
        raise ConfigInvalid(f"{entry.key} (from {entry.origin}) is {entry.text!r}: {error}.") from None
