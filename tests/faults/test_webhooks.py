"""Webhooks on a disk that fails and forgets: nothing that was stored is skipped, and nothing is told that was not."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from penstock.core import ids
from penstock.core.clock import yield_to_loop
from penstock.core.durability import Durability
from penstock.core.errors import OutcomeUnknown
from penstock.engine.engine import Engine
from penstock.engine.maintenance.store_recovery import StoreRecovery
from penstock.engine.queues.webhooks import AddWebhook
from penstock.outbound.dispatcher import WebhookDispatcher
from penstock.store.sqlite import SqliteStore
from tests.support.engines import push
from tests.support.forgetful import ForgetfulDisk
from tests.support.receiver import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.core.webhook import WebhookRecord

pytestmark = pytest.mark.anyio


class Bench:
    """A store on a forgetful disk, and a dispatcher whose requests are collected. Requests wait while ``gate`` is closed."""

    def __init__(self, disk: ForgetfulDisk, engine: Engine) -> None:
        self.disk = disk
        self.engine = engine
        self.told: list[str] = []
        self.begun = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.dispatcher = WebhookDispatcher(engine, self)
        self.dispatcher.start()

    async def post(self, _url: str, _headers: Mapping[str, str], body: bytes, *, namespace: str = "") -> int:
        self.begun += 1
        await self.gate.wait()
        self.told.append(json.loads(body)["jobId"])
        return 200

    async def add(self, event: str = "pushed") -> WebhookRecord:
        return await self.engine.run(AddWebhook("default", "http://good.com/", (event,), None, None))

    async def push(self, count: int) -> list[JobRecord]:
        return [await push(self.engine) for _ in range(count)]

    async def push_in_vain(self) -> None:
        self.disk.broken = True
        with pytest.raises(OutcomeUnknown):
            await push(self.engine)

    async def recover(self) -> None:
        self.disk.broken = False
        await StoreRecovery(self.engine).run_once()
        assert self.engine.store.status().writable

    async def were_told(self, *jobs: JobRecord) -> None:
        """See that exactly these are told of, in this order, and that it stays so."""
        wanted = [ids.to_uuid(job.id) for job in jobs]
        await until(lambda: len(self.told) >= len(wanted))
        await push(self.engine)
        await until(lambda: len(self.told) > len(wanted))
        assert self.told[:-1] == wanted


async def bench(path: Path, clock: ManualClock, durability: Durability) -> AsyncIterator[Bench]:
    disk = ForgetfulDisk(path)
    store = await SqliteStore.open(path, clock, fdatasync=disk.fdatasync, ballast_bytes=0)
    engine = Engine(store, clock, durability=durability)
    made = Bench(disk, engine)
    yield made
    await made.dispatcher.stop()
    await engine.close()
    await store.close()


@pytest.fixture
async def strict(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    """An answer means that it is on disk."""
    async for made in bench(tmp_path, clock, Durability.ALWAYS):
        yield made


@pytest.fixture
async def lax(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    """An answer means nothing of the kind, so that even what was told of can be lost."""
    async for made in bench(tmp_path, clock, Durability.NEVER):
        yield made


async def test_what_the_disk_lost_is_not_told_and_what_took_its_number_is(strict: Bench) -> None:
    await strict.add()
    first = await strict.push(2)
    number = strict.engine.store.journal_next
    await strict.push_in_vain()
    assert strict.engine.store.journal_next > number
    strict.disk.forget()
    await strict.recover()
    assert strict.engine.store.journal_next == number
    await strict.were_told(*first, *await strict.push(3))


async def test_what_the_disk_kept_after_all_is_told(strict: Bench) -> None:
    await strict.add()
    await strict.push_in_vain()
    assert strict.begun == 0, "nobody knows yet whether it happened"
    await strict.recover()
    await until(lambda: len(strict.told) == 1)


async def test_a_job_is_told_of_when_it_is_on_disk_and_not_before(strict: Bench) -> None:
    await strict.add()
    number = strict.engine.store.journal_next
    strict.disk.gate.clear()
    pushing = asyncio.ensure_future(push(strict.engine))
    await until(lambda: strict.engine.store.journal_next > number)
    await yield_to_loop()
    assert (strict.begun, strict.engine.durable_up_to) == (0, number)
    strict.disk.gate.set()
    await strict.were_told(await pushing)


async def test_what_was_passed_over_and_lost_does_not_hide_what_comes_instead(strict: Bench) -> None:
    webhook = await strict.add("pushed")
    jobs = await strict.push(1)
    await until(lambda: strict.told)
    lost = AddWebhook("default", "http://other.com/", ("failed",), None, None)  # an event that is nothing to the first one
    strict.disk.broken = True
    with pytest.raises(OutcomeUnknown):
        await strict.engine.run(lost)
    strict.disk.forget()
    await strict.recover()
    assert [each.id for each in strict.engine.store.webhook_list()] == [webhook.id]
    await strict.were_told(*jobs, *await strict.push(2))


async def test_a_registration_that_the_disk_lost_is_forgotten(strict: Bench) -> None:
    strict.disk.broken = True
    with pytest.raises(OutcomeUnknown):
        await strict.add()
    strict.disk.forget()
    await strict.recover()
    await strict.push(3)
    kept = await strict.add("pushed")
    assert [each.id for each in strict.engine.store.webhook_list()] == [kept.id]
    job = (await strict.push(1))[0]
    await strict.were_told(job)


async def test_a_request_in_progress_while_its_number_is_assigned_again(lax: Bench) -> None:
    await lax.add()
    await lax.engine.store.sync()
    lax.gate.clear()
    await lax.push(3)
    await until(lambda: lax.begun == 1)
    lax.disk.broken = True
    with pytest.raises(OutcomeUnknown):
        await lax.engine.store.sync()
    lax.disk.forget()
    await lax.recover()
    again = await lax.push(3)
    lax.gate.set()
    await until(lambda: len(lax.told) >= 4)
    assert lax.told[1:] == [ids.to_uuid(job.id) for job in again], "the first was told of before it was lost"


async def test_a_place_is_never_written_down_that_the_journal_has_not_reached(lax: Bench) -> None:
    webhook = await lax.add("failed")
    await lax.engine.store.sync()
    end = lax.engine.store.journal_next
    await lax.push(20)
    lax.disk.broken = True
    with pytest.raises(OutcomeUnknown):
        await lax.engine.store.sync()
    lax.disk.forget()
    await lax.recover()
    await lax.dispatcher._note(all_webhooks=True)
    found = lax.engine.store.webhook_find(webhook.id)
    assert found is not None
    assert found.cursor <= end == lax.engine.store.journal_next
