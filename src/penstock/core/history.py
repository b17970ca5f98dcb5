"""The identity of a store's history: event numbers can be compared only within one history.

A position in a journal that a reader keeps (an offset of a stream, a ``Last-Event-ID``) is a number. Another store, or an
older copy of the same one, gives the same numbers to other events. So a position that must stay valid includes its history.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

_TEXT: Final = re.compile(r"([0-9a-f][0-9a-f-]{7,63}):([0-9]{1,18})")


class History(NamedTuple):
    """The history of one store, or of one shard. Its text is ``identity:epoch``.

    ``identity``: random, set once when the store is created. ``epoch``: counts how often published events were replaced, by
    a restored backup or by a start that accepted a loss.
    """

    identity: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.identity}:{self.epoch}"

    @property
    def mark(self) -> str:
        """Eight hexadecimal digits that identify it where each byte counts; empty if it is unknown."""
        return hashlib.blake2s(str(self).encode(), digest_size=4).hexdigest() if self.identity else ""

    @classmethod
    def parse(cls, text: str) -> History | None:
        """Return the history that a text means; None if the text is not a history.

        >>> History.parse("0123456789abcdef:2")
        History(identity='0123456789abcdef', epoch=2)
        """
        found = _TEXT.fullmatch(text)
        return None if found is None else cls(found[1], int(found[2]))


#: The history of a store that was never reached: it is unknown.
UNKNOWN: Final = History("", 0)
