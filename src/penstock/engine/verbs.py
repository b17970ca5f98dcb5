"""All verbs, in the order in which a batch applies them.

The order is a promise: what producers bring is there before workers are heard, workers are heard before time is told to pass,
and claims come last, so that they see all of it. To add a verb, write its command and its function, and give it a line here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.errors import QueueMoving
from penstock.core.queue import QueueKey
from penstock.engine import (
    admin,
    afar,
    change,
    claim,
    crons,
    dead,
    drafts,
    epochs,
    flow_push,
    flows,
    group_limits,
    held,
    hooks,
    keeper,
    limit_status,
    moving,
    names,
    park,
    produce,
    receipt,
    settle,
    subscribe,
    sweep,
    unique,
)
from penstock.engine.fast import commands as fast
from penstock.engine.fast import promises

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.engine.command import AnyCommand
    from penstock.engine.engine import Engine
    from penstock.engine.work import Work

    Apply = Callable[[Engine, Work, Sequence[Any]], Awaitable[None]]

BEFORE_SWEEP: dict[type[AnyCommand], Apply] = {
    produce.Push: produce.push,
    produce.PushAcross: produce.push_across,
    flow_push.PushFlow: flow_push.push_flow,
    produce.PushAgain: produce.push_again,
    produce.Publish: produce.publish,
    drafts.AddChunks: drafts.add_chunks,
    drafts.SaveStage: drafts.save_stage,
    drafts.CommitStages: drafts.commit_stages,
    drafts.Confirm: drafts.confirm,
    drafts.AbortStage: drafts.abort_stage,
    drafts.DropDraft: drafts.drop_draft,
    drafts.Carry: drafts.carry,
    drafts.Told: drafts.told,
    drafts.Forget: drafts.forget,
    epochs.Record: epochs.record,
    epochs.Begin: epochs.begin,
    epochs.End: epochs.end,
    epochs.Seen: epochs.seen,
    epochs.ForgetGroups: epochs.forget_groups,
    epochs.Rest: epochs.rest,
    epochs.Examine: epochs.examine,
    epochs.SettleSlice: epochs.settle_slices,
    names.Reserve: names.reserve,
    names.Withdraw: names.withdraw,
    names.ForgetNames: names.forget_names,
    names.ListNames: names.list_names,
    names.PutNames: names.put_names,
    settle.Renew: settle.renew,
    receipt.RenewById: receipt.renew_by_id,
    settle.Progress: settle.progress,
    settle.Ack: settle.ack,
    settle.Fail: settle.fail,
    settle.Release: settle.release,
    held.AskHeld: held.ask_held,
    settle.PutBack: settle.put_back,
    park.Park: park.park,
    receipt.AckById: receipt.ack_by_id,
    receipt.NackById: receipt.nack_by_id,
    change.MoveJob: change.move_job,
    change.EditData: change.edit_data,
    change.AddLog: change.add_log,
    change.ClearLog: change.clear_log,
    dead.Inspect: dead.inspect,
    dead.SettleDead: dead.settle_dead,
    unique.UniqueKey: unique.unique_key,
    admin.Configure: admin.configure,
    limit_status.AskLimits: limit_status.ask_limits,
    group_limits.ConfigureGroup: group_limits.configure_group,
    group_limits.AskGroup: group_limits.ask_group,
    group_limits.AskForGroups: group_limits.ask_for_groups,
    admin.Slice: admin.slice_,
    admin.Announce: admin.announce,
    admin.Forget: admin.forget,
    crons.SaveCron: crons.save_cron,
    crons.RemoveCron: crons.remove_cron,
    hooks.AddWebhook: hooks.add_webhook,
    hooks.RemoveWebhook: hooks.remove_webhook,
    hooks.EnableWebhook: hooks.enable_webhook,
    hooks.NoteDeliveries: hooks.note_deliveries,
    subscribe.AddSubscription: subscribe.add_subscription,
    subscribe.RemoveSubscription: subscribe.remove_subscription,
    promises.Keep: promises.keep,
    promises.KeepHere: promises.keep_here,
    fast.Begin: fast.begin,
    fast.TakeBack: fast.take_back,
    fast.Abandon: fast.abandon,
    fast.Reclaim: fast.reclaim,
    fast.Noted: fast.noted,
    fast.Look: fast.look,
    keeper.TrimJournal: keeper.trim_journal,
    keeper.MarkClock: keeper.mark_clock,
    keeper.AutoRevive: keeper.auto_revive,
    flows.Adopt: flows.adopt,
    flows.Unneed: flows.unneed,
    flows.CancelChildren: flows.cancel_children,
    afar.Await: afar.wait_for,
    afar.Audit: afar.audit,
    afar.CancelIdle: afar.cancel_idle,
    afar.DueShards: afar.due_shards,
    afar.DueRelays: afar.due_relays,
    afar.HearEnds: afar.hear_ends,
    afar.NoteTold: afar.note_told,
    afar.OpenNeeds: afar.open_needs,
    moving.PackCrons: moving.pack_crons,
    moving.Arrive: moving.arrive,
    moving.Unload: moving.unload,
    moving.UnloadCrons: moving.unload_crons,
    moving.PackGroups: moving.pack_groups,
    moving.UnloadGroups: moving.unload_groups,
    moving.CountJobs: moving.count_jobs,
    moving.Examine: moving.examine,
    moving.Clear: moving.clear,
    moving.Retarget: moving.retarget,
    claim.Nudge: claim.nudge,
    sweep.Tick: sweep.tick,
    # Last, so that everything of the batch that is about the queue is done before it stops, and after it goes on.
    moving.Leave: moving.leave,
    moving.Depart: moving.depart,
    moving.Open: moving.open_,
    moving.Stay: moving.stay,
    moving.Flip: moving.flip,
}


async def apply(engine: Engine, work: Work, batch: Sequence[AnyCommand]) -> None:
    """Apply a batch, verb by verb."""
    if work.tx.away:
        batch = _without_away(work, batch)
    by_verb = _by_verb(batch)
    claims = by_verb.pop(claim.Claim, [])
    if by_verb:
        await _before_sweep(engine, work, by_verb)
    await sweep.sweep(engine, work)
    await flows.follow_up(engine, work)
    prefetches = by_verb.get(fast.Prefetch)
    if prefetches:
        await fast.prefetch(engine, work, prefetches)
    if claims or engine.room.size:
        await claim.claim(engine, work, claims)
        if work.followed < len(work.ended):  # a claim may have met a job whose time-to-live is over
            await flows.follow_up(engine, work)


async def apply_beside(engine: Engine, work: Work, batch: Sequence[AnyCommand]) -> None:
    """Apply a batch next to another one, which looks after time and those who wait: they hear of it after the commit."""
    if work.tx.away:
        batch = _without_away(work, batch)
    await _before_sweep(engine, work, _by_verb(batch))
    await work.flush()
    await flows.follow_up(engine, work)
    if engine.room.size:
        work.after_commit.append(partial(engine.room.nudge_ready, work))


def _by_verb(batch: Sequence[AnyCommand]) -> dict[type[AnyCommand], list[Any]]:
    by_verb: dict[type[AnyCommand], list[Any]] = {}
    for command in batch:
        by_verb.setdefault(type(command), []).append(command)
    return by_verb


async def _before_sweep(engine: Engine, work: Work, by_verb: dict[type[AnyCommand], list[Any]]) -> None:
    for verb, function in BEFORE_SWEEP.items():
        commands = by_verb.get(verb)
        if commands:
            await function(engine, work, commands)


def _without_away(work: Work, batch: Sequence[AnyCommand]) -> list[AnyCommand]:
    """Refuse what is about a queue that is on its way to another shard, and return the rest."""
    rest: list[AnyCommand] = []
    for command in batch:
        if isinstance(command, produce.PushAcross):
            keys = [key for key, _ in command.parts]
        else:
            queue = getattr(command, "queue", None)
            keys = [queue] if isinstance(queue, QueueKey) else []
        if any(work.tx.queue_away(key) is not None for key in keys):
            work.refuse(command, QueueMoving())
        else:
            rest.append(command)
    return rest
