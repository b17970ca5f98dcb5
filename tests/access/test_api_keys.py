"""API keys: who they speak for, how they end, and how servers hear of each other's changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.access import api_keys
from penstock.access.api_keys import ApiKeys, check_request
from penstock.access.authenticator import Authenticator, shown_in
from penstock.access.identity import ANYWHERE, UNRESTRICTED, Right
from penstock.core import limits
from penstock.core.errors import Forbidden, InvalidInput, KeyNotFound, KeysUnavailable, StorageFailed, TooMany, Unauthorized
from penstock.store.postgres import PostgresStore
from penstock.store.sqlite import SqliteStore
from tests.support import postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.store.contract import Store

pytestmark = pytest.mark.anyio

WISH = check_request(["a", "b"], ["produce"])


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    opened = await SqliteStore.open(tmp_path / "store", clock, ballast_bytes=0)
    yield opened
    await opened.close()


@pytest.fixture
async def keys(store: Store, clock: ManualClock) -> ApiKeys:
    known = ApiKeys(store, clock)
    await known.start()
    return known


async def test_a_key_speaks_for_its_roles_in_its_namespaces(keys: ApiKeys) -> None:
    made = await keys.make(WISH)
    assert made.text.startswith(f"pk_{made.key.id}_")
    assert made.key.prefix == f"pk_{made.key.id}"
    identity = keys.identify(made.text)
    for namespace in ("a", "b"):
        identity.check(namespace, Right.PRODUCE)
        identity.check(namespace, Right.LOOK)
        for right in (Right.TAKE, Right.SETTLE, Right.ADMIN):
            with pytest.raises(Forbidden):
                identity.check(namespace, right)
    for elsewhere in ("c", "default", ANYWHERE):
        with pytest.raises(Forbidden):
            identity.check(elsewhere, Right.LOOK)


@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        (["produce"], Right.LOOK | Right.PRODUCE),
        (["consume"], Right.LOOK | Right.TAKE | Right.SETTLE),
        (["produce", "consume", "produce"], Right.LOOK | Right.PRODUCE | Right.TAKE | Right.SETTLE),
        (["admin"], Right.LOOK | Right.PRODUCE | Right.TAKE | Right.SETTLE | Right.ADMIN),
    ],
)
async def test_roles_add_up(keys: ApiKeys, roles: list[str], rights: Right) -> None:
    identity = keys.identify((await keys.make(check_request([ANYWHERE], roles))).text)
    for right in (Right.LOOK, Right.PRODUCE, Right.TAKE, Right.SETTLE, Right.ADMIN):
        assert identity.may("x", right) == identity.may(ANYWHERE, right) == bool(rights & right)


async def test_only_the_right_secret_opens(keys: ApiKeys) -> None:
    made, other = await keys.make(WISH), await keys.make(WISH)
    swapped = made.text[: -len("x" * 40)] + other.text[-40:]
    last = made.text[:-1] + ("0" if made.text[-1] != "0" else "1")
    for shown in (
        "",
        "pk_",
        made.key.prefix,
        swapped,
        last,
        made.text + "0",
        made.text.upper(),
        made.text[:-1] + "é",
        "pk_" + "_" * 53,
    ):
        with pytest.raises(Unauthorized, match=r"^Unauthorized$"):
            keys.identify(shown)
    assert keys.identify(made.text) is keys.identify(made.text)


async def test_secrets_are_nowhere_in_the_store(keys: ApiKeys, store: Store, tmp_path: Path) -> None:
    made = await keys.make(WISH)
    secret = made.text.rpartition("_")[2]
    assert len(bytes.fromhex(secret)) >= 16
    await store.sync()
    for file in (tmp_path / "store").iterdir():
        content = file.read_bytes()
        assert secret.encode() not in content, file
        assert bytes.fromhex(secret) not in content, file
    assert secret not in repr((await store.key_list())[1])


async def test_a_revoked_key_is_refused_and_ends_what_is_under_way(keys: ApiKeys) -> None:
    made, other = await keys.make(WISH), await keys.make(WISH)
    identity, ended = keys.identify(made.text), []
    identity.watch(lambda: ended.append(1))
    keys.identify(other.text).watch(lambda: ended.append(2))
    await keys.revoke(made.key.id)
    await keys.revoke(made.key.id)
    assert ended == [1]
    assert identity.expired(1)
    with pytest.raises(Unauthorized, match="was revoked"):
        keys.identify(made.text)
    with pytest.raises(Unauthorized, match=r"^Unauthorized$"):  # nothing is told to who does not know the secret
        keys.identify(made.text[:-4] + "0000")
    keys.identify(other.text)
    with pytest.raises(KeyNotFound):
        await keys.revoke("unknown")


async def test_a_key_ends_by_itself(keys: ApiKeys, clock: ManualClock) -> None:
    made = await keys.make(WISH._replace(lasts_ms=1_000))
    identity = keys.identify(made.text)
    await clock.advance(999)
    assert keys.identify(made.text) is identity
    await clock.advance(1)
    assert identity.expired(clock.now_ms())
    with pytest.raises(Unauthorized, match="has expired"):
        keys.identify(made.text)


@pytest.mark.parametrize(
    ("namespaces", "roles", "label", "lasts_ms"),
    [
        ([], ["produce"], "", None),
        (["a"] * 101, ["produce"], "", None),
        (["a"], [], "", None),
        (["a"], ["produce", "boss"], "", None),
        (["a"], ["admin"], "two\nlines", None),
        (["a"], ["admin"], "x" * 257, None),
        (["a"], ["admin"], "", 0),
        (["a"], ["admin"], "", 10**15),
    ],
)
def test_bad_wishes_are_explained(namespaces: list[str], roles: list[str], label: str, lasts_ms: int | None) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        check_request(namespaces, roles, label, lasts_ms)


async def test_the_number_of_keys_is_bounded(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "api_keys_max", 2)
    first = await keys.make(WISH)
    await keys.make(WISH)
    with pytest.raises(TooMany):
        await keys.make(WISH)
    await keys.revoke(first.key.id)
    await keys.make(WISH)
    assert len(keys.listed()) == 2
    assert first.key.id not in {key.id for key in keys.listed()}


# The authenticator.


async def test_the_first_key_closes_an_open_server_and_ends_what_nobody_was_asked_for(
    keys: ApiKeys, clock: ManualClock
) -> None:
    authenticator, ended = Authenticator(clock), []
    authenticator.use(keys)
    open_identity = await authenticator.identify("whatever")
    authenticator.check(open_identity, ANYWHERE, Right.ADMIN)
    open_identity.watch(lambda: ended.append(True))
    made = await keys.make(check_request([ANYWHERE], ["admin"]))
    assert not authenticator.is_open
    assert ended == [True]
    with pytest.raises(Unauthorized, match="Not authenticated"):
        authenticator.check(open_identity, "a", Right.LOOK)
    with pytest.raises(Unauthorized):
        await authenticator.identify("whatever")
    for shown in (made.text, f"Bearer {made.text}"):
        authenticator.check(await authenticator.identify(shown), ANYWHERE, Right.ADMIN)
    await keys.revoke(made.key.id)
    assert not authenticator.is_open, "revoking the last key must not open the doors"


async def test_keys_open_next_to_tokens_which_go_first(keys: ApiKeys, clock: ManualClock) -> None:
    authenticator = Authenticator(clock, ["pk_static"])
    authenticator.use(keys)
    made = await keys.make(WISH)
    assert await authenticator.identify("pk_static") is UNRESTRICTED
    assert (await authenticator.identify(made.text)).subject == f"key {made.key.id}"


async def test_an_authenticator_can_ask_before_there_is_any_key(keys: ApiKeys, clock: ManualClock) -> None:
    authenticator = Authenticator(clock, required=True)
    authenticator.use(keys)
    assert not authenticator.is_open
    with pytest.raises(Unauthorized):
        await authenticator.identify("")


def test_the_header_for_keys_counts_first() -> None:
    assert shown_in({"x-api-key": "k", "authorization": "Basic abc"}) == "k"
    assert shown_in({"authorization": "Bearer t"}) == "Bearer t"
    assert shown_in({}) == ""


# Other servers.


class Moody:
    """A store that can be down, and be changed behind one's back."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.down = False
        self.questions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def key_list(self) -> Any:
        self._check()
        return await self._store.key_list()

    async def key_revision(self) -> Any:
        self._check()
        return await self._store.key_revision()

    def _check(self) -> None:
        self.questions += 1
        if self.down:
            raise StorageFailed


async def test_as_long_as_keys_cannot_be_read_nobody_is_let_in(store: Store, clock: ManualClock) -> None:
    moody: Any = Moody(store)
    moody.down = True
    keys, authenticator = ApiKeys(moody, clock), Authenticator(clock)
    await keys.start()
    authenticator.use(keys)
    for shown in ("", "pk_x", "a.b.c"):
        with pytest.raises(KeysUnavailable):
            await authenticator.identify(shown)
    moody.down = False
    await clock.advance(api_keys.CHECK_EVERY_MS)
    assert authenticator.is_open, "there are no keys"
    asked = moody.questions
    await clock.advance(10 * api_keys.CHECK_EVERY_MS)
    assert moody.questions == asked, "nobody else writes to a file"
    await authenticator.close()


async def test_with_tokens_a_store_that_is_down_keeps_nobody_else_out(store: Store, clock: ManualClock) -> None:
    moody: Any = Moody(store)
    moody.down = True
    keys, authenticator = ApiKeys(moody, clock), Authenticator(clock, ["t"])
    await keys.start()
    authenticator.use(keys)
    assert await authenticator.identify("t") is UNRESTRICTED
    with pytest.raises(Unauthorized):
        await authenticator.identify("wrong")
    await authenticator.close()


async def test_what_another_server_does_is_heard_of_within_a_moment(clock: ManualClock) -> None:
    url = await postgres.make_database()
    stores = [await PostgresStore.open(url, clock, database_clock=False) for _ in range(2)]
    here, there = (ApiKeys(store, clock) for store in stores)
    try:
        for each in (here, there):
            await each.refresh()
        changes = []
        there.when_changed = lambda: changes.append(there.exist)
        made = await here.make(WISH)
        with pytest.raises(Unauthorized):
            there.identify(made.text)
        await there.refresh()
        assert changes == [True]
        identity, ended = there.identify(made.text), []
        identity.watch(lambda: ended.append(True))
        await there.refresh()
        assert changes == [True], "nothing is read that was not changed"
        await here.revoke(made.key.id)
        await there.refresh()
        assert ended == [True]
        with pytest.raises(Unauthorized, match="was revoked"):
            there.identify(made.text)
        assert [key.id for key in there.listed()] == [made.key.id]
    finally:
        for store in stores:
            await store.close()
        await postgres.drop_database(url)
