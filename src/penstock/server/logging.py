"""Structured logs: plain and coloured on a terminal, one JSON object per line everywhere else."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from penstock.masking import masked

#: Without local variables: they may hold payloads of jobs.
_tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def _mask(_logger: object, _method: str, line: Any) -> str:  # errors of libraries contain addresses as they were given
    """Replace credentials in a line of the log."""
    return masked(str(line))


class _MaskedFormatter(logging.Formatter):
    """Formats the log lines of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def set_up(level: str, style: str) -> None:
    """Send all logs to standard error. ``style``: auto, plain or json."""
    number = logging.getLevelNamesMapping()[level.upper()]
    plain = style == "plain" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    finish: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
        if plain
        else [_tracebacks, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *finish, _mask],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries use the standard module; asyncio is the one that logs something.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_MaskedFormatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
