"""miniqueue's flags: a command line with them is answered with the flags of Penstock."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: miniqueue's default port.
_PORT: Final = "8080"
#: miniqueue's flags; all but the first have a value. Like all flags of Go programs, they may have one dash or two.
_FLAG: Final = re.compile(r"--?(human|cert|db|key|level|period|port)(?:=(.*))?", re.DOTALL)
PAGE: Final = "docs/topics-door.md"


class Translating(click.Command):
    """A command that answers miniqueue's flags with the equivalent command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. Raises UsageError for flags of miniqueue."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            found = translate(given)
            if found is not None:
                raise click.UsageError(found, ctx) from None
            if error.option_name.startswith("--"):
                raise
            advice = f"{error.message} miniqueue's flags are translated in {PAGE}, under 'Its command line'."
            raise click.NoSuchOption(error.option_name, advice, error.possibilities, ctx) from None


def translate(args: Sequence[str]) -> str | None:
    """Return the equivalent of a command line with miniqueue's flags; None if there are none."""
    flags = list(_read(args))
    named = [name for name, _ in flags if name]
    if not named:
        return None
    values = dict(flags)
    words = ["penstock", "serve", *(value for name, value in flags if not name)]
    for name, flag in (("cert", "--cert"), ("key", "--key"), ("db", "--data")):
        if name in values:
            words += [flag, values[name]]
    if "human" in values:
        words += ["--log-format", "plain"]
    if "level" in values:
        words += ["--log-level", "error" if values["level"] == "disabled" else values["level"]]
    words += ["--topics", f"127.0.0.1:{values.get('port', _PORT)}"]
    told = ", ".join(f"-{name}" for name in dict.fromkeys(named))
    lines = [
        f"{told}: {'this is a flag' if len(set(named)) == 1 else 'these are flags'} of miniqueue. The same here is:",
        "",
        f"  {shlex.join(words)}",
        "",
    ]
    if "period" in values:
        lines.append("-period is not needed: messages are ready when they are due.")
    lines.append(f"{PAGE} has all of them, under 'Its command line'.")
    return "\n".join(lines)


def _read(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Parse a command line like miniqueue: names of its flags with their values, and other words without a name."""
    words = iter(args)
    for word in words:
        match = _FLAG.fullmatch(word)
        if match is None:
            yield "", word
        elif match[1] == "human":
            yield "human", ""
        else:
            yield match[1], match[2] if match[2] is not None else next(words, "")
