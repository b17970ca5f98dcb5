"""Payloads that are bytes to their door, and JSON to another.

A payload that is JSON is kept as it is: every door can show it. Any other bytes are kept as a JSON string, in base64, with a
note among the job's options; the doors that speak bytes undo that, the jobs door shows the string. Either way a payload comes
out byte for byte as it went in.
"""

from __future__ import annotations

from penstock.core.binary_payload import unwrap, wrap, wrap_steps

__all__ = ("unwrap", "wrap", "wrap_steps")
