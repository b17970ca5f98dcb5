"""Parsers of settings: each takes a text, and raises ValueError with what was expected."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from penstock.core import limits
from penstock.core.durability import Durability
from penstock.core.ids import SHARDS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable


class Listener(NamedTuple):
    """The address of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def listener(text: str) -> Listener | None:
    """Parse the address of a listener; ``off`` is None."""
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_host = is_address(host) or re.search(r"[A-Za-z]", host)  # 999.1.1.1 is neither an address nor a name
    if not colon or not is_host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError("expected HOST:PORT, for example 127.0.0.1:6790, or off")
    return Listener(host, int(port))


def main_listener(text: str) -> Listener:
    """Parse the address of a listener that cannot be off."""
    try:
        found = listener(text)
    except ValueError:
        found = None
    if found is None:
        raise ValueError("expected HOST:PORT, for example 127.0.0.1:6790")
    return found


def number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return value

    return read


#: The milliseconds in each unit of a duration.
_UNITS: Final = {"ms": 1, "s": 1_000, "m": limits.MINUTE_MS, "h": limits.HOUR_MS, "d": limits.DAY_MS, "w": 7 * limits.DAY_MS}
_DURATION: Final = re.compile(r"(?:[0-9]{1,15}(?:ms|[smhdw]))+")


def duration(low_ms: int, high_ms: int) -> Callable[[str], int]:
    """Return a parser of durations within bounds: milliseconds, or with units as in 7d, 1h30m, 500ms."""

    def read(text: str) -> int:
        try:
            if _DURATION.fullmatch(text):
                value = sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"([0-9]+)(ms|[smhdw])", text))
            else:
                value = int(text)
        except ValueError:
            value = low_ms - 1
        if not low_ms <= value <= high_ms:
            raise ValueError(
                f"expected a whole number from {low_ms} to {high_ms}, in milliseconds, or a duration such as 30s, 12h or 7d"
            )
        return value

    return read


def spell_duration(ms: int) -> str:
    """Return a duration as text, in the largest unit that fits."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS[unit] == 0:
            return f"{ms // _UNITS[unit]}{unit}"
    return str(ms)


def durations(most: int, high_ms: int) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of several durations, separated by commas; ``none`` is an empty list."""
    read_one = duration(0, high_ms)

    def read(text: str) -> tuple[int, ...]:
        found = () if text.lower() == "none" else tuple(read_one(each.strip()) for each in text.split(","))
        if len(found) > most:
            raise ValueError(f"expected at most {most} durations")
        return found

    return read


def static_key(text: str) -> str:
    """Parse a key that gives every permission."""
    if not text.isascii() or not text.isprintable() or any(letter.isspace() for letter in text):
        raise ValueError("expected letters, digits and signs without spaces, because it is shown in a header")
    return text


def request_limit(text: str) -> int | None:
    """Parse a limit of requests; infinity and 0 both switch it off."""
    if text.lower() in ("infinity", "inf"):
        return None
    return number(0, 10**12)(text) or None


def yes_or_no(text: str) -> bool:
    """Parse a Boolean."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("expected yes or no")


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts one of several words."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of: {', '.join(choices)}")
        return text.lower()

    return read


def durability(text: str) -> Durability:
    """Parse the durability of answers."""
    return Durability(one_of(*Durability)(text))


def tokens(text: str) -> tuple[str, ...]:
    """Parse tokens. None of them may be empty."""
    tokens = tuple(token.strip() for token in text.split(","))
    if not all(tokens):
        raise ValueError("an empty token would admit every client; expected tokens separated by commas, or leave it unset")
    return tokens


def stores(text: str) -> tuple[str, ...]:
    """Parse the addresses of stores, all of the same kind."""
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


def redis(text: str) -> tuple[str, ...]:
    """Parse addresses of Redis, or of its Sentinels, whose hosts are separated by commas, too."""
    urls = tuple(re.split(r",\s*(?=[a-z]+://)", text)) if text else ()
    for each in urls:
        parts = urlsplit(each)
        if parts.scheme not in ("redis", "rediss", "sentinel", "sentinels") or not parts.netloc:
            raise ValueError("expected redis://HOST:PORT/DB, rediss:// for TLS, or sentinel://HOST:PORT,HOST:PORT/MASTER")
        if parts.scheme.startswith("sentinel") and not parts.path.strip("/"):
            raise ValueError("expected the name of the master behind the Sentinels: sentinel://HOST:PORT,HOST:PORT/MASTER")
    return urls


def claims(text: str) -> tuple[str, ...]:
    """Parse required claims; ``none`` requires no claim, not even an expiry."""
    return () if text.lower() == "none" else tuple(each.strip() for each in text.split(",") if each.strip())


def quotas(text: str) -> tuple[tuple[str, int], ...]:
    """Parse quotas: jobs per minute by namespace."""
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


def origin(text: str) -> str:
    """Parse an origin of web pages; ``none`` allows no origin."""
    return "" if text.lower() == "none" else text


def networks(text: str) -> tuple[str, ...]:
    """Parse networks."""
    networks = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in networks:
        ipaddress.ip_network(each, strict=False)
    return networks


def hosts(text: str) -> tuple[str, ...]:
    """Parse names and addresses of hosts."""
    hosts = tuple(each.strip().lower().removeprefix("[").removesuffix("]") for each in text.split(",") if each.strip())
    if not all(is_address(each) or re.fullmatch(r"[a-z0-9._-]+", each) for each in hosts):
        raise ValueError("expected names or addresses of hosts without scheme and port, separated by commas")
    return hosts


def own_hosts(text: str) -> tuple[str, ...]:
    """Parse names of this server: hosts, ``*.NAME`` for all names below one, ``*`` for every name."""
    found = tuple(each.strip().lower().removeprefix("[").removesuffix("]") for each in text.split(",") if each.strip())
    if not all(is_address(each) or re.fullmatch(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?", each) for each in found):
        raise ValueError("expected names or addresses without scheme and port, *.NAME or *, separated by commas")
    return found


def log_format(text: str) -> str:
    """Parse the format of logs."""
    return one_of("auto", "plain", "json")({"text": "plain", "pretty": "plain"}.get(text, text))


def is_address(host: str) -> bool:
    """Return whether $HOST is a setting of this server: many shells set it to the name of the machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
