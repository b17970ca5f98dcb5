"""The tables, their version, and the upgrade of an older file.

A job has two parts: its head in ``jobs`` is narrow and rewritten at every transition; its payload in ``payloads`` is written
once and only read when the job is delivered. So a transition costs the same for a payload of ten bytes and of ten megabytes.

The indexes are partial: a job is only in those that its current state needs, and a plain push touches only one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import apsw

#: "PNST": marks a file of Penstock, so that another program's database is never used as a store.
APPLICATION_ID: Final = 0x504E5354

_VERSION_1 = """
create table namespaces (
  number      integer primary key,
  name        text not null unique
);
create table queues (
  number      integer primary key,
  namespace   integer not null references namespaces,
  name        text not null,
  created_at  integer,
  settings    blob not null,
  unique (namespace, name)
);

create table jobs (
  id           integer primary key,
  namespace    integer not null,
  queue        integer not null,
  created_at   integer not null,
  max_attempts integer not null,
  backoff      integer not null,
  timeout      integer,
  group_id     text,
  unique_key   text,
  custom_id    text,
  expires_at   integer,
  flags        integer not null,
  state        integer not null,
  priority     integer not null,
  position     integer not null,
  run_at       integer not null,
  attempts     integer not null,
  stalls       integer not null,
  token        integer not null,
  lease_ms     integer not null,
  lease_until  integer,
  deadline     integer,
  started_at   integer,
  finished_at  integer,
  progress     integer not null,
  size         integer not null,
  details      blob,
  blocked      integer not null,  -- 1: waits behind its group; derived, see job_groups.py
  checksum     integer not null   -- of all columns above but blocked, see rows.py
);
-- The numbers are State: 0 waiting, 1 delayed, 2 active, 3 completed, 4 dead.
create index jobs_ready    on jobs (queue, blocked, priority desc, position) where state = 0;
create index jobs_delayed  on jobs (queue, run_at)                           where state = 1;
create index jobs_due      on jobs (run_at)                                  where state = 1;
create index jobs_leased   on jobs (lease_until)                             where state = 2;
create index jobs_finished on jobs (queue, state, finished_at)               where state >= 3;
create index jobs_expiring on jobs (expires_at)                              where expires_at is not null and state <= 1;
create index jobs_grouped  on jobs (queue, group_id, blocked, priority desc, position)
                                                                             where group_id is not null and state = 0;
create index jobs_group_active on jobs (queue, group_id)                     where group_id is not null and state = 2;
create unique index jobs_unique on jobs (queue, unique_key)                  where unique_key is not null and state <= 2;
create unique index jobs_custom on jobs (namespace, custom_id)               where custom_id is not null;

create table payloads (
  id           integer primary key,
  checksum     integer not null,
  options      blob,
  data         blob not null
);
create table results (
  id           integer primary key,
  data         blob not null
);
create table logs (
  job          integer not null,
  line         integer not null,
  at           integer not null,
  level        text not null,
  message      text not null,
  primary key (job, line)
) without rowid;

create table journal (
  seq          integer primary key,  -- number of the block's first event
  count        integer not null,     -- events in the block
  at           integer not null,     -- wall clock of the commit, ms
  id_mark      integer not null,     -- highest id handed out by then
  total        integer not null,     -- bytes of all blocks ever written, this one included
  body         blob not null
);
create table quarantine (
  id           integer primary key,
  at           integer not null,
  reason       text not null,
  head         blob not null,        -- the damaged row as it was found, MessagePack
  options      blob,
  data         blob
);
"""

#: Flows, crons and webhooks.
_VERSION_2 = """
create table dependencies (
  job          integer not null,     -- waits for
  needs        integer not null,     -- this one
  state        integer not null,     -- core.dependencies.Need: 0 and 1 keep it waiting
  name         text not null,        -- the id of the needed job, as users see it
  result       blob,                 -- what its worker answered
  error        text,                 -- why it failed
  primary key (job, needs)
) without rowid;
create index dependencies_needs on dependencies (needs) where state <= 1;

-- 5 is waiting-children: such a job is alive, so it holds its unique key and its time-to-live runs.
drop index jobs_expiring;
drop index jobs_unique;
create index jobs_expiring on jobs (expires_at) where expires_at is not null and state in (0, 1, 5);
create unique index jobs_unique on jobs (queue, unique_key) where unique_key is not null and state in (0, 1, 2, 5);

create table crons (
  number       integer primary key,
  namespace    integer not null references namespaces,
  name         text not null,
  next_run     integer not null,     -- the next tick, wall clock, ms
  executions   integer not null,
  plan         blob not null,        -- see core.cron.CronPlan
  unique (namespace, name)
);
create index crons_due on crons (next_run);
create table cron_data (
  number       integer primary key,  -- of the cron
  data         blob not null         -- what its jobs carry
);
create table webhooks (
  id             integer primary key,
  namespace      integer not null references namespaces,
  url            text not null,
  events         text not null,      -- names, separated by commas
  queue          text,               -- null: all queues of the namespace
  secret         text,
  created_at     integer not null,
  cursor         integer not null,   -- number of the first event of the journal it has not dealt with
  enabled        integer not null,
  successes      integer not null,
  failures       integer not null,
  last_triggered integer
);
"""

# Flows in slices.
_VERSION_3 = """
create table ends (
  serial       integer primary key,  -- the order in which they are delivered
  job          integer not null,     -- has ended, and is needed by others
  state        integer not null,     -- core.dependencies.Need: where the dependencies on it stand now
  buries       integer not null,
  frees        integer not null,
  inherited    integer not null,
  error        text,
  result       blob,
  after        integer not null      -- id of the last job to which it was delivered
);
create index ends_job on ends (job);

-- Without a rowid, SQLite reads all of a row, with its result of megabytes, each time it compares the row's key.
create table dependencies_3 (
  job          integer not null,     -- waits for
  needs        integer not null,     -- this one
  state        integer not null,     -- core.dependencies.Need: 0 and 1 keep it waiting
  name         text not null,        -- the id of the needed job, as users see it
  result       blob,                 -- what its worker answered
  error        text,                 -- why it failed
  primary key (job, needs)
);
insert into dependencies_3 select job, needs, state, name, result, error from dependencies;
drop table dependencies;
alter table dependencies_3 rename to dependencies;
create index dependencies_needs on dependencies (needs, job) where state <= 1;
create index dependencies_failed on dependencies (name) where state = 1;
"""

# Shards.
_VERSION_4 = """
create table layout (
  one          integer primary key check (one = 1),
  shard        integer not null,
  shards       integer not null
);
insert into layout select 1, 0, 1 where exists (select 1 from queues);  -- until now there was only one
"""

# Names and flows across shards.
_ACROSS_SHARDS = """
create table reservations (
  namespace    text not null,
  name         text not null,
  shard        integer not null,     -- where a job of that name may be
  ticket       integer not null,
  at           integer not null,     -- wall clock, ms
  primary key (namespace, name)
) without rowid;
create table withdrawn (
  ticket       integer primary key,  -- no push may use it any more
  at           integer not null
);
create index withdrawn_at on withdrawn (at);
create table relays (
  needed       integer not null,     -- when this job ends,
  shard        integer not null,     -- the shard to which the end is sent
  asked_at     integer not null,     -- wall clock, ms
  next_at      integer,              -- when to send it; null as long as the job has not ended
  told         integer not null,     -- how often it was sent
  spared       integer not null,     -- a job that does not need it any more, or 0
  serial       integer not null,     -- of the end, and the rest of it, see ends
  state        integer not null,
  buries       integer not null,
  frees        integer not null,
  inherited    integer not null,
  error        text,
  result       blob,
  primary key (needed, shard)
);
create index relays_due on relays (shard, next_at) where next_at is not null;
"""

# Rebalancing: queues that move from one shard to another.
_REBALANCING = """
alter table layout add column epoch integer not null default 0;     -- how many rebalances were finished
alter table layout add column target integer;                       -- shards there will be after the one under way
alter table queues add column standing integer not null default 0;  -- core.queue.MoveStep
alter table queues add column peer integer not null default 0;      -- the shard at the other end of its way
alter table queues add column attempt integer not null default 0;   -- the number of the attempt to move it
"""

# API keys, which are the same for all shards: the first shard has the valid ones.
_API_KEYS = """
create table api_keys (
  id           text primary key,
  digest       blob not null,        -- SHA-256 of the whole key
  namespaces   text not null,        -- with commas
  roles        text not null,        -- with commas
  label        text not null,
  created_at   integer not null,     -- wall clock, ms, like the others
  expires_at   integer,
  revoked_at   integer
) without rowid;
"""

# Bulk work: consumer groups with their epochs, staged writes and their commits. See core/bulk_records.py.
_LEDGER = """
create table ledger (
  kind         integer not null,     -- core.bulk_records.EntryKind
  namespace    text not null,
  name         text not null,
  number       integer not null,
  at           integer not null,     -- wall clock, ms
  weight       integer not null,
  version      integer not null,
  body         blob not null,
  primary key (kind, namespace, name, number)
);
create index ledger_at on ledger (kind, at);
create table chunks (
  owner        integer not null,     -- the draft whose rows these are
  number       integer not null,
  queue        text not null,
  rows         integer not null,
  body         blob not null,
  primary key (owner, number)
);
"""

# The history of the journal, see core/history.py.
_HISTORY = """
create table history (
  one          integer primary key check (one = 1),
  identity     text not null,        -- random, made once
  epoch        integer not null      -- how often delivered events have been replaced
);
insert into history values (1, lower(hex(randomblob(16))), 0);
"""

# Whether the file is complete without its log, see sync_mark.py.
_SHUTDOWN = """
create table shutdown (
  one          integer primary key check (one = 1),
  clean        integer not null      -- 0 while a server uses the file, and after a crash
);
insert into shutdown values (1, 1);
"""

# The clock of leases: see lease_clock.py. In a file of an earlier version leases use the wall clock.
_LEASE_CLOCK = """
create table lease_clock (
  one      integer primary key check (one = 1),
  boot     text not null,        -- the start of the machine it was counted under
  ahead    integer not null,     -- ms by which the count is ahead of the time since then
  mark     integer not null      -- ms that have been counted, at least
) strict;
"""

# Groups of jobs that are paused or limited, see job_groups.py and core/group_limits.py. Moments are on the clock of leases, ms.
_GROUP_LIMITS = """
create table groups (
  queue          integer not null,
  group_id       text not null,
  paused         integer not null,
  concurrency    integer,
  rate_limit     integer,
  rate_window_ms integer not null,
  window_at      integer,              -- when the window of the rate limit began
  taken          integer not null,     -- jobs claimed in it
  held_until     integer,              -- no job is claimed before
  reopens_at     integer,              -- when time lets more jobs through; null: it does not hold any back
  primary key (queue, group_id)
) without rowid;
create index groups_reopening on groups (queue, reopens_at) where reopens_at is not null;
"""

#: Migration number n (counting from 1) brings a file from version n-1 to n. Never edit a released one; append.
MIGRATIONS: Final[tuple[str, ...]] = (
    _VERSION_1,
    _VERSION_2,
    _VERSION_3,
    _VERSION_4,
    _ACROSS_SHARDS,
    _REBALANCING,
    _API_KEYS,
    _LEDGER,
    _HISTORY,
    _SHUTDOWN,
    _LEASE_CLOCK,
    _GROUP_LIMITS,
)
SCHEMA_VERSION: Final = len(MIGRATIONS)


def migrate(db: apsw.Connection, version: int) -> None:
    """Bring a file of a version to the current one, in one transaction. See ``upgrade`` for the checks before it."""
    with db:
        for step in MIGRATIONS[version:]:
            db.execute(step)
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", SCHEMA_VERSION)
