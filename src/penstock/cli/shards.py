"""``penstock shards``: look at the shards of running servers, or spread the queues over another number of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import click
import msgspec

from penstock.core.clock import SystemClock, pause
from penstock.core.errors import ConfigInvalid, PenstockError, RebalanceRefused

LOOK_EVERY_MS: Final = 500
ANSWER_S: Final = 30.0

F = TypeVar("F", bound=Callable[..., Any])


def _server(command: F) -> F:
    url = click.option("--url", default="http://127.0.0.1:6790", show_default=True, envvar="PENSTOCK_URL", help="any server")
    token = click.option("--token", envvar="PENSTOCK_TOKEN", help="what it asks for, if it asks; default: $PENSTOCK_TOKEN")
    return url(token(command))


@click.group()
def shards() -> None:
    """Look at the shards of running servers, or spread the queues over another number of them."""


@shards.command()
@_server
def status(url: str, token: str | None) -> None:
    """Show the shards, what belongs elsewhere, and how far a rebalance is."""
    found = _ask("GET", url, "/shards", token)
    for each in found["shards"]:
        click.echo(_line(each))
    click.echo(_progress(found) if found["rebalancing"] else "no rebalance is under way")


@shards.command()
@_server
@click.option("--to", "target", metavar="N", type=click.IntRange(1), help="how many shards; default: all stores there are")
@click.option("--no-wait", is_flag=True, help="return as soon as it has begun: the servers do it without us")
def rebalance(url: str, token: str | None, target: int | None, no_wait: bool) -> None:
    """Move queues to where they belong, while everything goes on.

    To grow, restart all servers with more stores first. To shrink, say how many remain, and restart the servers without the
    others afterwards.
    """
    found = _ask("POST", url, "/shards/rebalance", token, {} if target is None else {"to": target})
    if not found["rebalancing"]:
        click.echo("nothing to do: every queue is where it belongs")
        return
    if not no_wait:
        asyncio.run(_watch(url, token))


async def _watch(url: str, token: str | None) -> None:
    """Show how far it is whenever that changes, until it is done."""
    clock, shown = SystemClock(), ""
    while (found := _ask("GET", url, "/shards", token))["rebalancing"]:
        if (now := _progress(found)) != shown:
            click.echo(now)
            shown = now
        await pause(clock, LOOK_EVERY_MS)
    spare = [str(each["shard"]) for each in found["shards"] if each["spare"]]
    click.echo("done: every queue is where it belongs")
    if spare:
        click.echo(f"no queues any more, may be left away at the next restart: shard {', '.join(spare)}")


def _line(shard: dict[str, Any]) -> str:
    says = "never reached" if shard["shards"] is None else f"{shard['shard']} of {shard['shards']}"
    more = [
        text
        for wanted, text in (
            (not shard["up"], "DOWN"),
            (shard["spare"], "spare"),
            (shard["target"] is not None, f"becoming one of {shard['target']}"),
            (shard["misplaced"], f"{shard['misplaced']} belong elsewhere"),
            (shard["moved"], f"{shard['moved']} moved away"),
        )
        if wanted
    ]
    return f"shard {says}: {shard['queues']} queues{''.join(f', {each}' for each in more)}"


def _progress(found: dict[str, Any]) -> str:
    moved = sum(each["moved"] for each in found["shards"])
    text = f"spreading over {found['target']} shards: {moved} queues moved, {found['left']} to go"
    if found["moving"]:
        text += f", now {', '.join(found['moving'])}"
    return text if found["waiting"] is None else f"{text}; waiting: {found['waiting']}"


def _ask(method: str, url: str, path: str, token: str | None, body: Any = None) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ConfigInvalid(f"--url must begin with http:// or https://, and is {url!r}")
    headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    data = None if body is None else msgspec.json.encode(body)
    request = Request(url.rstrip("/") + path, data, headers, method=method)  # noqa: S310 - looked at above
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=ANSWER_S) as reply:
            found: dict[str, Any] = msgspec.json.decode(reply.read())
            return found
    except HTTPError as error:
        text = error.read().decode(errors="replace")
        if error.code == 409:
            raise RebalanceRefused(msgspec.json.decode(text)["error"]) from error
        raise PenstockError(f"{url} answered {error.code}: {text[:1_000]}") from error
    except (URLError, OSError) as error:
        raise PenstockError(f"{url} cannot be reached: {error}. Name a server with --url.") from error
