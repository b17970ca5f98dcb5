"""The command line: one file per noun."""

from penstock.cli.main import main

__all__ = ["main"]
