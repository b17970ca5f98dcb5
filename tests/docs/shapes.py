"""Comparing what a page shows with what is answered."""

from __future__ import annotations

from typing import Any


def shape(value: Any) -> Any:
    """Return what a reply looks like, without what changes from run to run."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return type(value).__name__


def fits(reply: Any, example: Any) -> bool:
    """Tell whether a reply has everything the example shows; examples may leave fields out."""
    if isinstance(example, dict):
        return isinstance(reply, dict) and all(key in reply and fits(reply[key], item) for key, item in example.items())
    return type(reply) is type(example)
