"""All commands, in the order in which a batch applies them.

The order is guaranteed. Pushes come before the commands of workers, and these come before timers. Claims come last, so that
they see the result of all others. ``apply`` itself calls the functions of claims, and of ``Prefetch``, which takes jobs
for a ready list like a claim. To add any other command, write its class and its function, and give it a line in
``BEFORE_SWEEP``. A command without a line would never be answered; a test of the architecture finds it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.errors import QueueMoving
from penstock.engine import timers
from penstock.engine.buffer import commands as buffer_commands
from penstock.engine.bulk import epoch_commands, stage_commands
from penstock.engine.command import Command
from penstock.engine.jobs import (
    check_leases,
    claim,
    claim_waiters,
    dead_letters,
    dependencies,
    flow_push,
    park,
    push,
    serve_claims,
    settle,
    settle_by_id,
    unique_keys,
    update,
)
from penstock.engine.maintenance import dead_letter_service, lease_clock, retention
from penstock.engine.prefetch import commands as prefetch_commands
from penstock.engine.queues import admin, crons, group_limits, limit_status, push_subscriptions, webhooks
from penstock.engine.sharding import name_registry, queue_move, remote_dependencies

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.core.job import JobRecord
    from penstock.engine.command import AnyCommand
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork

    Apply = Callable[[EngineContext, UnitOfWork, Sequence[Any]], Awaitable[None]]

BEFORE_SWEEP: dict[type[AnyCommand], Apply] = {
    push.Push: push.push,
    push.PushAcross: push.push_across,
    flow_push.PushFlow: flow_push.push_flow,
    push.PushAgain: push.push_again,
    push.Publish: push.publish,
    stage_commands.AddChunks: stage_commands.add_chunks,
    stage_commands.SaveStage: stage_commands.save_stage,
    stage_commands.CommitStages: stage_commands.commit_stages,
    stage_commands.RecordCommit: stage_commands.record_commit,
    stage_commands.AbortStage: stage_commands.abort_stage,
    stage_commands.DropDraft: stage_commands.drop_draft,
    stage_commands.TakeOverChunks: stage_commands.take_over_chunks,
    stage_commands.RecordPublished: stage_commands.record_published,
    stage_commands.PruneRecords: stage_commands.prune_records,
    epoch_commands.RecordEpoch: epoch_commands.record_epoch,
    epoch_commands.BeginSettling: epoch_commands.begin_settling,
    epoch_commands.EndEpochs: epoch_commands.end_epochs,
    epoch_commands.RecordGroupUse: epoch_commands.record_group_use,
    epoch_commands.ForgetGroups: epoch_commands.forget_groups,
    epoch_commands.WaitForDisk: epoch_commands.wait_for_disk,
    epoch_commands.CheckPayloads: epoch_commands.check_payloads,
    epoch_commands.SettleSlice: epoch_commands.settle_slices,
    name_registry.Reserve: name_registry.reserve,
    name_registry.Withdraw: name_registry.withdraw,
    name_registry.ForgetNames: name_registry.forget_names,
    name_registry.ListNames: name_registry.list_names,
    settle.Renew: settle.renew,
    settle_by_id.RenewById: settle_by_id.renew_by_id,
    settle.ReportProgress: settle.report_progress,
    settle.Ack: settle.ack,
    settle.Nack: settle.nack,
    settle.Release: settle.release,
    check_leases.CheckLeases: check_leases.check_leases,
    settle.Requeue: settle.requeue,
    park.Park: park.park,
    settle_by_id.AckById: settle_by_id.ack_by_id,
    settle_by_id.NackById: settle_by_id.nack_by_id,
    update.MoveJob: update.move_job,
    update.EditData: update.edit_data,
    update.AddLog: update.add_log,
    update.ClearLog: update.clear_log,
    dead_letters.LeaseDead: dead_letters.lease_dead,
    dead_letters.SettleDead: dead_letters.settle_dead,
    unique_keys.UniqueKey: unique_keys.unique_key,
    admin.Configure: admin.configure,
    limit_status.AskLimits: limit_status.ask_limits,
    group_limits.ConfigureGroup: group_limits.configure_group,
    group_limits.AskGroup: group_limits.ask_group,
    group_limits.AskForGroups: group_limits.ask_for_groups,
    admin.MoveBatch: admin.move_batch,
    admin.Announce: admin.announce,
    admin.RemoveQueue: admin.remove_queue,
    crons.SaveCron: crons.save_cron,
    crons.RemoveCron: crons.remove_cron,
    webhooks.AddWebhook: webhooks.add_webhook,
    webhooks.RemoveWebhook: webhooks.remove_webhook,
    webhooks.EnableWebhook: webhooks.enable_webhook,
    webhooks.NoteDeliveries: webhooks.note_deliveries,
    push_subscriptions.AddSubscription: push_subscriptions.add_subscription,
    push_subscriptions.RemoveSubscription: push_subscriptions.remove_subscription,
    buffer_commands.StoreRecords: buffer_commands.store_records,
    buffer_commands.StoreOwnRecords: buffer_commands.store_own_records,
    prefetch_commands.RecordLeases: prefetch_commands.record_leases,
    prefetch_commands.TakeBack: prefetch_commands.take_back,
    prefetch_commands.Abandon: prefetch_commands.abandon,
    prefetch_commands.Reclaim: prefetch_commands.reclaim,
    prefetch_commands.MarkLeasesRecorded: prefetch_commands.mark_leases_recorded,
    prefetch_commands.ReadGeneration: prefetch_commands.read_generation,
    retention.TrimJournal: retention.trim_journal,
    lease_clock.MarkClock: lease_clock.mark_clock,
    dead_letter_service.AutoRevive: dead_letter_service.auto_revive,
    dependencies.Adopt: dependencies.adopt,
    dependencies.DropDependency: dependencies.drop_dependency,
    dependencies.CancelChildren: dependencies.cancel_children,
    remote_dependencies.WatchJobs: remote_dependencies.watch_jobs,
    remote_dependencies.Audit: remote_dependencies.audit,
    remote_dependencies.CancelIdle: remote_dependencies.cancel_idle,
    remote_dependencies.DueShards: remote_dependencies.due_shards,
    remote_dependencies.DueRelays: remote_dependencies.due_relays,
    remote_dependencies.ApplyRemoteEnds: remote_dependencies.apply_remote_ends,
    remote_dependencies.RecordDelivered: remote_dependencies.record_delivered,
    remote_dependencies.OpenNeeds: remote_dependencies.open_needs,
    queue_move.ExportCrons: queue_move.export_crons,
    queue_move.Prepare: queue_move.prepare,
    queue_move.ImportJobs: queue_move.import_jobs,
    queue_move.ImportCrons: queue_move.import_crons,
    queue_move.PackGroups: queue_move.pack_groups,
    queue_move.UnloadGroups: queue_move.unload_groups,
    queue_move.CountJobs: queue_move.count_jobs,
    queue_move.CheckUnreadable: queue_move.check_unreadable,
    queue_move.Clear: queue_move.clear,
    queue_move.Retarget: queue_move.retarget,
    claim_waiters.RecheckQueue: serve_claims.recheck_queue,
    timers.Sweep: timers.answer_sweeps,
    # Last, so that all commands of the batch about the queue are done before it stops, and after it continues.
    queue_move.Freeze: queue_move.freeze,
    queue_move.HandOver: queue_move.hand_over,
    queue_move.Open: queue_move.open_,
    queue_move.CancelMove: queue_move.cancel_move,
    queue_move.FinishRebalance: queue_move.finish_rebalance,
}


async def apply(engine: EngineContext, work: UnitOfWork, batch: Sequence[AnyCommand]) -> None:
    """Apply a batch, one kind of command after the other."""
    if work.queues_have_moved:
        batch = _without_elsewhere(work, batch)
    if engine.store.capabilities.is_shared:
        await _lock_in_order(work, batch)
    by_kind = _by_kind(batch)
    claims = by_kind.pop(claim.Claim, [])
    if by_kind:
        await _before_sweep(engine, work, by_kind)
    await timers.sweep(engine, work)
    await dependencies.follow_up(engine, work)
    prefetches = by_kind.get(prefetch_commands.Prefetch)
    if prefetches:
        await prefetch_commands.prefetch(engine, work, prefetches)
    if claims or engine.claim_waiters.size:
        await serve_claims.claim(engine, work, claims)
        if work.followed < len(work.ended):  # a claim may have found a job whose time-to-live is over
            await dependencies.follow_up(engine, work)


async def apply_in_side_lane(engine: EngineContext, work: UnitOfWork, batch: Sequence[AnyCommand]) -> None:
    """Apply a batch of a side lane. The main lane runs the timers. Waiting claims are served after this commit."""
    if work.queues_have_moved:
        batch = _without_elsewhere(work, batch)
    if engine.store.capabilities.is_shared:
        await _lock_in_order(work, batch)
    await _before_sweep(engine, work, _by_kind(batch))
    await work.flush()
    await dependencies.follow_up(engine, work)
    if engine.claim_waiters.size:
        work.after_commit.append(partial(engine.claim_waiters.nudge_ready, work))


async def _lock_in_order(work: UnitOfWork, batch: Sequence[AnyCommand]) -> None:
    """Lock the jobs that the commands of a batch are about, all of them in the order of their ids.

    Several transactions may want the same jobs: of other servers, and of other lanes. If each took them in the order of its
    commands, they would wait for each other in a circle, until the database ends one of them.
    """
    ids: dict[int, None] = {}
    names: dict[tuple[int, str], None] = {}
    for command in batch:
        for namespace, ref in command.locked_jobs():
            if isinstance(ref, int):
                ids[ref] = None
            elif namespace is not None and (number := work.tx.namespace_number(namespace)) is not None:
                names[number, ref] = None
    if names and not ids:
        await work.prefetch_named(names)
    elif len(ids) + len(names) > 1:
        if names:
            ids.update(dict.fromkeys(await work.tx.job_find_ids(names)))
        await work.prefetch(ids)


def _by_kind(batch: Sequence[AnyCommand]) -> dict[type[AnyCommand], list[Any]]:
    by_kind: dict[type[AnyCommand], list[Any]] = {}
    for command in batch:
        by_kind.setdefault(type(command), []).append(command)
    return by_kind


async def _before_sweep(engine: EngineContext, work: UnitOfWork, by_kind: dict[type[AnyCommand], list[Any]]) -> None:
    kinds = list(by_kind)
    if len(kinds) > 1:
        kinds.sort(key=_place_of)
    for kind in kinds:
        function = BEFORE_SWEEP.get(kind)
        if function is not None:
            commands = by_kind[kind]
            if engine.ready_cache is not None and kind.unheld_jobs is not Command.unheld_jobs:
                await _withdraw_unheld(engine, work, commands)
            await function(engine, work, commands)


_places = {kind: place for place, kind in enumerate(BEFORE_SWEEP)}


def _place_of(kind: type[AnyCommand]) -> int:
    return _places.get(kind, 0)


async def _withdraw_unheld(engine: EngineContext, work: UnitOfWork, commands: Sequence[AnyCommand]) -> None:
    """Take the jobs that commands change without a lease token off their ready lists."""
    named = [each for command in commands for each in command.unheld_jobs()]
    await work.prefetch([ref for _, ref in named])
    jobs: list[JobRecord | None] = []
    for namespace, ref in named:
        with contextlib.suppress(QueueMoving):  # the command raises it, too
            if namespace is not None:
                jobs.append(await work.find(namespace, ref))
            elif isinstance(ref, int):
                jobs.append(await work.known(ref))
    await prefetch_commands.withdraw_ready(engine, work, jobs)


def _without_elsewhere(work: UnitOfWork, batch: Sequence[AnyCommand]) -> list[AnyCommand]:
    """Refuse commands that need a queue which is on another shard, or moving to one. Return the others."""
    rest: list[AnyCommand] = []
    for command in batch:
        if any(work.is_elsewhere(key) for key in command.needed_queues()):
            work.refuse(command, QueueMoving())
        else:
            rest.append(command)
    return rest
