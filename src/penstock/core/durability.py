"""What an answer means."""

from __future__ import annotations

from enum import StrEnum


class Durability(StrEnum):
    """When an answer leaves. A job pushed with ``durable: true`` is answered as with ``always``."""

    ALWAYS = "always"  #: after the fsync of its group: what was answered survives a power cut
    INTERVAL = "interval"  #: after the commit: it survives a crash of the server; a power cut may take the last moments
    NEVER = "never"  #: after the commit, and syncing is left to the system: a power cut may take the last half minute
