"""Every limit of Penstock, with its unit last in its name. Nothing grows without one of these.

What a user may set has a default in ``config/settings.py``; what is here is the same everywhere.
"""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
YEAR_MS: Final = 365 * DAY_MS
MEBIBYTE: Final = 1024 * 1024

# What a job may be.
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
queue_messages_max: Final = 10**12  #: as a limit of a queue: more is no limit
tags_max: Final = 100
needs_max: Final = 1_000
flow_depth_max: Final = 1_000
name_chars_max: Final = 256
namespace_chars_max: Final = 128
key_chars_max: Final = 1_024
idempotency_key_chars_max: Final = 512
error_chars_max: Final = 65_536
stack_lines: Final = 10  # kept of a stack unless the job says otherwise
stack_lines_max: Final = 1_000
stack_chars_max: Final = 65_536  # of all lines together
timestamp_ms_max: Final = 10**13 - 1  # the year 2286
log_message_chars_max: Final = 65_536
progress_message_chars_max: Final = 4_096
flow_error_chars_max: Final = 1_024  # of an error that is copied to the jobs that needed the one that failed

# What a push of messages may be.
push_retries_max: Final = 20

# What a cron may be.
schedule_chars_max: Final = 256
timezone_chars_max: Final = 64
repeat_every_ms_max: Final = YEAR_MS
repeats_max: Final = 1_000_000_000
crons_max: Final = 10_000
#: A tick that comes later than this, because the server was busy or the clock was set forward, is missed.
cron_late_ms_max: Final = MINUTE_MS
#: After a tick that was skipped because the job before it is still there, ticks within this time are passed over unseen.
cron_skip_ms: Final = 100

# What a request may be.
path_chars_max: Final = 8_192  # of a path without its query string, after percent-decoding
path_segments_max: Final = key_chars_max + 16  # an id may be made of slashes alone
query_chars_max: Final = 16_384  # as it is sent
query_fields_max: Final = 256
header_list_bytes_max: Final = 131_072  # of a request over HTTP/2, unpacked
forwarded_hops_max: Final = 32  # addresses of X-Forwarded-For that are looked at, from the last one
body_bytes_max: Final = payload_bytes_max + 65_536  # room for the envelope around the largest payload
small_body_bytes: Final = 65_536
bodies_bytes_max: Final = 1024 * MEBIBYTE  # of all large bodies under way, as far as they have arrived
bodies_share_bytes_max: Final = bodies_bytes_max // 2  # the same, of one identity or address
body_idle_ms_max: Final = 30 * SECOND_MS  # a large body of which nothing more arrives for this long is given up
drain_bytes_max: Final = 16 * MEBIBYTE  # read and dropped of a body that was answered with an error
drain_ms_max: Final = 5_000  # the same, in time
object_fields_max: Final = 10_000  # of one object in a large body, unless it is a payload
loop_hold_ms: Final = 50  # for which one request may keep all others waiting
bulk_jobs_max: Final = 10_000
names_told_max: Final = 20  # ids of jobs that the text of an error lists
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

accepted_hosts_max: Final = (
    64  # names of this server, as requests spell them, that are remembered; as many others are logged
)
shown_host_chars_max: Final = 100

# What a connection of the jobs door's TCP protocol, or its WebSocket, may be.
frame_bytes_max: Final = 64 * MEBIBYTE
frames_bytes_max: Final = 1024 * MEBIBYTE  # of all frames that arrive or are being worked on, beyond the next
frames_share_bytes_max: Final = frames_bytes_max // 2  # the same, from one address
small_frame_bytes: Final = 32_768  # of a frame that is looked at without a pause
connection_frames_bytes: Final = 65_536  # that every connection may keep, whatever the others do
frame_idle_ms_max: Final = MINUTE_MS  # a frame of which nothing more arrives for this long is given up
tcp_connections_max: Final = 10_000
connection_commands_max: Final = 50  # under way at the same time
connection_jobs_max: Final = 10_000  # pulled jobs that go back when the connection ends
client_listings_max: Final = 2  # listings of jobs that are made for one client at a time
connection_write_bytes_max: Final = 64 * MEBIBYTE  # replies that a client has not read
command_name_chars_max: Final = 64
command_values_max: Final = 2_000_000  # because all of them are looked at while everybody else waits
stranger_frame_bytes_max: Final = connection_frames_bytes  # from a client that has not shown its token yet
keepalive_s: Final = 60  # silence after which the system asks whether the other side is still there
gone_s: Final = 120  # without a sign of the other side, after which the system gives it up
links_looked_at_max: Final = 10_000  # sockets, when one is looked for

listener_strangers_max: Final = 1_000  # connections over TCP, likewise over RESP, whose clients have not shown a token yet

# What a connection of an HTTP listener may be.
http_connections_max: Final = 20_000  # of all listeners together, if the process may have enough descriptors
descriptors_wanted: Final = 65_536  # the process raises its limit to this, as far as the system lets it
descriptors_reserved: Final = 256  # for stores, name lookups, webhooks and files, whatever connections there are
descriptors_scanned_max: Final = 200_000
http2_streams_max: Final = 100  # requests under way on one connection
http1_buffer_bytes_max: Final = 131_072  # of a request's head, and of answers that one connection has not taken
socket_unsent_bytes: Final = 131_072  # that the system takes of an answer beyond what is on its way to the client
connection_scan_ms: Final = SECOND_MS  # between two scans of all connections
first_bytes: Final = 24  # a connection has to send within first_bytes_ms_max: as many as announce HTTP/2
first_bytes_ms_max: Final = 10 * SECOND_MS
crowded_quiet_ms: Final = SECOND_MS  # a connection without a request is closed after this while there are too many
connection_holders: Final = 8  # a holder with at most this part of all connections loses none of them while they are in use
answer_counted_bytes: Final = 4_096  # an answer above this size counts as unread until the client has taken it
answer_small_bytes: Final = 65_536  # an answer up to this size never waits for other connections
answers_connection_bytes_max: Final = 8 * MEBIBYTE  # unread, beyond one answer
answers_client_bytes_max: Final = 32 * MEBIBYTE  # likewise, by one identity, or one address if there is none
answers_bytes_max: Final = 96 * MEBIBYTE  # likewise, by all clients; and of answers that wait for being sent
answers_waiting_max: Final = 1_000  # answers that wait for being sent, of all clients; one client has half of those left
answer_look_ms: Final = 100  # between two looks how much clients have taken
answer_stall_ms_max: Final = 30 * SECOND_MS  # a client that takes nothing of its answers for this long is cut off
answer_stall_crowded_ms_max: Final = 5 * SECOND_MS  # likewise, while half of answers_bytes_max is unread; and then ...
answer_crowded_parts: Final = 32  # ... one that takes less than this part of what is unread in that time

# What a connection of the Redis protocol may be.
resp_connections_max: Final = 10_000
resp_args_max: Final = 1_024  # words of a command, with its name
resp_line_bytes_max: Final = 65_536  # of a command that is typed as a line
resp_turn_commands: Final = 1_000  # taken from a connection at once; and, at most, after its client is lost
resp_unsent_bytes: Final = 65_536  # of replies, after which they are sent before the next command is done
resp_ahead_bytes: Final = 65_536  # sent ahead while a subscriber waits for a message
resp_client_name_chars_max: Final = 256
stranger_args_max: Final = 10  # from a client that has not shown its token yet
stranger_bulk_bytes_max: Final = 16_384

# What a subscriber of a topic may do.
subscribers_max: Final = 20_000
subscription_wait_ms: Final = HOUR_MS  # for a message; then it lines up again
stream_command_bytes_max: Final = 1_024  # of one command in a stream
stream_ahead_bytes_max: Final = 65_536  # of commands that were sent ahead over HTTP/1.1
stream_look_bytes: Final = 256 * 1024  # sent to a reader before it is looked whether it takes them
stream_unread_bytes_max: Final = MEBIBYTE  # that a reader has not taken; then it gets nothing more
streams_unread_bytes_max: Final = 128 * MEBIBYTE  # by all readers together; then those who have something unread wait
stream_look_ms: Final = 20  # between two looks whether it has

# What the server keeps.
queues_max: Final = 1_000_000
logs_per_job_max: Final = 100
keep_logs_max: Final = 1_000_000  # may be asked for; logs_per_job_max is what there is
counted_topics_max: Final = 1_000  # beyond these, the batches door counts under one name
rate_limit_clients_max: Final = 100_000
rate_limit_marks_max: Final = 2_000_000  # moments of requests, of all clients together; each takes 16 bytes
rate_limit_exact_max: Final = 10_000  # up to this limit each request is counted to the millisecond
quota_namespaces_max: Final = 10_000  # whose enqueues are counted
webhooks_max: Final = 200  # each has a delivery of its own under way, so this bounds those too

subscriptions_max: Final = 200  # on a shard, with push_deliveries_max deliveries under way each
queue_subscriptions_max: Final = 20  # they are settings of their queue

# What a webhook may be, and how it is delivered.
webhook_url_chars_max: Final = 2_048
webhook_events_max: Final = 18  # six events, each in three spellings
webhook_attempts: Final = 4  # the first, and three more
webhook_pause_ms: Final = 1_000  # before the second attempt, doubled for each further one
webhook_attempt_ms_max: Final = 10 * SECOND_MS
webhook_read_bytes: Final = (
    16_384  # of events of its namespace that a webhook reads at once, as they are stored; at least one
)
webhook_reply_line_bytes_max: Final = 16_384
webhook_reply_lines_max: Final = 256
webhook_addresses_max: Final = 4  # addresses of one name that are tried in one attempt
webhook_lookups_max: Final = 32  # names looked up at the same time; half of them for a namespace that is alone

# What a push consumer of the messages door may do.
push_sockets_max: Final = 1_000
push_window: Final = 10  # messages that a WebSocket holds, unless it asks for another number
push_window_max: Final = 1_000
push_claim_messages: Final = 32  # asked for at once, so that a reader that takes none of them holds little memory
push_deliveries_max: Final = 5  # under way to one webhook
push_margin_ms: Final = 5 * SECOND_MS  # by which a message outlasts the attempt to deliver it
push_rest_ms: Final = SECOND_MS  # before asking again, when messages cannot be had
push_secret_chars_max: Final = 1_024

# Who may come in.
token_chars_max: Final = 8_192  # a JSON Web Token; longer ones are not looked at
known_tokens_max: Final = 10_000  # tokens whose signature was good, so that it need not be checked for each request
token_grants_max: Final = 1_000  # scopes, or namespaces, in one token
token_chars_min: Final = 16  # of auth_tokens and api_key; shorter ones are warned about at the start
secret_bytes_min: Final = 32  # what HS256 asks for; shorter ones can be guessed
rsa_bits_min: Final = 2_048
jwks_bytes_max: Final = 262_144
jwks_keys_max: Final = 64
api_keys_max: Final = 10_000  # kept, those that are over too; beyond that they make room
api_key_namespaces_max: Final = 100
api_key_label_chars_max: Final = 256
api_key_ms_max: Final = 100 * YEAR_MS  # how long a key that ends is good
jwks_age_ms: Final = 10 * MINUTE_MS  # after which fetched keys are fetched again, while tokens come
jwks_pause_ms: Final = 30 * SECOND_MS  # between two fetches, however many unknown keys tokens name
jwks_fetch_ms_max: Final = 10 * SECOND_MS

# What goes on in bulk.
stage_bytes_max: Final = 64 * MEBIBYTE  # of one part, as it comes in
stage_part_max: Final = 2**31 - 1
stage_unpacked_bytes_max: Final = 256 * MEBIBYTE  # of one part, with compressed buffers unpacked
stage_rows_max: Final = 2_000_000  # of one part
stage_batches_max: Final = 10_000  # record batches in one part
stage_schema_bytes_max: Final = MEBIBYTE  # of the description of the columns
stage_queues_max: Final = 10_000  # that one part may name
stages_max: Final = 10_000  # parts that are not committed
staged_bytes_max: Final = 16 * 1024 * MEBIBYTE  # of all of them
stage_slice_bytes: Final = 4 * MEBIBYTE  # written at once
stage_ms: Final = HOUR_MS  # after which what was not committed is dropped
chunk_bytes: Final = MEBIBYTE  # of rows that are staged together, unless one alone is larger
commits_max: Final = 1_000_000  # whose keys are known; beyond that they are forgotten after an hour
commit_look_ms: Final = 100  # between two looks whether another server has published it
commit_kept_ms: Final = 7 * DAY_MS
commit_txns_max: Final = 10_000
publish_ahead_chunks: Final = 8  # read at once
epoch_max: Final = 2**53 - 1
journal_seq_max: Final = 2**53 - 1  # the number of an event, as far as JSON can tell numbers apart
epoch_jobs_max: Final = 500_000
epoch_rows_of_split: Final = 20_000  # that one split should have
epoch_slice_jobs: Final = 1_000  # claimed, renewed or settled at once
slice_stray_ms: Final = MINUTE_MS  # after which what was claimed for an epoch should be noted as one
slices_max: Final = 100_000  # looked at in one round
epochs_max: Final = 100  # of one group
groups_max: Final = 1_000
group_queues_max: Final = 1_000
group_kept_ms: Final = 7 * DAY_MS  # without a sign of life, and nothing in flight
group_idle_ms: Final = HOUR_MS  # likewise, if there are as many groups as there may be

# Groups of jobs.
whole_number_max: Final = 2**53 - 1  # as far as JSON can tell numbers apart
limited_groups_max: Final = 10_000  # groups of one queue that are paused or limited
group_defaults_ms: Final = 3 * MINUTE_MS  # limits for all groups that a worker asked for; longer than a pull waits

# Live events and workers.
event_data_bytes_max: Final = MEBIBYTE  # a result or payload that is larger is left out of what is told of its job
removed_results_max: Final = 10_000  # results of jobs that are removed at their end, kept in memory for those who hear of it
removed_results_bytes_max: Final = 8 * MEBIBYTE
server_started_ms: Final = MINUTE_MS  # for this long, whoever comes is told that the server has started
websockets_max: Final = 1_000
event_streams_max: Final = 1_000
message_bytes_max: Final = MEBIBYTE  # that comes in over a WebSocket
message_slack_bytes: Final = 262_144  # read with a message: frame headers, and what the HTTP server reads ahead
message_slack_bytes_s: Final = 256  # more for each second without a message: pings are counted with the next message
messages_arriving_bytes_max: Final = 64 * MEBIBYTE  # read of messages that are not complete, of all WebSockets
websocket_window_bytes: Final = 65_536  # that the system takes of a WebSocket before they are read
message_look_ms: Final = 10  # between two looks at WebSockets, up to 50 of them; longer in proportion if there are more
strangers_max: Final = 200  # WebSockets that have not shown a token yet; further handshakes wait
strangers_address_max: Final = 50  # likewise, from one address
strangers_waiting_max: Final = 500  # handshakes that wait for that
strangers_look_ms: Final = 200  # between two looks whether there is room for one of them
socket_commands_max: Final = 50  # under way on one WebSocket
reader_buffer_bytes_max: Final = MEBIBYTE
reader_buffer_messages_max: Final = 10_000
reader_stuck_ms_max: Final = 120 * SECOND_MS  # a reader that takes nothing for this long is gone
auth_wait_ms_max: Final = 10 * SECOND_MS
goodbye_ms_max: Final = SECOND_MS  # for what is on its way to a reader when its connection is ended
unsure_ms: Final = 10 * SECOND_MS  # a message that may have been cut off waits so long to be confirmed or removed
half_sent_ms_max: Final = SECOND_MS  # for bodies of requests that have not arrived yet when the server stops
subscribe_names_max: Final = 1_000
replays_max: Final = 2  # pages of the journal of one shard that are being read or rendered; other readers wait in line
replay_blocks: Final = 1_000  # of the journal that one page reads
replay_read_bytes: Final = MEBIBYTE // 2  # likewise, of all namespaces, as they are stored; at least one block
replay_bytes: Final = 65_536  # of the events of one namespace on a page, as they are stored; at least one event
watched_queues_max: Final = 100_000
workers_max: Final = 10_000
worker_queues_max: Final = 1_000

# Bulk reads: snapshots, and stretches of the journal, as files.
bulk_tasks_max: Final = 64  # that wait for a bulk process; one more is refused
bulk_task_ms_max: Final = 10 * MINUTE_MS  # then its process is ended
bulk_process_bytes: Final = 512 * MEBIBYTE  # a bulk process that took more than this ends after its task
bulk_process_tasks: Final = 1_000  # after which a bulk process ends, whatever its size
bulk_frame_bytes_max: Final = 16 * MEBIBYTE  # of what a bulk process is told, or answers
bulk_snapshots_max: Final = 64  # kept on a server
bulk_snapshots_namespace_max: Final = 16  # kept of one namespace
bulk_fetched_ms: Final = 10 * SECOND_MS  # after which a snapshot that was fetched may go, if room is needed
bulk_snapshot_names_max: Final = 1_000  # queues that a snapshot may be asked for by name
bulk_part_rows_max: Final = 1_000_000
bulk_part_bytes: Final = 128 * MEBIBYTE  # after which a part ends, whatever rows it has
bulk_chunk_rows: Final = 10_000  # read and written at once
bulk_chunk_bytes: Final = 16 * MEBIBYTE  # of payloads, at least one; then the chunk is written
bulk_answer_ms: Final = 30 * SECOND_MS  # for which a file outlives the request it answers: it is opened within that time
bulk_disk_bytes_min: Final = 256 * MEBIBYTE  # left free on the disk of the spool: the queue may need it

# Questions to the lake.
insight_rows_max: Final = 100_000  # of an answer in Arrow
insight_json_rows_max: Final = 10_000
insight_steps_max: Final = 10_000  # of a window
insight_read_rows_max: Final = 50_000_000  # of a table, for one question
insight_quantiles_max: Final = 20
insight_text_chars_max: Final = 1_000  # of a list in a query string

# Servers that share a store.
clock_apart_ms: Final = 100  # how far their ideas of the database's clock may be apart
lead_ms: Final = 5 * SECOND_MS  # without a sign of life, the lead goes to another server

# The fast path: ready lists in Redis.
fast_rate_ms: Final = SECOND_MS  # over which it is counted how much is wanted
fast_ahead_ms: Final = 250  # for how long what is on a list should last
fast_jobs_min: Final = 50  # set aside at once
fast_jobs_max: Final = 1_000  # on a list, but for what comes in between
fast_batch_jobs_max: Final = 64  # wanted at once; a transaction that hands out more costs less than a list
fast_queues_max: Final = 10_000  # that are looked at for being hot
fast_lease_ms_max: Final = 10 * MINUTE_MS  # a claim that asks for longer is served by the database
fast_margin_ms: Final = 5 * SECOND_MS  # by how much what is set aside outlasts the lease its worker gets
fast_note_ms: Final = SECOND_MS  # after which the database is told who has a job that was handed out
fast_idle_ms: Final = 2 * SECOND_MS  # after which what is left on a list is taken back
fast_grace_ms: Final = 3 * SECOND_MS  # for every server to say what it has handed out, when lists are given up
fast_recovery_pause_ms: Final = 10  # before looking again whether what was on lost lists is back
fast_rest_ms: Final = 5 * SECOND_MS  # without lists after they failed; doubled for each further time
fast_rest_ms_max: Final = MINUTE_MS
fast_pause_ms: Final = 2  # before looking again, while another server fetches

# The batches door.
batch_leases_max: Final = 100_000  # messages of one server whose leases are renewed by a word about others

# The enqueue buffer.
buffer_jobs_max: Final = 100_000  # promised and not stored
buffer_bytes_max: Final = 256 * MEBIBYTE
buffer_record_bytes_max: Final = 64 * MEBIBYTE
buffer_flush_bytes: Final = 8 * MEBIBYTE  # stored at once
buffer_flush_records: Final = 1_000
wal_file_bytes: Final = 16 * MEBIBYTE
wal_known_ms: Final = YEAR_MS  # after it was last written to; a server that comes back later stores its log anew
wal_search_bytes: Final = 65_536  # behind a damaged record, for another one

# What spans shards.
#: Between finding something out on other shards and the push that goes by it; what takes longer is found out again.
permit_ms: Final = 10 * SECOND_MS
ticket_renew_ms: Final = 30 * SECOND_MS  # an older ticket is not used for another push; so none is used for longer than ...
ticket_ms: Final = 2 * MINUTE_MS  # ... this, with much to spare
tickets_kept_ms: Final = HOUR_MS  # that were withdrawn
name_wait_ms: Final = SECOND_MS  # for another push that may be about to give the same name on another shard
name_look_ms: Final = 20  # between two looks while waiting for that
name_tries_max: Final = 10
#: How long after another shard has asked for an end it is told again: a push that asked may take that long to be seen.
relay_ms: Final = 2 * permit_ms
relay_steps_ms: Final = (50, 500, 5_000)  # between the first times it is told
relays_batch_max: Final = 500
audit_pages_max: Final = 50  # of dependencies on other shards, in one round

# Moving queues between shards.
move_hold_ms: Final = 5 * SECOND_MS  # a command about a queue that is being moved waits so long, then it is refused
move_look_ms: Final = 20  # between two looks whether it has moved
move_lease_ms: Final = 10 * SECOND_MS  # by which leases are longer after a move: nobody could renew them meanwhile
move_slice_jobs: Final = 1_000
move_slices_max: Final = 4  # under way to the new shard at the same time
held_commands_max: Final = 50_000
moved_jobs_known_max: Final = 65_536  # jobs whose shard is remembered because it is not the one their ids name

# How much is done at once, so that nothing holds the event loop for long.
slice_ms: Final = 2  # of the events of a reader in one turn of the event loop; then others go on
loop_share_ms: Final = 5  # of the commands of all connections of a listener in one turn of the event loop
batch_commands_max: Final = 4_096
row_changed_tries_max: Final = 20  # of a transaction that other servers got in the way of
pending_commands_max: Final = 100_000
pending_commands_namespace_max: Final = 50_000  # of them, so that no namespace keeps the others out
weight_bytes: Final = 2_048  # of payload that cost about as much as one more job
batch_weight_max: Final = 4_000  # jobs, and payloads in units of weight_bytes; at least one command
batch_weight_shared_max: Final = 500  # likewise, while several namespaces are active, or had more to do than one batch takes
batch_shared_ms: Final = SECOND_MS  # for which that stays so
slice_jobs_max: Final = 500
fan_out_turn_messages: Final = 2_000  # of events, offered to their readers in one turn of the event loop
fan_out_shared_messages: Final = 200  # likewise, while several namespaces are active, at once ...
fan_out_waited_messages: Final = 500  # ... and after small requests of other namespaces have been waited for
fan_out_behind_events: Final = 500  # of a namespace that wait, likewise: above, its requests wait until half are offered
fan_out_events_max: Final = 10_000  # of a namespace that wait to be offered; the oldest above that are offered at once
resp_shared_commands: Final = 64  # as resp_turn_commands, while several namespaces are active
view_slice_jobs: Final = 100  # of a listing, shown in one turn of the event loop
share_turn_requests: Final = 16  # of one namespace that begin in one turn of the event loop, while several are active
share_large_requests: Final = 1  # of one namespace in progress, likewise: bodies above small_body_bytes, and listings
share_slice_ms: Final = 2  # of large requests in one turn of the event loop, likewise
share_wait_ms: Final = 4  # for which a slice of a large request waits for small requests of other namespaces in progress
share_background_places: Final = 16  # sends of events of one namespace in one turn of the event loop, likewise
socket_events_turn: Final = 4  # events that are sent over one WebSocket in such a turn, each for itself
tcp_events_turn: Final = 16  # the same, over TCP
share_small_ms: Final = 20  # after which a small request is no longer waited for: it may be one that waits for a job
share_looks_max: Final = 64  # namespaces that are looked at, from the newest, to find a small request of another one
share_body_chunk_requests: Final = 4  # as many requests a chunk of a large body stands for
share_read_rows: Final = 50  # of a listing, read by a thread between two pauses, while several namespaces are active
share_read_pause_ms: Final = 0.2  # which give the event loop the interpreter's lock
share_ms: Final = 10 * SECOND_MS  # after its last request, or up to twice that, a namespace counts as active
share_namespaces_max: Final = 10_000  # that are counted as active
select_jobs_max: Final = 20_000
sweep_jobs_max: Final = 1_000
sweep_crons_max: Final = 200
flow_needs_batch_max: Final = 1_000  # dependencies that the ends of jobs settle in one batch
flow_levels_batch_max: Final = 100  # of a chain of such ends
flow_bytes_batch_max: Final = 8 * MEBIBYTE  # of results and errors that are copied to them
claim_batch_jobs_max: Final = 2_000
claim_batch_bytes_max: Final = 32 * MEBIBYTE
groups_reopened_max: Final = 500  # groups whose rate limit lets jobs through again, looked at by one claim
waiters_max: Final = 50_000
held_jobs_waited_for_max: Final = 200_000  # jobs of which workers want to be told that they lost them
