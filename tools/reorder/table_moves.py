"""Stage A: where modules go. Paths are relative to src/penstock (SRC) or to the repository (TESTS). A name ending in / is a whole folder."""

SRC = """
server.py -> server/app.py
shards.py -> server/storage.py
gates.py -> server/auth.py
listeners.py -> server/listeners.py
dev_cert.py -> server/dev_cert.py
logs.py -> server/logging.py

access/gate.py -> access/authenticator.py
access/hosts.py -> access/allowed_hosts.py
access/origin.py -> access/cross_origin.py

bulkwork/process.py -> bulkwork/pool.py
bulkwork/frames.py -> bulkwork/protocol.py
bulkwork/stagework.py -> bulkwork/stage_rows.py
bulkwork/epochwork.py -> bulkwork/epoch_rows.py
bulkwork/insightwork.py -> bulkwork/lake_queries.py
bulkwork/files.py -> bulkwork/arrow_files.py
bulkwork/arrowsize.py -> bulkwork/arrow_size.py

cli/building.py -> cli/lake.py
cli/working.py -> cli/worker_run.py
cli/asking.py -> cli/api.py

client/_desk.py -> client/_worker_loop.py
client/_hand.py -> client/_held_jobs.py
client/_outbox.py -> client/_settlements.py
client/_presence.py -> client/_registration.py
client/_handling.py -> client/_execute.py
client/_texts.py -> client/_sanitize.py
client/_units.py -> client/_durations.py
client/_call.py -> client/_request.py
client/_calling.py -> client/_task_call.py
client/_runners.py -> client/_executors.py
client/_plan.py -> client/_worker_options.py

config/shown.py -> config/display.py
config/sections.py -> config/epochq_compat.py
config/readers.py -> config/parsers.py
config/originals.py -> config/env_compat.py

core/flow.py -> core/dependencies.py
core/names.py -> core/reservations.py
core/ledger.py -> core/bulk_records.py
core/nesting.py -> core/json_depth.py
core/opaque.py -> core/binary_payload.py

doors/links.py -> doors/net/raw_sockets.py
doors/answers.py -> doors/net/unread_answers.py
doors/arriving.py -> doors/net/incoming_messages.py
doors/connections.py -> doors/net/connections.py
doors/connection_monitor.py -> doors/net/connection_monitor.py
doors/loopshare.py -> doors/net/loop_share.py
doors/permission.py -> doors/wait_permission.py
store/journal.py -> store/journal_pages.py
store/postgres/groups.py -> store/postgres/job_groups.py
core/shares.py -> core/pool_shares.py
core/slices.py -> core/time_slices.py
engine/turns.py -> engine/fair_turns.py
engine/group_limits.py -> engine/queues/group_limits.py
doors/listening.py -> doors/net/listener.py
doors/outbox.py -> doors/net/send_queue.py
doors/rights.py -> doors/permissions.py
doors/namespaces.py -> doors/http/namespace.py
doors/tallies.py -> doors/queue_counters.py
doors/http/claiming.py -> doors/http/long_poll.py
doors/insights/door.py -> doors/insights/handlers.py
doors/batches/door.py -> doors/batches/handlers.py
doors/batches/tally.py -> doors/batches/metrics.py
doors/bulk/door.py -> doors/bulk/service.py
doors/bulk/tally.py -> doors/bulk/metrics.py
doors/jobs/door.py -> doors/jobs/base.py
doors/jobs/jobs.py -> doors/jobs/job_handlers.py
doors/jobs/views.py -> doors/jobs/mapping.py
doors/jobs/call.py -> doors/jobs/command_call.py
doors/jobs/held.py -> doors/jobs/lease_handlers.py
doors/jobs/hub.py -> doors/jobs/event_hub.py
doors/jobs/events.py -> doors/jobs/event_rendering.py
doors/jobs/streams.py -> doors/jobs/sse.py
doors/jobs/sockets.py -> doors/jobs/websocket.py
doors/jobs/subscription.py -> doors/jobs/event_filter.py
doors/jobs/watch.py -> doors/jobs/monitors.py
doors/jobs/frames.py -> doors/jobs/tcp_frames.py
doors/jobs/sendqueue.py -> doors/jobs/reader_lag.py
doors/messages/door.py -> doors/messages/handlers.py
doors/messages/places.py -> doors/messages/queue_registry.py
doors/messages/push.py -> doors/messages/push_dispatcher.py
doors/messages/taker.py -> doors/messages/consumer_claim.py
doors/messages/tally.py -> doors/messages/metrics.py
doors/messages/requests.py -> doors/messages/request_metrics.py
doors/messages/sockets.py -> doors/messages/websocket.py
doors/messages/receipts.py -> doors/messages/rendering.py
doors/topics/door.py -> doors/topics/handlers.py
doors/topics/ahead.py -> doors/topics/read_ahead.py
doors/topics/flow.py -> doors/topics/backpressure.py
doors/topics/stream.py -> doors/topics/http_stream.py
doors/topics/topic.py -> doors/topics/message.py
doors/topics/unsure.py -> doors/topics/unsized_publish.py
doors/topics/resp/ -> doors/resp/
doors/topics/resp/answers.py -> doors/resp/connection_commands.py
doors/topics/resp/table.py -> doors/resp/command_table.py
doors/topics/resp/words.py -> doors/resp/arguments.py
doors/topics/resp/asking.py -> doors/resp/engine_calls.py
doors/topics/resp/works.py -> doors/resp/pipeline.py
doors/topics/resp/received.py -> doors/resp/receive.py

engine/work.py -> engine/unit_of_work.py
engine/verbs.py -> engine/dispatch.py
engine/feed.py -> engine/event_feed.py
engine/sweep.py -> engine/timers.py
engine/workers.py -> engine/worker_registry.py
engine/meter.py -> engine/quota_check.py
engine/lines.py -> engine/fair_queue.py
engine/produce.py -> engine/jobs/push.py
engine/making.py -> engine/jobs/build.py
engine/taken.py -> engine/jobs/uniqueness.py
engine/unique.py -> engine/jobs/unique_keys.py
engine/claim.py -> engine/jobs/claim.py
engine/throttle.py -> engine/jobs/queue_limits.py
engine/settle.py -> engine/jobs/settle.py
engine/receipt.py -> engine/jobs/settle_by_id.py
engine/change.py -> engine/jobs/update.py
engine/dead.py -> engine/jobs/dead_letters.py
engine/repeat.py -> engine/jobs/repeat.py
engine/completions.py -> engine/jobs/result_waiters.py
engine/flows.py -> engine/jobs/dependencies.py
engine/flow_push.py -> engine/jobs/flow_push.py
engine/park.py -> engine/jobs/park.py
engine/held.py -> engine/jobs/lease_waiters.py
engine/admin.py -> engine/queues/admin.py
engine/crons.py -> engine/queues/crons.py
engine/hooks.py -> engine/queues/webhooks.py
engine/subscribe.py -> engine/queues/push_subscriptions.py
engine/limit_status.py -> engine/queues/limit_status.py
engine/keeper.py -> engine/maintenance/service.py
engine/fleet.py -> engine/sharding/engine.py
engine/pushing.py -> engine/sharding/push.py
engine/names.py -> engine/sharding/name_registry.py
engine/afar.py -> engine/sharding/remote_dependencies.py
engine/rebalance.py -> engine/sharding/rebalancer.py
engine/moving.py -> engine/sharding/queue_move.py
engine/groups.py -> engine/bulk/consumer_groups.py
engine/epochs.py -> engine/bulk/epoch_commands.py
engine/stages.py -> engine/bulk/staged_writes.py
engine/drafts.py -> engine/bulk/stage_commands.py
engine/publisher.py -> engine/bulk/publisher.py
engine/fast/ -> engine/prefetch/
engine/fast/path.py -> engine/prefetch/ready_cache.py
engine/fast/line.py -> engine/prefetch/claim_queue.py
engine/fast/handed.py -> engine/prefetch/unconfirmed_leases.py
engine/fast/lease_daemon.py -> engine/prefetch/lease_recorder.py
engine/fast/buffer.py -> engine/buffer/enqueue_buffer.py
engine/fast/promises.py -> engine/buffer/commands.py
engine/fast/capacity.py -> engine/buffer/capacity.py

lake/making/ -> lake/transform/
lake/reading/ -> lake/queries/
lake/kinds.py -> lake/transform/event_kinds.py
lake/place.py -> lake/location.py
lake/parts.py -> lake/writer.py
lake/upkeep.py -> lake/maintenance.py
lake/report/facts.py -> lake/report/data.py
lake/report/words.py -> lake/report/highlights.py
lake/report/page.py -> lake/report/html.py
lake/report/making.py -> lake/report/build.py
lake/reading/questions.py -> lake/queries/api.py
lake/reading/log.py -> lake/queries/delta_log.py
lake/reading/drain.py -> lake/queries/backlog_forecast.py

outbound/webhooks.py -> outbound/dispatcher.py
outbound/courier.py -> outbound/delivery.py
outbound/letter.py -> outbound/request.py

spark/lease.py -> spark/queue_stream.py
spark/keeper.py -> spark/lease_keeper.py
spark/pace.py -> spark/trigger_pacing.py
spark/wire.py -> spark/http_client.py
spark/trouble.py -> spark/errors.py
spark/pipeline/fleet.py -> spark/pipeline/worker_snapshot.py

store/draft.py -> store/transaction_base.py
store/disk.py -> store/data_directory.py
store/listing.py -> store/bounded_list.py
store/bulk.py -> store/bulk_reader.py
store/wal.py -> store/enqueue_log.py
store/walmark.py -> store/enqueue_log_mark.py
store/markfile.py -> store/sync_mark_file.py
store/shards.py -> store/sharded.py
store/sqlite/across.py -> store/sqlite/sharding.py
store/sqlite/groups.py -> store/sqlite/job_groups.py
store/sqlite/readers.py -> store/sqlite/reads.py
store/sqlite/waltail.py -> store/sqlite/wal_check.py
store/sqlite/keys.py -> store/sqlite/api_keys.py
store/sqlite/ledger.py -> store/sqlite/bulk_records.py
store/sqlite/leaseclock.py -> store/sqlite/lease_clock.py
store/sqlite/logsync.py -> store/sqlite/wal_sync.py
store/sqlite/mark.py -> store/sqlite/sync_mark.py
store/sqlite/restoreplan.py -> store/sqlite/restore_plan.py
store/sqlite/room.py -> store/sqlite/disk_space.py
store/postgres/across.py -> store/postgres/sharding.py
store/postgres/fronts.py -> store/postgres/queue_heads.py
store/postgres/turns.py -> store/postgres/transaction_slots.py
store/postgres/news.py -> store/postgres/commit_notice.py
store/postgres/keys.py -> store/postgres/api_keys.py
store/postgres/ledger.py -> store/postgres/bulk_records.py
store/redis/lists.py -> store/redis/ready_lists.py
store/redis/buffers.py -> store/redis/buffer_copies.py
"""

#: Docstrings of packages that are new.
PACKAGES = {
    "server": "The server: puts all parts together, opens its storage and its listeners, and runs until it is stopped.",
    "doors/net": "Sockets, listeners and send queues that several doors share.",
    "engine/jobs": "Commands about single jobs: push, claim, settle, update, and what waits for them.",
    "engine/queues": "Commands about whole queues: settings, crons, webhooks, subscriptions.",
    "engine/maintenance": "Periodic services of the engine: recovery, retention, dead letters, membership.",
    "engine/sharding": "Several shards as one engine: routing, names, dependencies across shards, moving queues.",
    "engine/bulk": "Consumer groups with their epochs, and staged writes.",
    "engine/buffer": "The enqueue buffer: pushes that are answered from a log and stored later.",
}

TESTS = """
tests/sqlite/ -> tests/store/sqlite/
tests/postgres/ -> tests/store/postgres/
tests/conformance/ -> tests/store/conformance/
tests/store/conformance/test_across.py -> tests/store/conformance/test_sharding.py
tests/conformance/test_across.py -> tests/store/conformance/test_sharding.py
tests/conformance/test_ledger.py -> tests/store/conformance/test_bulk_records.py
tests/conformance/test_line.py -> tests/store/conformance/test_queue_order.py
tests/conformance/test_keys.py -> tests/store/conformance/test_api_keys.py
tests/conformance/test_needs.py -> tests/store/conformance/test_dependencies.py
tests/postgres/test_across.py -> tests/store/postgres/test_sharding.py
tests/postgres/test_fronts.py -> tests/store/postgres/test_queue_heads.py
tests/postgres/test_lanes.py -> tests/store/postgres/test_transaction_slots.py

tests/bulkwork/test_office.py -> tests/bulkwork/test_pool.py
tests/bulkwork/test_stagework.py -> tests/bulkwork/test_stage_rows.py
tests/lake/test_making.py -> tests/lake/test_build.py
tests/lake/test_reading.py -> tests/lake/test_queries.py
tests/lake/test_parts_read.py -> tests/lake/test_writer_reads.py
tests/spark/test_pace.py -> tests/spark/test_trigger_pacing.py
tests/spark/test_wire.py -> tests/spark/test_http_client.py
tests/outbound/test_webhooks.py -> tests/outbound/test_dispatcher.py
tests/test_dev_cert.py -> tests/server/test_dev_cert.py
tests/test_miniqueue_flags.py -> tests/cli/test_miniqueue_flags.py

tests/fast/ -> tests/engine/prefetch/
tests/fast/test_fast_path.py -> tests/engine/prefetch/test_ready_cache.py

tests/engine/test_across.py -> tests/engine/sharding/test_remote_dependencies.py
tests/engine/test_names.py -> tests/engine/sharding/test_name_registry.py
tests/engine/test_rebalance.py -> tests/engine/sharding/test_rebalancer.py
tests/engine/test_rebalance_names.py -> tests/engine/sharding/test_rebalance_names.py
tests/engine/test_round_trips.py -> tests/engine/test_round_trips.py
tests/engine/test_admin.py -> tests/engine/queues/test_admin.py
tests/engine/test_crons.py -> tests/engine/queues/test_crons.py
tests/engine/test_hooks.py -> tests/engine/queues/test_webhooks.py
tests/engine/test_subscribe.py -> tests/engine/queues/test_push_subscriptions.py
tests/engine/test_change.py -> tests/engine/jobs/test_update.py
tests/engine/test_claim.py -> tests/engine/jobs/test_claim.py
tests/engine/test_completions.py -> tests/engine/jobs/test_result_waiters.py
tests/engine/test_flow_push.py -> tests/engine/jobs/test_flow_push.py
tests/engine/test_flows.py -> tests/engine/jobs/test_dependencies.py
tests/engine/test_held.py -> tests/engine/jobs/test_lease_waiters.py
tests/engine/test_options.py -> tests/engine/jobs/test_options.py
tests/engine/test_partly.py -> tests/engine/jobs/test_partly.py
tests/engine/test_produce.py -> tests/engine/jobs/test_push.py
tests/engine/test_put_back.py -> tests/engine/jobs/test_requeue.py
tests/engine/test_receipt.py -> tests/engine/jobs/test_settle_by_id.py
tests/engine/test_repeat.py -> tests/engine/jobs/test_repeat.py
tests/engine/test_settle.py -> tests/engine/jobs/test_settle.py
tests/engine/test_epochs.py -> tests/engine/bulk/test_epoch_commands.py
tests/engine/test_stages.py -> tests/engine/bulk/test_staged_writes.py
tests/engine/test_keeper.py -> tests/engine/maintenance/test_service.py
tests/engine/test_feed.py -> tests/engine/test_event_feed.py
tests/engine/test_group_limits.py -> tests/engine/queues/test_group_limits.py
tests/engine/test_turns.py -> tests/engine/test_fair_turns.py
tests/core/test_shares.py -> tests/core/test_pool_shares.py
tests/engine/test_lines.py -> tests/engine/test_fair_queue.py
tests/engine/test_workers.py -> tests/engine/test_worker_registry.py

tests/doors/test_links.py -> tests/doors/net/test_raw_sockets.py
tests/doors/test_outbox.py -> tests/doors/net/test_send_queue.py
tests/doors/test_http.py -> tests/doors/http/test_http.py
tests/doors/test_http2_bodies.py -> tests/doors/http/test_http2_bodies.py
tests/doors/test_openapi.py -> tests/doors/http/test_openapi.py
tests/doors/test_openapi_client.py -> tests/doors/http/test_openapi_client.py
tests/doors/test_request_log.py -> tests/doors/http/test_request_log.py
tests/doors/test_router.py -> tests/doors/http/test_router.py
tests/doors/test_tls.py -> tests/doors/http/test_tls.py
tests/doors/test_websocket.py -> tests/doors/net/test_websocket.py
tests/doors/test_batch_leases.py -> tests/doors/batches/test_leases.py
tests/doors/test_batches.py -> tests/doors/batches/test_batches.py
tests/doors/test_bulk.py -> tests/doors/bulk/test_bulk.py
tests/doors/test_bulk_groups.py -> tests/doors/bulk/test_groups.py
tests/doors/test_bulk_stages.py -> tests/doors/bulk/test_stages.py
tests/doors/test_insights.py -> tests/doors/insights/test_insights.py
tests/doors/test_bunqueue_client.py -> tests/doors/jobs/test_bunqueue_client.py
tests/doors/test_commands.py -> tests/doors/jobs/test_commands.py
tests/doors/test_crons.py -> tests/doors/jobs/test_crons.py
tests/doors/test_event_streams.py -> tests/doors/jobs/test_sse.py
tests/doors/test_events_rendering.py -> tests/doors/jobs/test_event_rendering.py
tests/doors/test_flows.py -> tests/doors/jobs/test_flows.py
tests/doors/test_frames.py -> tests/doors/jobs/test_tcp_frames.py
tests/doors/test_job_names.py -> tests/doors/jobs/test_job_names.py
tests/doors/test_job_options.py -> tests/doors/jobs/test_job_options.py
tests/doors/test_jobs_change.py -> tests/doors/jobs/test_update.py
tests/doors/test_jobs_push_pull.py -> tests/doors/jobs/test_push_pull.py
tests/doors/test_jobs_queues.py -> tests/doors/jobs/test_queues.py
tests/doors/test_jobs_settle.py -> tests/doors/jobs/test_settle.py
tests/doors/test_jobs_webhooks.py -> tests/doors/jobs/test_webhooks.py
tests/doors/test_queue_events.py -> tests/doors/jobs/test_queue_events.py
tests/doors/test_seed_coverage.py -> tests/doors/jobs/test_seed_coverage.py
tests/doors/test_seed_events.py -> tests/doors/jobs/test_seed_events.py
tests/doors/test_seed_routes.py -> tests/doors/jobs/test_seed_routes.py
tests/doors/seed.py -> tests/doors/jobs/seed.py
tests/doors/seed.toml -> tests/doors/jobs/seed.toml
tests/doors/test_tcp.py -> tests/doors/jobs/test_tcp.py
tests/doors/test_watch.py -> tests/doors/jobs/test_monitors.py
tests/doors/test_workers.py -> tests/doors/jobs/test_workers.py
tests/doors/test_consumer.py -> tests/doors/messages/test_consumer.py
tests/doors/test_messages.py -> tests/doors/messages/test_messages.py
tests/doors/test_messages_push.py -> tests/doors/messages/test_push.py
tests/doors/test_messages_sockets.py -> tests/doors/messages/test_websocket.py
tests/doors/test_push_office.py -> tests/doors/messages/test_push_dispatcher.py
tests/doors/test_receive.py -> tests/doors/resp/test_receive.py
tests/doors/test_resp.py -> tests/doors/resp/test_resp.py
tests/doors/test_resp_access.py -> tests/doors/resp/test_access.py
tests/doors/test_resp_clients.py -> tests/doors/resp/test_clients.py
tests/doors/test_resp_jobs.py -> tests/doors/resp/test_jobs.py
tests/doors/test_resp_links.py -> tests/doors/resp/test_connections.py
tests/doors/test_resp_parser.py -> tests/doors/resp/test_parser.py
tests/doors/test_subscriber.py -> tests/doors/topics/test_subscriber.py
tests/doors/test_topics.py -> tests/doors/topics/test_topics.py
tests/doors/test_topics_decoder.py -> tests/doors/topics/test_decoder.py
tests/doors/test_topics_flow.py -> tests/doors/topics/test_backpressure.py
tests/doors/test_topics_kill.py -> tests/doors/topics/test_kill.py
tests/doors/test_keys.py -> tests/doors/ops/test_keys.py
tests/doors/test_ops.py -> tests/doors/ops/test_ops.py
tests/doors/test_shards.py -> tests/doors/ops/test_shards.py
"""

#: (file, old, new): text that no rule covers. Reported when ``old`` is not found.
LITERAL = [
    ("pyproject.toml", '  "client | server",\n  "listeners | shards | gates | dev_cert",\n', '  "client | server",\n'),
    ("pyproject.toml", '  "config | logs",\n', '  "config",\n'),
    ("pyproject.toml", '"penstock.engine", "penstock.gates",', '"penstock.engine",'),
    (
        "pyproject.toml",
        '"penstock.listeners", "penstock.logs", "penstock.outbound", "penstock.server", "penstock.shards", "penstock.store"',
        '"penstock.outbound", "penstock.server", "penstock.store"',
    ),
    ("docs/architecture.md", "over a pipe (`frames.py`)", "over a pipe (`protocol.py`)"),
    ("docs/architecture.md", "writes them (`files.py`)", "writes them (`arrow_files.py`)"),
    ("docs/architecture.md", "does not read (`flow.py`)", "does not read (`backpressure.py`)"),
    (
        "docs/architecture.md",
        "WebSockets (`sockets.py`) and webhooks (`push.py`)",
        "WebSockets (`websocket.py`) and webhooks (`push_dispatcher.py`)",
    ),
    ("docs/architecture.md", "`promises.py` has the verbs", "`engine/buffer/commands.py` has the verbs"),
    ("docs/architecture.md", "`buffer.py` answers pushes", "`engine/buffer/enqueue_buffer.py` answers pushes"),
    ("pyproject.toml", "store/{catalog,draft,shards}.py", "store/{catalog,sharded,transaction_base}.py"),
    ("pyproject.toml", '"penstock.server.app"', '"penstock.server"'),
    ("tests/architecture/test_rules.py", 'main.get_command(context, "asking")', 'main.get_command(context, "api")'),
]

#: The name a module is bound to where its own name is taken.
ALIASES = {}
