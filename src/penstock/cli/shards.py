"""``penstock shards``: show the shards of running servers, or rebalance the queues over another number of shards."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from penstock.cli.api import ask, server_options
from penstock.core.clock import SystemClock, pause

CHECK_EVERY_MS: Final = 500


@click.group()
def shards() -> None:
    """Show the shards of running servers, or rebalance the queues over another number of shards."""


@shards.command()
@server_options
def status(url: str, token: str | None) -> None:
    """Show the shards, the queues that must move to another shard, and the progress of a rebalance."""
    found = ask("GET", url, "/shards", token)
    for each in found["shards"]:
        click.echo(_line(each))
    click.echo(_progress(found) if found["rebalancing"] else "no rebalance is under way")


@shards.command()
@server_options
@click.option(
    "--to", "target", metavar="N", type=click.IntRange(1), help="the new number of shards; default: one for each store"
)
@click.option("--no-wait", is_flag=True, help="return when the rebalance has begun; the servers continue it")
def rebalance(url: str, token: str | None, target: int | None, no_wait: bool) -> None:
    """Move queues to their shards, while the servers run.

    To add shards, first restart all servers with more stores. To remove shards, give the number that remains, and restart
    the servers without the other stores afterwards.
    """
    found = ask("POST", url, "/shards/rebalance", token, {} if target is None else {"to": target})
    if not found["rebalancing"]:
        click.echo("nothing to do: every queue is on its shard")
        return
    if not no_wait:
        asyncio.run(_watch(url, token))


async def _watch(url: str, token: str | None) -> None:
    """Print the progress whenever it changes, until the rebalance is done."""
    clock, shown = SystemClock(), ""
    while (found := ask("GET", url, "/shards", token))["rebalancing"]:
        if (now := _progress(found)) != shown:
            click.echo(now)
            shown = now
        await pause(clock, CHECK_EVERY_MS)
    spare = [str(each["shard"]) for each in found["shards"] if each["spare"]]
    click.echo("done: every queue is on its shard")
    if spare:
        click.echo(f"without queues, can be left out at the next restart: shard {', '.join(spare)}")


def _line(shard: dict[str, Any]) -> str:
    says = "never reached" if shard["shards"] is None else f"{shard['shard']} of {shard['shards']}"
    more = [
        text
        for wanted, text in (
            (not shard["up"], "DOWN"),
            (shard["spare"], "spare"),
            (shard["target"] is not None, f"becoming one of {shard['target']}"),
            (shard["misplaced"], f"{shard['misplaced']} to be moved to other shards"),
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
