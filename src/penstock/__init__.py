"""Penstock: one queue server with four front doors on one engine."""

__version__ = "0.1.0"
