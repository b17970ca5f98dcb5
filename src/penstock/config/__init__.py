"""The configuration of the server. Later sources win: defaults, the file of ``--config``, environment variables, flags."""

from penstock.config.display import example, lines_of, spell
from penstock.config.parsers import Listener, duration
from penstock.config.settings import SECRETS, SETTINGS, Config, Setting, flag_of
from penstock.config.sources import load

__all__ = [
    "SECRETS",
    "SETTINGS",
    "Config",
    "Listener",
    "Setting",
    "duration",
    "example",
    "flag_of",
    "lines_of",
    "load",
    "spell",
]
