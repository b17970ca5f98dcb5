"""All limits of Penstock. The unit comes last in a name. Everything that grows has one of these limits.

Limits that a user can set have their defaults in ``config/settings.py``; the limits here are fixed.
"""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
YEAR_MS: Final = 365 * DAY_MS
MEBIBYTE: Final = 1024 * 1024

# Limits of a job.
payload_bytes_max: Final = 10 * MEBIBYTE
payload_depth_max: Final = 64
priority_min: Final = -1_000_000
priority_max: Final = 1_000_000
delay_ms_max: Final = YEAR_MS
ttl_ms_max: Final = YEAR_MS
timeout_ms_max: Final = DAY_MS
backoff_ms_max: Final = DAY_MS
retry_delay_ms_max: Final = DAY_MS
attempts_max: Final = 1_000
queue_messages_max: Final = 10**12  #: as a limit of a queue; a higher number means no limit
tags_max: Final = 100
needs_max: Final = 1_000  # of one job
request_needs_max: Final = 10_000  # of all jobs of one request together
flow_depth_max: Final = 1_000
name_chars_max: Final = 256
namespace_chars_max: Final = 128
key_chars_max: Final = 1_024
idempotency_key_chars_max: Final = 512
error_chars_max: Final = 65_536
stack_lines: Final = 10  # kept of a stack, unless the job sets another number
stack_lines_max: Final = 1_000
stack_chars_max: Final = 65_536  # of all lines together
timestamp_ms_max: Final = 10**13 - 1  # the year 2286
log_message_chars_max: Final = 65_536
progress_message_chars_max: Final = 4_096
flow_error_chars_max: Final = 1_024  # of an error that is copied to the jobs that needed the failed one

# Limits of a pushed message.
push_retries_max: Final = 20

# Limits of a cron.
schedule_chars_max: Final = 256
timezone_chars_max: Final = 64
repeat_every_ms_max: Final = YEAR_MS
repeats_max: Final = 1_000_000_000
crons_max: Final = 10_000
cron_plan_bytes_max: Final = 16_384  # of what is stored of a cron besides its payload: its tags, for example
#: A tick that is later than this, because the server was busy or the clock was set forward, is missed.
cron_late_ms_max: Final = MINUTE_MS
#: After a tick that was skipped because its previous job is unfinished, ticks within this time are skipped without a check.
cron_skip_ms: Final = 100

# Limits of a request.
path_chars_max: Final = 8_192  # of a path without its query string, after percent-decoding
path_segments_max: Final = key_chars_max + 16  # an id may consist of slashes only
query_chars_max: Final = 16_384  # in its encoded form
query_fields_max: Final = 256
header_list_bytes_max: Final = 131_072  # of a request over HTTP/2, unpacked
forwarded_hops_max: Final = 32  # addresses of X-Forwarded-For that are read, from the last one
body_bytes_max: Final = payload_bytes_max + 65_536  # room for the envelope around the largest payload
small_body_bytes: Final = 65_536
bodies_bytes_max: Final = 1024 * MEBIBYTE  # of all large bodies in progress, counted by the bytes received
bodies_share_bytes_max: Final = bodies_bytes_max // 2  # the same, of one namespace or client
body_idle_ms_max: Final = 30 * SECOND_MS  # a large body without new bytes for this long is cancelled
drain_bytes_max: Final = 16 * MEBIBYTE  # read and dropped of a body that was already answered with an error
drain_ms_max: Final = 5_000  # the same, in time
object_fields_max: Final = 10_000  # of one object in a large body, unless it is a payload
loop_hold_ms: Final = 50  # for which one request may delay all others
bulk_jobs_max: Final = 10_000
names_told_max: Final = 20  # ids of jobs that an error text lists
ids_max: Final = 10_000
claim_jobs_max: Final = 1_000
claim_wait_ms_max: Final = 60_000
completion_wait_ms_max: Final = 10 * MINUTE_MS
lease_ms_max: Final = DAY_MS
list_jobs_max: Final = 10_000
list_bytes_max: Final = 64 * MEBIBYTE
offset_max: Final = 10**15
grace_ms_max: Final = 100 * YEAR_MS
clean_jobs_max: Final = 100_000
metric_minutes_max: Final = 14 * DAY_MS // MINUTE_MS  # of the ends of a queue's jobs, as bunqueue keeps

accepted_hosts_max: Final = 64  # names of this server in requests that are remembered; as many others are logged
shown_host_chars_max: Final = 100

# Limits of a connection over the TCP protocol or WebSocket of the jobs door.
frame_bytes_max: Final = 64 * MEBIBYTE
frames_bytes_max: Final = 1024 * MEBIBYTE  # of all frames that are received or processed, beyond the next
frames_share_bytes_max: Final = frames_bytes_max // 2  # the same, of one namespace or client
small_frame_bytes: Final = 32_768  # of a frame that is decoded without a pause
connection_frames_bytes: Final = 65_536  # that every connection may hold, independent of the others
frame_idle_ms_max: Final = MINUTE_MS  # a frame without new bytes for this long is cancelled
tcp_connections_max: Final = 10_000
connection_commands_max: Final = 50  # in progress at the same time
connection_jobs_max: Final = 10_000  # pulled jobs that are released when the connection ends
client_listings_max: Final = 2  # listings of jobs that are created for one client at a time
connection_write_bytes_max: Final = 64 * MEBIBYTE  # replies that a client has not read
command_name_chars_max: Final = 64
command_values_max: Final = 2_000_000  # because all of them are processed while other requests wait
stranger_frame_bytes_max: Final = connection_frames_bytes  # from a client that has not authenticated yet
keepalive_s: Final = 60  # silence after which the system checks the other side
gone_s: Final = 120  # without an answer of the other side, after which the system closes the connection
links_looked_at_max: Final = 10_000  # sockets, in one search

stranger_commands_max: Final = 16  # on one connection, before its client has authenticated; then it is closed
listener_strangers_max: Final = 1_000  # connections over TCP, likewise over RESP, whose clients have not authenticated yet

# Limits of a connection of an HTTP listener.
http_connections_max: Final = 20_000  # of all listeners together, if the process may have enough descriptors
descriptors_wanted: Final = 65_536  # the process raises its limit to this, as far as the system allows
descriptors_reserved: Final = 256  # for stores, name lookups, webhooks and files, with any number of connections
descriptors_scanned_max: Final = 200_000
http2_streams_max: Final = 100  # requests in progress on one connection
http1_buffer_bytes_max: Final = 131_072  # of a request's head, and of answers that one connection has not read
socket_unsent_bytes: Final = 131_072  # of an answer that the system buffers beyond the bytes on their way to the client
connection_scan_ms: Final = SECOND_MS  # between two scans of all connections
first_bytes: Final = 24  # that a connection must send within first_bytes_ms_max: the length of an HTTP/2 preface
first_bytes_ms_max: Final = 10 * SECOND_MS
crowded_quiet_ms: Final = SECOND_MS  # with too many connections, one without a request is closed after this
connection_holders: Final = 8  # a holder with at most this part of all connections keeps those that it uses
answer_counted_bytes: Final = 4_096  # an answer above this size counts as unread until the client has read it
answer_small_bytes: Final = 65_536  # an answer up to this size never waits for other connections
answers_connection_bytes_max: Final = 8 * MEBIBYTE  # unread, beyond one answer
answers_client_bytes_max: Final = 32 * MEBIBYTE  # likewise, by one namespace or client
answers_bytes_max: Final = 96 * MEBIBYTE  # likewise, by all clients; and of answers that wait to be sent
answers_waiting_max: Final = 1_000  # answers that wait to be sent, of all clients; one client gets half of the free places
answer_look_ms: Final = 100  # between two checks how much clients have read
answer_stall_ms_max: Final = 30 * SECOND_MS  # a client that reads nothing of its answers for this long is disconnected
answer_stall_crowded_ms_max: Final = 5 * SECOND_MS  # likewise, while half of answers_bytes_max is unread; and then ...
answer_crowded_parts: Final = 32  # ... one that reads less than this part of its unread bytes in that time

# Limits of a connection over the Redis protocol.
resp_connections_max: Final = 10_000
resp_args_max: Final = 64  # words of a command, with its name
resp_few_args: Final = 16  # a command with more words is processed without the commands after it
resp_line_bytes_max: Final = 65_536  # of a command in inline form
resp_turn_commands: Final = 1_000  # read from a connection at once; and the maximum after its client is lost
resp_unsent_bytes: Final = 65_536  # of replies, after which they are sent before the next command is run
resp_ahead_bytes: Final = 65_536  # read ahead while a subscriber waits for a message
resp_client_name_chars_max: Final = 256
stranger_args_max: Final = 10  # from a client that has not authenticated yet
stranger_bulk_bytes_max: Final = 16_384

# Limits of a subscriber of a topic.
subscribers_max: Final = 20_000
subscription_wait_ms: Final = HOUR_MS  # for a message; then it waits again
stream_command_bytes_max: Final = 1_024  # of one command in a stream
stream_ahead_bytes_max: Final = 65_536  # of commands that were read ahead over HTTP/1.1
stream_look_bytes: Final = 256 * 1024  # sent to a reader before a check whether it reads them
stream_unread_bytes_max: Final = MEBIBYTE  # that a reader has not read; then sending to it pauses
streams_unread_bytes_max: Final = 128 * MEBIBYTE  # by all readers together; then readers with unread bytes wait
stream_look_ms: Final = 20  # between two such checks

# Limits of stored and remembered data.
queues_max: Final = 1_000_000
logs_per_job_max: Final = 100
keep_logs_max: Final = 1_000_000  # that a job may request; logs_per_job_max is the real limit
counted_topics_max: Final = 1_000  # above this number, the batches door counts topics under one name
rate_limit_clients_max: Final = 100_000
rate_limit_marks_max: Final = 2_000_000  # moments of requests, of all clients together; each takes 16 bytes
rate_limit_exact_max: Final = 10_000  # up to this limit each request is counted to the millisecond
quota_namespaces_max: Final = 10_000  # whose pushes are counted
webhooks_max: Final = 200  # each has its own delivery in progress, so this limits deliveries too

subscriptions_max: Final = 200  # on a shard, each with up to push_deliveries_max deliveries in progress
queue_subscriptions_max: Final = 20  # stored in the settings of their queue

# Limits of a webhook and its delivery.
webhook_url_chars_max: Final = 2_048
webhook_events_max: Final = 18  # six events, each in three spellings
webhook_attempts: Final = 4  # the first, and three more
webhook_pause_ms: Final = 1_000  # before the second attempt, doubled for each further one
webhook_attempt_ms_max: Final = 10 * SECOND_MS
webhook_read_bytes: Final = 16_384  # of events of its namespace that a webhook reads at once, in stored form; at least one
webhook_reply_line_bytes_max: Final = 16_384
webhook_reply_lines_max: Final = 256
webhook_addresses_max: Final = 4  # addresses of one name that are tried in one attempt
webhook_lookups_max: Final = 32  # names looked up at the same time; half of them for a single namespace

# Limits of a push consumer of the messages door.
push_sockets_max: Final = 1_000
push_window: Final = 10  # messages that a WebSocket holds, unless it requests another number
push_window_max: Final = 1_000
push_claim_messages: Final = 32  # requested at once, so that messages for a slow reader take little memory
push_deliveries_max: Final = 5  # in progress to one webhook
push_margin_ms: Final = 5 * SECOND_MS  # by which the lease of a message is longer than the attempt to deliver it
push_rest_ms: Final = SECOND_MS  # before the next request, when messages cannot be claimed
push_secret_chars_max: Final = 1_024

# Limits of tokens and keys.
token_chars_max: Final = 8_192  # a JSON Web Token; longer ones are refused unread
known_tokens_max: Final = 10_000  # tokens with a valid signature, which is then not checked for each request
token_grants_max: Final = 1_000  # scopes, or namespaces, in one token
token_chars_min: Final = 16  # of auth_tokens and api_key; shorter ones cause a warning at the start
secret_bytes_min: Final = 32  # minimum for HS256; shorter ones can be guessed
rsa_bits_min: Final = 2_048
jwks_bytes_max: Final = 262_144
jwks_keys_max: Final = 64
api_keys_max: Final = 10_000  # kept, including revoked and expired ones, which are deleted first
api_key_namespaces_max: Final = 100
api_key_label_chars_max: Final = 256
api_key_ms_max: Final = 100 * YEAR_MS  # maximum validity of a key that expires
jwks_age_ms: Final = 10 * MINUTE_MS  # after which fetched keys are fetched again, while requests use tokens
jwks_pause_ms: Final = 30 * SECOND_MS  # between two fetches, for any number of unknown keys in tokens
jwks_fetch_ms_max: Final = 10 * SECOND_MS

# Limits of bulk work.
stage_bytes_max: Final = 64 * MEBIBYTE  # of one part, in received form
stage_part_max: Final = 2**31 - 1
stage_unpacked_bytes_max: Final = 256 * MEBIBYTE  # of one part: with decompressed buffers, and again as jobs that are stored
stage_rows_max: Final = 2_000_000  # of one part
stage_batches_max: Final = 10_000  # record batches in one part
stage_schema_bytes_max: Final = MEBIBYTE  # of the description of the columns
stage_queues_max: Final = 10_000  # in one part
stages_max: Final = 10_000  # parts that are not committed
staged_bytes_max: Final = 16 * 1024 * MEBIBYTE  # of all of them
stage_slice_bytes: Final = 4 * MEBIBYTE  # written in one transaction
stage_ms: Final = HOUR_MS  # after which uncommitted parts are deleted
chunk_bytes: Final = MEBIBYTE  # of rows that are staged together, unless a single row is larger
commits_max: Final = 1_000_000  # whose keys are kept; above that they are deleted after an hour
commit_look_ms: Final = 100  # between two checks whether another server has published it
commit_kept_ms: Final = 7 * DAY_MS
commit_txns_max: Final = 10_000
publish_ahead_chunks: Final = 8  # read at once
epoch_max: Final = 2**53 - 1
journal_seq_max: Final = 2**53 - 1  # the number of an event, as far as JSON has exact numbers
epoch_jobs_max: Final = 500_000
epoch_rows_of_split: Final = 20_000  # target for one split
epoch_slice_jobs: Final = 1_000  # claimed, renewed or settled at once
slice_stray_ms: Final = MINUTE_MS  # after which jobs claimed for an epoch should be recorded as a slice
slices_max: Final = 100_000  # read in one round
epochs_max: Final = 100  # of one group
groups_max: Final = 1_000
group_queues_max: Final = 1_000
group_kept_ms: Final = 7 * DAY_MS  # without a request, and with no active jobs
group_idle_ms: Final = HOUR_MS  # likewise, if the number of groups is at its limit

# Limits of groups of jobs.
whole_number_max: Final = 2**53 - 1  # as far as JSON has exact numbers
limited_groups_max: Final = 10_000  # groups of one queue that are paused or limited
group_defaults_ms: Final = 3 * MINUTE_MS  # limits for all groups that a worker requested; longer than a pull waits

# Limits of live events and workers.
event_data_bytes_max: Final = MEBIBYTE  # a larger result or payload is left out of the job's events
removed_results_max: Final = 10_000  # results of jobs that are removed at their end, kept in memory for waiting clients
removed_results_bytes_max: Final = 8 * MEBIBYTE
server_started_ms: Final = MINUTE_MS  # after the start, in which new subscribers get the event of the start
websockets_max: Final = 1_000
event_streams_max: Final = 1_000
message_bytes_max: Final = MEBIBYTE  # received over a WebSocket
message_slack_bytes: Final = 262_144  # read with a message: frame headers, and bytes that the HTTP server reads ahead
message_slack_bytes_s: Final = 256  # more for each second without a message: pings are counted with the next message
messages_arriving_bytes_max: Final = 64 * MEBIBYTE  # read of incomplete messages, of all WebSockets
websocket_window_bytes: Final = 65_536  # that the system buffers of a WebSocket before they are read
message_look_ms: Final = 10  # between two checks of WebSockets, up to 50 of them; longer in proportion if there are more
strangers_max: Final = 200  # WebSockets that have not authenticated yet; further handshakes wait
strangers_address_max: Final = 50  # likewise, from one address
strangers_waiting_max: Final = 500  # handshakes that wait for a place
strangers_look_ms: Final = 200  # between two checks whether a place is free
socket_commands_max: Final = 50  # in progress on one WebSocket
reader_buffer_bytes_max: Final = MEBIBYTE
reader_buffer_messages_max: Final = 10_000
reader_stuck_ms_max: Final = 120 * SECOND_MS  # a reader that reads nothing for this long is disconnected
auth_wait_ms_max: Final = 10 * SECOND_MS
goodbye_bytes_max: Final = MEBIBYTE  # from a client that has not authenticated, discarded meanwhile
goodbye_ms_max: Final = SECOND_MS  # for data on its way to a reader when its connection is closed
unsure_ms: Final = 10 * SECOND_MS  # a possibly incomplete message is confirmed or removed after this time
half_sent_ms_max: Final = SECOND_MS  # for incomplete bodies of requests when the server stops
subscribe_names_max: Final = 1_000
replays_max: Final = 2  # pages of the journal of one shard that are read or rendered at the same time; other readers wait
replay_blocks: Final = 1_000  # of the journal that one page reads
replay_read_bytes: Final = MEBIBYTE // 2  # likewise, of all namespaces, in stored form; at least one block
replay_bytes: Final = 65_536  # of the events of one namespace on a page, in stored form; at least one event
watched_queues_max: Final = 100_000
workers_max: Final = 10_000
workers_bytes_max: Final = 64 * MEBIBYTE  # of the names of all workers and their queues
worker_queues_max: Final = 1_000

# Limits of bulk reads: snapshots, and ranges of the journal, as files.
bulk_tasks_max: Final = 64  # that wait for a bulk process; one more is refused
bulk_task_ms_max: Final = 10 * MINUTE_MS  # then its process is stopped
bulk_process_bytes: Final = 512 * MEBIBYTE  # a bulk process that used more than this ends after its task
bulk_process_tasks: Final = 1_000  # after which a bulk process ends, with any memory size
bulk_snapshots_max: Final = 64  # kept on a server
bulk_snapshots_namespace_max: Final = 16  # kept of one namespace
bulk_fetched_ms: Final = 10 * SECOND_MS  # after which a fetched snapshot may be deleted, if room is needed
bulk_snapshot_names_max: Final = 1_000  # queues that a request for a snapshot may name
bulk_part_rows_max: Final = 1_000_000
bulk_part_bytes: Final = 128 * MEBIBYTE  # after which a part ends, with any number of rows
bulk_chunk_rows: Final = 10_000  # read and written at once
bulk_chunk_bytes: Final = 16 * MEBIBYTE  # of payloads, at least one; then the chunk is written
bulk_answer_ms: Final = 30 * SECOND_MS  # a file is kept this long after its request: it is opened within that time
bulk_disk_bytes_min: Final = 256 * MEBIBYTE  # kept free on the disk of the spool: the queue may need it

# Limits of queries of the lake.
insight_rows_max: Final = 100_000  # of an answer in Arrow
insight_json_rows_max: Final = 10_000
insight_steps_max: Final = 10_000  # of a window
insight_read_rows_max: Final = 50_000_000  # of a table, for one query
insight_quantiles_max: Final = 20
insight_text_chars_max: Final = 1_000  # of a list in a query string

# Limits for servers that share a store.
clock_apart_ms: Final = 100  # maximum difference between their values of the database's clock
lead_ms: Final = 5 * SECOND_MS  # after this time without a renewal, another server becomes the leader

# Limits of Redis.
redis_connections_max: Final = 64  # of a server to one Redis; a command waits until one is free

# Limits of ready lists in Redis.
fast_rate_ms: Final = SECOND_MS  # window in which the demand for jobs is counted
fast_ahead_ms: Final = 250  # for how long the jobs on a list should last
fast_jobs_min: Final = 50  # set aside at once
fast_jobs_max: Final = 1_000  # on a list, without jobs that are pushed to it meanwhile
fast_job_bytes_max: Final = (
    65_536  # of a payload on a list; a queue with a larger one at its front is served by the database
)
fast_list_bytes_max: Final = 8 * MEBIBYTE  # of the payloads on a list
fast_bytes_max: Final = 256 * MEBIBYTE  # of the lists that a server uses, in one Redis; a namespace may have its share
fast_batch_jobs_max: Final = 64  # requested at once; above that, a transaction costs less than a list
fast_queues_max: Final = 10_000  # queues whose demand is counted
fast_lease_ms_max: Final = 10 * MINUTE_MS  # a claim with a longer lease is served by the database
fast_margin_ms: Final = 5 * SECOND_MS  # by how much the lease of a set-aside job is longer than the lease of its worker
fast_note_ms: Final = SECOND_MS  # after which the holder of a delivered job is recorded in the database
fast_idle_ms: Final = 2 * SECOND_MS  # after which the rest of a list is returned to its queue
fast_grace_ms: Final = 3 * SECOND_MS  # for all servers to report their deliveries, when lists are dropped
fast_recovery_pause_ms: Final = 10  # before the next check whether the jobs of lost lists are back
fast_rest_ms: Final = 5 * SECOND_MS  # without lists after a failure; doubled for each further failure
fast_rest_ms_max: Final = MINUTE_MS
fast_pause_ms: Final = 2  # before the next check, while another server fetches

# Limits of the batches door.
batch_leases_max: Final = 100_000  # messages of one server whose leases are renewed by requests about other messages

# Limits of the enqueue buffer.
buffer_jobs_max: Final = 100_000  # answered and not stored
buffer_bytes_max: Final = 256 * MEBIBYTE
buffer_record_bytes_max: Final = 64 * MEBIBYTE
buffer_flush_records: Final = 1_000  # stored in one transaction, up to the weight of a batch
#: Jobs of one namespace, and payloads in units of weight_bytes, that wait to be stored while several namespaces are active.
#: Above that, its next pushes wait before they are written to the log.
buffer_ahead_weight: Final = 1_000
enqueue_log_file_bytes: Final = 16 * MEBIBYTE
enqueue_log_known_ms: Final = YEAR_MS  # after its last write; a server that starts later stores its log again
enqueue_log_search_bytes: Final = 65_536  # after a damaged record, searched for a valid one

# Limits of work across shards.
#: Time between a check on other shards and the push that depends on it; a check that takes longer is repeated.
permit_ms: Final = 10 * SECOND_MS
ticket_renew_ms: Final = 30 * SECOND_MS  # an older ticket is not used for another push; so a ticket is used for at most ...
ticket_ms: Final = 2 * MINUTE_MS  # ... this long, with a large margin
tickets_kept_ms: Final = HOUR_MS  # withdrawn tickets
name_wait_ms: Final = SECOND_MS  # for another push that may reserve the same name on another shard
name_look_ms: Final = 20  # between two checks during that wait
name_tries_max: Final = 10
#: How long after another shard's request for an end it is sent again: the push with that request may take this long to be
#: visible.
relay_ms: Final = 2 * permit_ms
relay_steps_ms: Final = (50, 500, 5_000)  # between the first times it is sent
relays_batch_max: Final = 500
relays_batch_shared_max: Final = 100  # while several namespaces are active
audit_pages_max: Final = 50  # of dependencies on other shards, in one round

# Limits of moving queues between shards.
move_hold_ms: Final = 5 * SECOND_MS  # a command about a queue that is being moved waits this long, then it is refused
move_look_ms: Final = 20  # between two checks whether it has moved
move_lease_ms: Final = 10 * SECOND_MS  # by which leases are longer after a move: they could not be renewed during it
move_slice_jobs: Final = 1_000
move_slices_max: Final = 4  # in progress to the new shard at the same time
held_commands_max: Final = 50_000
moved_jobs_known_max: Final = 65_536  # jobs whose shard is remembered because their ids contain another one

# Limits of work at once, so that nothing occupies the event loop for long.
slice_ms: Final = 2  # of the events of a reader in one turn of the event loop; then other work continues
loop_share_ms: Final = 5  # of the commands of all connections of a listener in one turn of the event loop
batch_commands_max: Final = 4_096
row_changed_tries_max: Final = 20  # of a transaction that conflicts with other servers
pending_commands_max: Final = 100_000
pending_commands_namespace_max: Final = 50_000  # of them, so that no namespace blocks the others
weight_bytes: Final = 2_048  # size of payload that costs about as much as one more job
batch_weight_max: Final = 4_000  # jobs, and payloads in units of weight_bytes; at least one command
batch_weight_shared_max: Final = 500  # likewise, while several namespaces are active, or had more work than one batch takes
batch_shared_ms: Final = SECOND_MS  # for which that continues
slice_jobs_max: Final = 500
fan_out_turn_messages: Final = 2_000  # of events, offered to their readers in one turn of the event loop
fan_out_shared_messages: Final = 200  # likewise, while several namespaces are active, at once ...
fan_out_waited_messages: Final = 500  # ... and after a wait for small requests of other namespaces
fan_out_behind_events: Final = 500  # of a namespace that wait, likewise: above, its requests wait until half are offered
fan_out_events_max: Final = 10_000  # of a namespace that wait to be offered; the oldest above that are offered at once
resp_shared_commands: Final = 64  # as resp_turn_commands, while several namespaces are active
queues_at_once: Final = 500  # of a list of queues, made in one step; more make a request a large one
sorted_at_once: Final = 10_000  # names of queues
view_slice_jobs: Final = 100  # of a listing, shown in one turn of the event loop
share_turn_requests: Final = 16  # of one namespace that start in one turn of the event loop, while several are active
share_turn_strangers: Final = 4  # likewise, of all clients together that have not authenticated
share_large_requests: Final = 1  # of one namespace in progress, likewise: bodies above small_body_bytes, and listings
share_slice_ms: Final = 2  # of large requests in one turn of the event loop, likewise
share_wait_ms: Final = 4  # for which a slice of a large request waits for small requests of other namespaces
share_background_places: Final = 16  # sends of events of one namespace in one turn of the event loop, likewise
socket_events_turn: Final = 4  # events that are sent over one WebSocket in such a turn, each in its own message
tcp_events_turn: Final = 16  # the same, over TCP
share_small_ms: Final = 20  # after which a small request is no longer waited for: it may be a pull that waits for a job
share_looks_max: Final = 64  # namespaces that are searched, from the newest, for a small request of another one
share_body_chunk_requests: Final = 4  # number of requests that a chunk of a large body counts as
reads_waiting_max: Final = 1_000  # listings and counts of one namespace that wait for a reader of a store
read_wait_ms_max: Final = 30 * SECOND_MS  # for which one of them waits; then it is refused
count_rest_rows: Final = 2_000  # of counts by priority, read by a thread between two pauses, and encoded in one step
share_read_rows: Final = 50  # of a listing, read by a thread between two pauses, while several namespaces are active
share_read_pause_ms: Final = 0.2  # in which the event loop gets the interpreter's lock
share_ms: Final = 10 * SECOND_MS  # after its last request, or up to twice that, a namespace counts as active
share_namespaces_max: Final = 10_000  # that are counted as active
select_jobs_max: Final = 20_000
sweep_jobs_max: Final = 1_000
sweep_crons_max: Final = 200
flow_needs_batch_max: Final = 1_000  # dependencies that the ends of jobs settle in one batch
flow_needs_batch_shared_max: Final = 200  # likewise, while several namespaces are active
flow_lookups_batch_max: Final = 1_000  # of ancestors, and of children to cancel, in one batch; at least one command
flow_levels_batch_max: Final = 100  # of a chain of such ends
flow_bytes_batch_max: Final = 8 * MEBIBYTE  # of results and errors that are copied to them
flow_bytes_shared_max: Final = MEBIBYTE  # likewise, while several namespaces are active
result_copies_bytes_max: Final = (
    64 * MEBIBYTE
)  # of one result to the jobs that need it, or of results to the jobs of one push
result_uncounted_bytes: Final = 4_096  # an acknowledgement with a result up to this size counts no copies
claim_batch_jobs_max: Final = 2_000
claim_batch_bytes_max: Final = 32 * MEBIBYTE
groups_reopened_max: Final = 500  # groups whose rate limit has room again, checked by one claim
waiters_max: Final = 50_000
held_jobs_waited_for_max: Final = 200_000  # jobs whose workers are notified if they lose the lease
