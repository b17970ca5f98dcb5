"""``python -m tests.fuzz.resp --inputs 1000000``: broken input of the Redis protocol, to see that nothing but refusals come.

Each input is parsed as it is and cut into pieces; both must give the same commands and the same refusal. With ``make fuzz``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.errors import ProtocolError
from penstock.doors.resp.parser import CLIENTS, STRANGERS, Bounds, RespParser
from tests.fuzz.campaign import Campaign

if TYPE_CHECKING:
    from tests.fuzz.mutate import Mutator


def encoded(*words: bytes) -> bytes:
    """Spell a command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


CORPUS = (
    encoded(b"PING"),
    encoded(b"PUBLISH", b"topic", b"hello world"),
    encoded(b"PUBLISH", b"topic", b""),
    encoded(b"PUBLISH", b"t", b'{"a": [1, 2, 3]}\r\n') * 8,
    encoded(b"PUSH", b"queue", bytes(range(256)), b"PRIORITY", b"-5", b"DELAY", b"1000", b"ID", b"mine"),
    encoded(b"PULL", b"queue", b"COUNT", b"10", b"WAIT", b"50"),
    encoded(b"DONE", b"01a1df52-2b62-7000-8004-8c70b00c2800", b"01a1df52-3c1e-7000-8010-9a1f22b07c4d"),
    encoded(b"HELLO", b"3", b"AUTH", b"acme", b"secret", b"SETNAME", b"me"),
    encoded(b"SUBSCRIBE", b"topic") + encoded(b"ACK") + encoded(b"DACK", b"5"),
    encoded(b"RECEIVE", b"topic", b"ACK", b"WAIT", b"50", b"WITHDACKS") + encoded(b"BACK"),
    encoded(b"PUBLISH", b"large", b"x" * 20_000),
    encoded(*(b"%d" % n for n in range(40))),
    b"PING\r\n",
    b"PUBLISH topic hello\r\nSUBSCRIBE topic\nACK\n",
    b'PUBLISH "a \\x41\\n topic" \'it\\\'s\' ""\r\n',
    b"*0\r\n*-1\r\n\r\n\n\r\n" + encoded(b"PING"),
)
WORDS = (
    b"*1\r\n", b"*3\r\n", b"*-1\r\n", b"*", b"$", b"$4\r\nPING\r\n", b"$-1\r\n", b"$0\r\n\r\n", b"*1\r\n" * 50,
    b"%1\r\n+a\r\n:1\r\n", b"~1\r\n", b"#t\r\n", b",1.5\r\n", b"(12\r\n", b"!5\r\nerror\r\n", b"=5\r\ntxt:a\r\n", b"|1\r\n",
    b">2\r\n", b"_\r\n", b"POST / HTTP/1.1\r\n", b"Host: localhost\r\n", b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM",
)  # fmt: skip


class Outcome(NamedTuple):
    """What became of an input."""

    commands: list[list[bytes]]
    refusal: str | None
    partial: bool


def outcome(pieces: list[bytes], bounds: Bounds, turn: int) -> Outcome:
    """Parse an input that arrives in pieces, ``turn`` commands at a time."""
    parser = RespParser(bounds)
    commands: list[list[bytes]] = []
    try:
        for piece in pieces:
            parser.receive(piece)
            while taken := parser.take(turn):
                commands += taken
    except ProtocolError as error:
        return Outcome(commands, str(error), partial=False)
    return Outcome(commands, None, parser.partial)


def check(data: bytes, pieces: list[bytes], bounds: Bounds, turn: int) -> Outcome:
    """Parse an input both ways, and insist that they agree and that no limit is passed."""
    whole = outcome([data], bounds, 1_000)
    cut = outcome(pieces, bounds, turn)
    assert cut == whole, f"{data[:2_000]!r} in pieces of {[len(piece) for piece in pieces]} bytes"
    for words in whole.commands:
        assert words
        assert len(words) <= bounds.args_max
        assert all(len(word) <= bounds.bulk_bytes_max for word in words)
        assert sum(map(len, words)) <= limits.body_bytes_max
    return whole


def judge(data: bytes, mutator: Mutator) -> tuple[str, int]:
    """Say what became of an input."""
    bounds = STRANGERS if mutator.random.random() < 0.2 else CLIENTS
    seen = check(data, mutator.cuts(data), bounds, mutator.random.choice((1, 3, 1_000)))
    refusal = None if seen.refusal is None else seen.refusal.partition(", got")[0]
    return refusal or ("unfinished" if seen.partial else "complete"), len(seen.commands)


CAMPAIGN = Campaign(CORPUS, WORDS, judge)

if __name__ == "__main__":
    CAMPAIGN.main("tests.fuzz.resp", __doc__)
