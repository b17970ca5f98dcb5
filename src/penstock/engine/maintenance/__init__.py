"""Periodic services of the engine: recovery, retention, dead letters, membership."""
