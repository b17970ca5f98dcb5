"""Penstock: one queue server with four compatible APIs ("doors") on one engine."""

__version__ = "0.1.0"
