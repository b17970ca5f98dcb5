"""Durability levels."""

from __future__ import annotations

from enum import StrEnum


class Durability(StrEnum):
    """When an answer is sent. A job pushed with ``durable: true`` is answered as with ``always``."""

    ALWAYS = "always"  #: after the fsync of its batch: an answered change survives a power cut
    INTERVAL = "interval"  #: after the commit: it survives a crash of the server; a power cut may lose the last moments
    NEVER = "never"  #: after the commit, and the system decides when to sync: a power cut may lose the last half minute
