"""Rate limits of clients, for all transports: a sliding window per address."""

from __future__ import annotations

import ipaddress
from array import array
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core import limits
from penstock.core.addresses import IPV6_PREFIX, network_of
from penstock.core.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Iterable

    from granian.rsgi import Scope

    from penstock.core.clock import Clock

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
#: No more of a proxy's header is stored.
ADDRESS_CHARS_MAX: Final = 64


class Headers(Protocol):
    """The headers of a request."""

    def get(self, name: str, default: str) -> str:
        """Return a header by its name in lower case."""

    def get_all(self, name: str) -> list[str]:
        """Return all lines of a header by its name in lower case."""


class _Requests:
    """The requests of one client within the window: marks in order of time, each with its number of requests."""

    __slots__ = ("_counts", "_first", "_starts", "total")

    def __init__(self) -> None:
        self._starts = array("q")  # steady ms
        self._counts = array("q")
        self._first = 0  #: index of the first mark that still counts
        self.total = 0  #: requests that still count

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def oldest(self) -> int:
        """Return the time of the oldest request that still counts."""
        return self._starts[self._first]

    @property
    def newest(self) -> int:
        """Return the time of the newest mark."""
        return self._starts[-1]

    def forget(self, until_ms: int) -> None:
        """Remove the requests of ``until_ms`` or before. Marks are deleted when half of them are removed."""
        first, starts = self._first, self._starts
        while first < len(starts) and starts[first] <= until_ms:
            self.total -= self._counts[first]
            first += 1
        if 2 * first >= len(starts):
            del starts[:first], self._counts[:first]
            first = 0
        self._first = first

    def add(self, now: int, slot_ms: int) -> None:
        """Add a request. It joins the newest mark if that is younger than ``slot_ms``."""
        self.total += 1
        if self.total > 1 and now - self._starts[-1] < slot_ms:
            self._counts[-1] += 1
        else:
            self._starts.append(now)
            self._counts.append(1)


class SlidingWindow:
    """Allows each client ``requests_max`` requests in any ``window_ms``. A refused request does not count.

    A client is an address. IPv6 addresses with the same first ``ipv6_prefix`` bits are one client.

    The time of each request is stored while it counts, so the limit and the wait are exact. Requests of the same millisecond
    share a mark. Above ``rate_limit_exact_max`` requests, so do those of a small part of the window, which then count from
    the first of them. There are two bounds: ``rate_limit_clients_max`` clients and ``rate_limit_marks_max`` marks. Beyond
    these, the clients that were not seen for the longest time are removed first.
    """

    def __init__(
        self, clock: Clock, *, window_ms: int, requests_max: int, cleanup_ms: int, ipv6_prefix: int = IPV6_PREFIX
    ) -> None:
        self._clock = clock
        self._ipv6_prefix = ipv6_prefix
        self._window_ms = window_ms
        self._requests_max = requests_max
        self._slot_ms = 1 if requests_max <= limits.rate_limit_exact_max else window_ms // limits.rate_limit_exact_max or 1
        self._cleanup_ms = cleanup_ms
        self._cleanup_at = clock.steady_ms() + cleanup_ms
        self._clients: dict[str, _Requests] = {}  # the client that was seen last is at the end
        self._marks = 0

    def count(self, client: str) -> int:
        """Count a request of a client. Return 0 if it is allowed, else the ms until the next one is."""
        if ":" in client:
            client = network_of(client, self._ipv6_prefix)
        now = self._clock.steady_ms()
        if now >= self._cleanup_at:
            self._clean_up(now)
        seen = self._clients.pop(client, None) or _Requests()
        self._clients[client] = seen
        before = len(seen)
        seen.forget(now - self._window_ms)
        allowed = seen.total < self._requests_max
        if allowed:
            seen.add(now, self._slot_ms)
        self._marks += len(seen) - before
        self._keep_bounds()
        return 0 if allowed else seen.oldest + self._window_ms - now

    def check(self, client: str) -> None:
        """Count a request or a command of a client. Raises RateLimited if it exceeds the limit."""
        wait_ms = self.count(client)
        if wait_ms:
            raise RateLimited(retry_after_ms=wait_ms)

    def _keep_bounds(self) -> None:
        clients = self._clients
        while len(clients) > limits.rate_limit_clients_max or (
            self._marks > limits.rate_limit_marks_max and len(clients) > 1
        ):
            self._marks -= len(clients.pop(next(iter(clients))))

    def _clean_up(self, now: int) -> None:
        self._cleanup_at = now + self._cleanup_ms
        gone = now - self._window_ms
        self._clients = {client: seen for client, seen in self._clients.items() if seen.newest > gone}
        self._marks = sum(len(seen) for seen in self._clients.values())


class ClientAddress:
    """Finds the address of a client, through trusted proxies only."""

    def __init__(self, trusted_proxies: Iterable[str]) -> None:
        self._trusted: list[Network] = [ipaddress.ip_network(each, strict=False) for each in trusted_proxies]

    def of(self, peer: str, headers: Headers) -> str:
        """Return the client's address: from X-Forwarded-For, else from X-Real-IP, else the peer itself.

        Of several forwarded addresses it is the last one that is not a trusted proxy: everything left of it was sent by the
        client and could be forged. At most ``limits.forwarded_hops_max`` are read. The headers of a peer that is not a
        trusted proxy are ignored.
        """
        if not self._is_trusted(peer):
            return peer
        first = peer
        rest = ",".join(headers.get_all("x-forwarded-for"))  # a proxy may add a line instead of a value
        for _ in range(limits.forwarded_hops_max):
            rest, _, hop = rest.rpartition(",")
            hop = hop.strip()[:ADDRESS_CHARS_MAX]
            if hop:
                if not self._is_trusted(hop):
                    return hop
                first = hop
            if not rest:
                return headers.get("x-real-ip", "").strip()[:ADDRESS_CHARS_MAX] or first
        return first

    def behind(self, scope: Scope) -> str:
        """Return the address of the client of a request."""
        headers: Any = scope.headers  # the type stubs lack some of its methods
        return self.of(scope.client.rpartition(":")[0].strip("[]"), headers)

    def trusts(self, scope: Scope) -> bool:
        """Return whether a request comes from a proxy whose headers are trusted."""
        return self._is_trusted(scope.client.rpartition(":")[0].strip("[]"))

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self._trusted)
