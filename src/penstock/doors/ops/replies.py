"""The base of what the operators' routes answer."""

from __future__ import annotations

import msgspec


class OpsReply(msgspec.Struct, rename="camel"):
    """A reply to an operator, or a part of one: its fields are in camelCase on the wire."""
