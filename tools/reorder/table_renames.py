"""Stage B: names of classes and functions. Paths are those after stage A, relative to src/penstock."""

SYMBOLS = """
doors/net/incoming_messages.py: Strangers -> UnauthenticatedSockets
doors/net/listener.py: Strangers -> UnauthenticatedConnections
access/api_keys.py: Wish -> KeyRequest, check_wish -> check_request, Made -> CreatedKey
access/authenticator.py: Gate -> Authenticator, Headers -> CredentialHeaders
access/quotas.py: Desk -> QuotaBatcher
access/jwt.py: Rules -> TokenRules

bulkwork/protocol.py: Task -> BulkTask, Outcome -> TaskOutcome
bulkwork/arrow_files.py: Part -> FilePart

cli/api.py: Refused -> RequestRefused
cli/backup.py: Meter -> ProgressMeter

client/_worker_loop.py: Desk -> WorkerLoop
client/_held_jobs.py: Hand -> HeldJobs, Pace -> Throughput
client/_settlements.py: Outbox -> Settlements
client/_registration.py: Presence -> Registration
client/_request.py: Call -> ApiCall
client/_worker_options.py: Plan -> WorkerOptions
client/_backend.py: _Kept -> _LoopClient

config/epochq_compat.py: Entry -> SectionKey, Found -> ParsedFile

core/dependencies.py: End -> JobEnd
core/bulk_records.py: Entry -> BulkRecord, Group -> ConsumerGroup, Slice -> EpochSlice
core/pool_shares.py: Place -> PoolPlace
core/queue.py: Counts -> StateCounts, Subscription -> PushSubscription
core/webhook.py: Progress -> DeliveryProgress

doors/net/raw_sockets.py: Links -> RawSockets
doors/net/send_queue.py: Outbox -> SendQueue
doors/queue_counters.py: Tallies -> QueueCounters
doors/websocket.py: Connections -> OpenSockets
doors/http/body.py: Reader -> BodyReader
doors/http/route.py: Meter -> RequestObserver
doors/batches/wire.py: Body -> StrictBodyReader, DeadQuery -> DeadItemsQuery
doors/batches/metrics.py: Tally -> BatchCounters
doors/bulk/service.py: BulkOffice -> BulkService
doors/jobs/command_call.py: Call -> CommandCall, Entry -> CommandEntry
doors/jobs/event_filter.py: Subscription -> EventFilter
doors/jobs/event_hub.py: Hub -> EventHub, Reader -> EventReader
doors/jobs/event_rendering.py: Told -> OutgoingEvent
doors/jobs/flow_commands.py: RemovedReply -> DependencyRemovedReply
doors/jobs/lease_handlers.py: HeldHandlers -> LeaseHandlers
doors/jobs/mapping.py: Options -> DoorOptions
doors/jobs/monitors.py: Watch -> Monitors
doors/jobs/queue_events.py: Wire -> EventConnection
doors/jobs/reader_lag.py: SendQueues -> ReaderLag
doors/jobs/session.py: Session -> JobsSession
doors/jobs/tcp.py: Connection -> TcpConnection
doors/jobs/tcp_frames.py: Parser -> FrameParser
doors/jobs/wire.py: In -> RequestModel
doors/messages/consumer_claim.py: Taker -> ConsumerClaim
doors/messages/deliveries.py: Delivery -> OpenDelivery
doors/messages/metrics.py: MessageTally -> MessageCounters
doors/messages/push_dispatcher.py: PushOffice -> PushDispatcher
doors/messages/queue_registry.py: Places -> QueueRegistry, Rules -> MessageDefaults
doors/messages/rendering.py: Receipt -> ReceiptHandle
doors/messages/request_metrics.py: RequestTally -> RequestCounters
doors/messages/settling.py: Settling -> DeliverySettler
doors/messages/websocket.py: Held -> UnsettledMessage
doors/messages/wire.py: Body -> MessageBodyReader, In -> StrictModel, Word -> SettleFrame
doors/resp/command_table.py: Entry -> RespCommand
doors/resp/listener.py: Connection -> RespConnection
doors/resp/parser.py: Parser -> RespParser
doors/resp/pipeline.py: Works -> Pipeline, Settling -> SettleCommand, new_settling -> new_settle_command
doors/resp/pulls.py: Held -> PulledJobs
doors/resp/session.py: Session -> RespSession
doors/resp/subscription.py: Subscription -> RespSubscription
doors/topics/http_stream.py: Line -> StreamLine
doors/topics/subscriber.py: Message -> TopicMessage, Word -> MessageOutcome

engine/batcher.py: Group -> AnswerGroup
engine/event_feed.py: Feed -> EventFeed
engine/fair_queue.py: Line -> NamespaceQueue, Lines -> FairQueue
engine/quota_check.py: Quotas -> QuotaCheck
engine/stats.py: Stats -> EngineStats
engine/timers.py: _lapse -> _expire_leases
engine/unit_of_work.py: Work -> UnitOfWork
engine/worker_registry.py: Worker -> RegisteredWorker, Workers -> WorkerRegistry
engine/jobs/claim.py: WaitingRoom -> ClaimWaiters, Wait -> PendingClaim, Nudge -> RecheckQueue, nudge -> recheck_queue, Note -> ClaimNote, _give_back -> return_deliveries
engine/jobs/dead_letters.py: Inspect -> LeaseDead, inspect -> lease_dead
engine/jobs/dependencies.py: Unneed -> DropDependency, unneed -> drop_dependency
engine/jobs/lease_waiters.py: HeldJobs -> LeaseWaiters, AskHeld -> CheckLeases, ask_held -> check_leases
engine/jobs/push.py: Part -> StagedChunk
engine/jobs/queue_limits.py: Throttle -> QueueLimits
engine/jobs/result_waiters.py: Completions -> ResultWaiters, Ending -> JobOutcome
engine/jobs/settle.py: Hold -> LeaseRef, PutBack -> Requeue, put_back -> requeue, Progress -> ReportProgress, progress -> report_progress, Fail -> Nack, fail -> nack
engine/jobs/settle_by_id.py: Receipt -> ClaimedJob
engine/jobs/uniqueness.py: Names -> ExistingJobs
engine/queues/admin.py: Slice -> MoveBatch, slice_ -> move_batch, Forget -> RemoveQueue, forget -> remove_queue
engine/maintenance/service.py: Keeper -> PeriodicService, Healer -> StoreRecovery, Archivist -> RetentionService, Undertaker -> DeadLetterService, Neighbour -> Membership, Timekeeper -> ClockMarker
engine/sharding/engine.py: Fleet -> ShardedEngine
engine/sharding/name_registry.py: Wish -> NameRequest, Held -> NameOwner, Registrar -> NameRegistry
engine/sharding/remote_dependencies.py: Await -> WatchJobs, wait_for -> watch_jobs, HearEnds -> ApplyRemoteEnds, hear_ends -> apply_remote_ends, NoteTold -> RecordDelivered, note_told -> record_delivered
engine/sharding/queue_move.py: Leave -> Freeze, leave -> freeze, Arrive -> Prepare, arrive -> prepare, Unload -> ImportJobs, unload -> import_jobs, UnloadCrons -> ImportCrons, unload_crons -> import_crons, PackCrons -> ExportCrons, pack_crons -> export_crons, Depart -> HandOver, depart -> hand_over, Stay -> CancelMove, stay -> cancel_move, Flip -> FinishRebalance, flip -> finish_rebalance, Examine -> CheckUnreadable, examine -> check_unreadable
engine/bulk/consumer_groups.py: Wish -> GroupClaim, Standing -> GroupStatus, Groups -> ConsumerGroups
engine/bulk/epoch_commands.py: Begin -> BeginSettling, begin -> begin_settling, End -> EndEpochs, end -> end_epochs, Ending -> SliceOutcome, Examine -> CheckPayloads, examine -> check_payloads, Record -> RecordEpoch, record -> record_epoch
engine/bulk/stage_commands.py: Forget -> PruneRecords, forget -> prune_records, Told -> RecordPublished, told -> record_published
engine/bulk/staged_writes.py: Rows -> PackedRows, Stages -> StagedWrites
engine/prefetch/ready_cache.py: FastPath -> ReadyCache
engine/prefetch/claim_queue.py: Line -> ClaimQueue
engine/prefetch/commands.py: Begin -> RecordLeases, begin -> record_leases, call_back -> withdraw_ready
engine/prefetch/lease_recorder.py: LeaseDaemon -> LeaseRecorder
engine/prefetch/unconfirmed_leases.py: Handed -> UnconfirmedLease, HandedOut -> UnconfirmedLeases
engine/buffer/commands.py: Promise -> BufferedPush, Keep -> StoreRecords, keep -> store_records, KeepHere -> StoreOwnRecords, keep_here -> store_own_records

lake/queries/api.py: _Kept -> _CachedTable
lake/queries/slo.py: Alarm -> BurnAlert
lake/report/data.py: Facts -> ReportData, facts_of -> report_data_of
lake/report/highlights.py: Note -> Highlight
lake/transform/rows.py: Rows -> EventRows
lake/writer.py: Part -> DataFile

outbound/delivery.py: Courier -> WebhookDelivery
outbound/dispatcher.py: PostOffice -> WebhookDispatcher
outbound/request.py: Body -> EventBody, Letter -> WebhookRequest

spark/http_client.py: Wire -> BulkClient
spark/lease_keeper.py: Keeper -> LeaseKeeper
spark/pipeline/run.py: Batch -> BatchResult, Summary -> RunSummary
spark/pipeline/tasks.py: Made -> TaskOutput
spark/replay.py: Wish -> ReplayRequest, Outcome -> ReplayResult
spark/trigger_pacing.py: Pace -> TriggerPacing

store/bounded_list.py: Listing -> BoundedList
store/enqueue_log.py: Wal -> EnqueueLog, Record -> LogRecord
store/transaction_base.py: Draft -> TransactionBase
store/sync_mark_file.py: NoteFile -> SyncMarkFile
store/postgres/bulk_records.py: Ledger -> PostgresBulkRecords
store/postgres/catalog.py: Catalog -> PostgresCatalog
store/postgres/commit_notice.py: News -> CommitNotice
store/postgres/follower.py: Follower -> PostgresFollower
store/postgres/job_groups.py: Groups -> PostgresJobGroups
store/postgres/queue_heads.py: Front -> QueueHead, Fronts -> QueueHeads
store/postgres/sharding.py: AcrossShards -> PostgresSharding
store/postgres/transaction_slots.py: Turns -> TransactionSlots
store/redis/buffer_copies.py: Buffers -> BufferCopies
store/redis/ready_lists.py: Plan -> ListLock
store/sqlite/bulk_records.py: Ledger -> SqliteBulkRecords
store/sqlite/catalog.py: Catalog -> SqliteCatalog
store/sqlite/disk_space.py: Room -> DiskSpace
store/sqlite/job_groups.py: Groups -> SqliteJobGroups
store/sqlite/restore_plan.py: Plan -> RestorePlan
store/sqlite/sharding.py: AcrossShards -> SqliteSharding
store/sqlite/sync_mark.py: Found -> LogState
"""

#: Methods, found by mypy's types. The class by its new name and place.
MEMBERS = """
engine/unit_of_work.py:UnitOfWork: meet -> track, meet_all -> track_all, flush_and_meet -> flush_and_track, at_hand -> cached, is_strange -> belongs_elsewhere, refuse_strange -> refuse_elsewhere
engine/event_feed.py:EventFeed: hear -> publish, pass_on -> publish_transient
engine/sharding/engine.py:ShardFeed: hear -> publish
"""

#: Two classes of one name that are meant to be: what the SDK and the server call the same thing, and shapes of the wire.
SAME = """
CronJobOptions Cron DlqConfig ItemError Job LakeInvalid LeasesLost LogLine NewJob PenstockError QueueStats Repeat StallConfig
Webhook _Out
"""

#: (file, old, new): names of classes in texts of tests.
LITERAL = [
    (
        "tests/store/postgres/test_sharding.py",
        '"Await", "Push", "Ack", "DueRelays", "HearEnds", "NoteTold"',
        '"WatchJobs", "Push", "Ack", "DueRelays", "ApplyRemoteEnds", "RecordDelivered"',
    ),
    (
        "src/penstock/engine/jobs/claim.py",
        "def return_deliveries(engine: Engine, caller: Claim, deliveries: list[Delivery]) -> None:\n    if",
        'def return_deliveries(engine: Engine, caller: Claim, deliveries: list[Delivery]) -> None:\n    """Release jobs that were leased for a caller that is gone."""\n    if',
    ),
    ("tests/engine/sharding/test_name_registry.py", '["Await", "Push"]', '["WatchJobs", "Push"]'),
]
