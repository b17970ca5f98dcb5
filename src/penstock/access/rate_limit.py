"""How often one client may ask, whichever way it comes: a sliding window per address."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core import limits
from penstock.core.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Iterable

    from granian.rsgi import Scope

    from penstock.core.clock import Clock

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
#: Whatever a proxy says, no more of it is kept.
ADDRESS_CHARS_MAX: Final = 64


class Headers(Protocol):
    """The headers of a request."""

    def get(self, name: str, default: str) -> str:
        """Return a header by its name in lower case."""

    def get_all(self, name: str) -> list[str]:
        """Return all lines of a header by its name in lower case."""


class SlidingWindow:
    """Allows ``requests_max`` per ``window_ms`` and client.

    Counts per fixed window, and weighs the previous window by the part of it that is still in sight: two numbers a client,
    however many requests. At most ``rate_limit_clients_max`` clients are remembered; beyond that the longest unseen go first.
    """

    def __init__(self, clock: Clock, *, window_ms: int, requests_max: int, cleanup_ms: int) -> None:
        self._clock = clock
        self._window_ms = window_ms
        self._requests_max = requests_max
        self._cleanup_ms = cleanup_ms
        self._cleanup_at = clock.steady_ms() + cleanup_ms
        self._clients: dict[
            str, tuple[int, int, int]
        ] = {}  # client: window number, requests in it, requests in the one before

    def retry_after_ms(self, client: str) -> int:
        """Count a request of a client; 0 if it is allowed, else how long to wait before the next."""
        now = self._clock.steady_ms()
        if now >= self._cleanup_at:
            self._clean_up(now)
        window, into = divmod(now, self._window_ms)
        number, current, previous = self._clients.pop(client, (window, 0, 0))
        if number != window:
            current, previous = 0, current if number == window - 1 else 0
        in_sight = current + previous * (self._window_ms - into) / self._window_ms
        allowed = in_sight + 1 <= self._requests_max
        self._clients[client] = (window, current + allowed, previous)  # put back at the end: last seen
        if len(self._clients) > limits.rate_limit_clients_max:
            del self._clients[next(iter(self._clients))]
        return 0 if allowed else max(1, self._window_ms - into)

    def check(self, client: str) -> None:
        """Count a request, or a command, of a client. Raises RateLimited if it is one too many."""
        wait_ms = self.retry_after_ms(client)
        if wait_ms:
            raise RateLimited(retry_after_ms=wait_ms)

    def _clean_up(self, now: int) -> None:
        self._cleanup_at = now + self._cleanup_ms
        oldest = now // self._window_ms - 1
        self._clients = {client: seen for client, seen in self._clients.items() if seen[0] >= oldest}


class ClientAddress:
    """Finds out who is asking, through proxies that are trusted to say so and through nobody else."""

    def __init__(self, trusted_proxies: Iterable[str]) -> None:
        self._trusted: list[Network] = [ipaddress.ip_network(each, strict=False) for each in trusted_proxies]

    def of(self, peer: str, headers: Headers) -> str:
        """Return the client's address: from X-Forwarded-For, else from X-Real-IP, else the peer itself.

        Of several forwarded addresses it is the last one that is no trusted proxy: everything left of it was sent by the
        client and could be invented. A peer that is no trusted proxy is believed nothing.
        """
        if not self._is_trusted(peer):
            return peer
        forwarded = ",".join(headers.get_all("x-forwarded-for"))  # a proxy may add a line instead of a word
        hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
        for hop in reversed(hops):
            if not self._is_trusted(hop):
                return hop[:ADDRESS_CHARS_MAX]
        return headers.get("x-real-ip", "").strip()[:ADDRESS_CHARS_MAX] or (hops or [peer])[0]

    def behind(self, scope: Scope) -> str:
        """Return the address of the client of a request."""
        headers: Any = scope.headers  # the type stubs do not know all of its methods
        return self.of(scope.client.rpartition(":")[0].strip("[]"), headers)

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self._trusted)
