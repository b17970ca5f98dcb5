"""``penstock keys``: create, list and revoke API keys, at a running server or directly in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.access.api_keys import ROLES, check_request, make_key
from penstock.cli.api import ask, token_option
from penstock.cli.options import load, setting_options
from penstock.config import Config, duration
from penstock.core import limits
from penstock.core.apikey import ApiKey
from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigInvalid, KeyNotFound, StoreLocked
from penstock.core.timestamps import to_rfc3339
from penstock.doors.http.namespace import check_namespace
from penstock.masking import without_password
from penstock.server import storage

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.store.contract import Store

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _where(command: F) -> F:
    text = "address of a running server; default: use the store itself (a store in a file only while no server uses it)"
    url = click.option("--url", envvar="PENSTOCK_URL", help=text)
    return url(token_option(setting_options("data", "stores")(command)))


@click.group()
def keys() -> None:
    """Create, list and revoke API keys, which clients send as X-Api-Key."""


@keys.command()
@click.option(
    "--namespace", "namespaces", multiple=True, required=True, help="a namespace of the key, or * for all; may be repeated"
)
@click.option(
    "--role", "roles", multiple=True, required=True, type=click.Choice(ROLES), help="a role of the key; may be repeated"
)
@click.option("--label", default="", help="a name for the key, which the list shows")
@click.option(
    "--expires", metavar="DURATION", help="how long the key is valid, such as 12h or 90d; default: until it is revoked"
)
@_where
def create(
    *,
    namespaces: tuple[str, ...],
    roles: tuple[str, ...],
    label: str,
    expires: str | None,
    url: str | None,
    token: str | None,
    config_file: Path | None,
    **flags: Any,
) -> None:
    """Create a key. It is shown only once; the store keeps only a digest of it."""
    wish = check_request(namespaces, roles, label, _lasts_ms(expires))
    for namespace in wish.namespaces:
        if namespace != "*":
            check_namespace(namespace)
    if url is not None:
        body = {"namespaces": wish.namespaces, "roles": wish.roles, "label": wish.label, "expiresInMs": wish.lasts_ms}
        found = ask("POST", url, "/keys", token, body)
        text, key_id = found["secret"], found["key"]["id"]
    else:
        made = _in_store(load(config_file, flags), lambda store: make_key(store, wish), may_be_new=True)
        text, key_id = made.text, made.key.id
    click.echo(text)
    click.echo(f"Keep it: it is not shown again. Revoke it with: penstock keys revoke {key_id}", err=True)


@keys.command("list")
@_where
def list_keys(url: str | None, token: str | None, config_file: Path | None, **flags: Any) -> None:
    """Show all keys, without their secrets."""
    if url is not None:
        rows = [
            ApiKey(
                each["id"],
                b"",
                tuple(each["namespaces"]),
                tuple(each["roles"]),
                each["label"],
                each["createdAt"],
                each["expiresAt"],
                each["revokedAt"],
            )
            for each in ask("GET", url, "/keys", token)["keys"]
        ]
        for key in rows:
            click.echo(_line(key, now_ms=None))
        return
    now_ms, found = _in_store(load(config_file, flags), _list_from)
    for key in found:
        click.echo(_line(key, now_ms))


async def _list_from(store: Store) -> tuple[int, list[ApiKey]]:
    _, found = await store.key_list()
    return store.clock.now_ms(), found


@keys.command()
@click.argument("key_id", metavar="ID")
@_where
def revoke(key_id: str, url: str | None, token: str | None, config_file: Path | None, **flags: Any) -> None:
    """Revoke a key: at once at the server of this request, within two seconds at others."""
    if url is not None:
        ask("DELETE", url, f"/keys/{_checked(key_id)}", token)
    elif not _in_store(load(config_file, flags), lambda store: store.key_revoke(key_id)):
        raise KeyNotFound
    click.echo(f"revoked: {key_id}")


def _checked(key_id: str) -> str:
    if not key_id.isalnum() or not key_id.isascii():
        raise KeyNotFound
    return key_id


def _lasts_ms(text: str | None) -> int | None:
    try:
        return None if text is None else duration(1, limits.api_key_ms_max)(text)
    except ValueError as error:
        raise ConfigInvalid(f"--expires is {text!r}: {error}.") from None


def _line(key: ApiKey, now_ms: int | None) -> str:
    ends = "" if key.expires_at is None else f", until {to_rfc3339(key.expires_at)}"
    if key.revoked_at is not None:
        ends = f", REVOKED {to_rfc3339(key.revoked_at)}"
    elif now_ms is not None and key.expires_at is not None and key.expires_at <= now_ms:
        ends = f", EXPIRED {to_rfc3339(key.expires_at)}"
    label = f"  {key.label}" if key.label else ""
    return f"{key.id}  {','.join(key.roles)} in {','.join(key.namespaces)}{ends}{label}"


def _in_store(config: Config, do: Callable[[Store], Awaitable[T]], *, may_be_new: bool = False) -> T:
    """Run a function on the store that the configuration names. ``may_be_new``: create the store if there is none."""
    if not may_be_new and not config.stores and not config.data.is_dir():
        raise ConfigInvalid(f"There is no store in {config.data}. Set its place with --data or --store.")

    async def run() -> T:
        clock = SystemClock()
        try:
            opened = await storage.open_shards(config, clock)
        except StoreLocked:
            where = ", ".join(map(without_password, config.stores)) or str(config.data)
            raise StoreLocked(
                f"A server runs on {where}. Send the command to it, with a token or key of an administrator: "
                "penstock keys … --url http://HOST:PORT --token TOKEN. If there is none yet, stop the server first."
            ) from None
        try:
            return await do(opened[0])
        finally:
            await storage.close_shards(opened)

    return asyncio.run(run())
