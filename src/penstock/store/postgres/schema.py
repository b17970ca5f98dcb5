"""The tables of a PostgreSQL shard, their version, and the functions that a transaction calls.

As in the SQLite store, a job's head is narrow and rewritten at every transition, and its payload is written once. In addition,
``jobs`` is partitioned by state: unfinished jobs are in a small hot partition, finished ones are in a cold one, because an
update of ``state`` moves the row. So claims never step over history, and vacuum has little to do.

All commits of a shard call ``finish``, one after the other: it numbers the events of the journal without gaps. Because no
other transaction can commit meanwhile, it can check conditions that no lock of a single row protects: that the settings of the
queues it touched are still the ones it used, and that a queue it removes is still empty.
"""

from __future__ import annotations

from typing import Final

#: The schema of all tables: the database can be shared with other programs.
SCHEMA: Final = "penstock"
#: Classes of advisory locks.
LOCK_COMMIT: Final = 0x504E5300
LOCK_GROUP: Final = 0x504E5301
LOCK_QUEUE: Final = 0x504E5302
LOCK_MIGRATE: Final = 0x504E5303
LOCK_QUOTA: Final = 0x504E5305
LOCK_TICKETS: Final = 0x504E5304
#: The error state of ``finish`` if data that the transaction read has changed since it began: it is tried again.
CHANGED_STATE: Final = "PN001"
CHANNEL: Final = "penstock"

_VERSION_1 = f"""
create table namespaces (
  number      int generated always as identity primary key,
  name        text not null unique
);
create table queues (
  number      int generated always as identity primary key,
  namespace   int not null references namespaces,
  name        text not null,
  created_at  bigint,
  settings    bytea not null,
  removed     boolean not null default false,
  version     bigint not null,           -- of the catalog, when this row was last changed
  unique (namespace, name)
);
create index queues_version on queues (version);
-- One row, written when the database is first used: which of how many shards it is.
create table layout (
  one         boolean primary key default true check (one),
  shard       int not null,
  shards      int not null
);
-- One row. Every transaction reads it first; a transaction that changes a queue or a webhook increments it.
create table catalog (
  version     bigint not null
);
insert into catalog values (0);

create table jobs (
  id           bigint not null,
  namespace    int not null,
  queue        int not null,
  created_at   bigint not null,
  max_attempts int not null,
  backoff      bigint not null,
  timeout      bigint,
  group_id     text,
  unique_key   text,
  custom_id    text,
  expires_at   bigint,
  flags        bigint not null,
  state        smallint not null,
  priority     int not null,
  position     bigint not null,
  run_at       bigint not null,
  attempts     int not null,
  stalls       int not null,
  token        bigint not null,
  lease_ms     bigint not null,
  lease_until  bigint,
  deadline     bigint,
  started_at   bigint,
  finished_at  bigint,
  progress     int not null,
  size         int not null,
  details      bytea,
  blocked      smallint not null         -- 1: waits behind its group; derived, see put_right
) partition by list (state);
-- The numbers are State: 0 waiting, 1 delayed, 2 active, 3 completed, 4 dead, 5 waiting-children.
create table jobs_live partition of jobs for values in (0, 1, 2, 5) with (
  fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0
);
create table jobs_done partition of jobs for values in (3, 4);
create unique index jobs_live_id  on jobs_live (id);
create index jobs_ready           on jobs_live (queue, blocked, priority desc, position) where state = 0;
create index jobs_delayed         on jobs_live (queue, run_at, id)  where state = 1;
create index jobs_due             on jobs_live (run_at)             where state = 1;
create index jobs_leased          on jobs_live (lease_until)        where state = 2;
create index jobs_active          on jobs_live (queue, id)          where state = 2;
create index jobs_awaiting        on jobs_live (queue, id)          where state = 5;
create index jobs_expiring        on jobs_live (expires_at)         where expires_at is not null and state in (0, 1, 5);
create index jobs_grouped         on jobs_live (queue, group_id, blocked, priority desc, position)
                                                                    where group_id is not null and state = 0;
create index jobs_group_active    on jobs_live (queue, group_id)    where group_id is not null and state = 2;
create unique index jobs_unique   on jobs_live (queue, unique_key)  where unique_key is not null;
create unique index jobs_done_id  on jobs_done (id);
create index jobs_finished        on jobs_done (queue, state, finished_at, id);

-- Producers' own ids: unique in a namespace, whatever state their jobs are in.
create table names (
  namespace    int not null,
  custom_id    text not null,
  job          bigint not null,
  primary key (namespace, custom_id)
);
create index names_job on names (job);
create table payloads (
  id           bigint primary key,
  options      bytea,
  data         bytea not null
);
create table results (
  id           bigint primary key,
  data         bytea not null
);
create table logs (
  job          bigint not null,
  line         bigint not null,
  at           bigint not null,
  level        text not null,
  message      bytea not null,           -- UTF-8; a text could not hold a zero
  primary key (job, line)
);
create table dependencies (
  job          bigint not null,          -- waits for
  needs        bigint not null,          -- this one
  state        smallint not null,        -- core.dependencies.Need: 0 and 1 keep it waiting
  name         text not null,            -- the id of the needed job, as users see it
  result       bytea,
  error        bytea,                    -- UTF-8
  primary key (job, needs)
);
create index dependencies_needs on dependencies (needs, job) where state <= 1;
create index dependencies_failed on dependencies (name) where state = 1;
-- How needed jobs have ended, until the ends are delivered to all dependents.
create table ends (
  serial       bigint primary key,       -- the order in which they are delivered
  job          bigint not null,
  state        smallint not null,        -- core.dependencies.Need: where the dependencies on it stand now
  buries       boolean not null,
  frees        boolean not null,
  inherited    boolean not null,
  error        bytea,                    -- UTF-8
  result       bytea,
  after        bigint not null           -- id of the last job to which it was delivered
);
create index ends_job on ends (job);
create table crons (
  number       int generated always as identity primary key,
  namespace    int not null references namespaces,
  name         text not null,
  next_run     bigint not null,
  executions   bigint not null,
  plan         bytea not null,           -- see core.cron.CronPlan
  data         bytea not null,           -- what its jobs carry
  unique (namespace, name)
);
create index crons_due on crons (next_run);
create table webhooks (
  id             bigint primary key,
  namespace      int not null references namespaces,
  url            text not null,
  events         text not null,          -- names, separated by commas
  queue          text,
  secret         text,
  created_at     bigint not null,
  cursor         bigint not null,        -- number of the first event of the journal it has not dealt with
  enabled        boolean not null,
  successes      bigint not null,
  failures       bigint not null,
  last_triggered bigint
);
-- Rate limits: how many a queue may still hand out. Only queues with a limit have a row.
create table buckets (
  queue        int primary key,
  tokens       double precision not null,
  at           bigint not null
) with (fillfactor = 50);

create table journal (
  block        bigint primary key,       -- counts the commits, without gaps
  seq          bigint not null,          -- number of the block's first event
  count        int not null,             -- events in the block; none if only counts changed
  at           bigint not null,          -- ms, by the database's clock
  id_mark      bigint not null,          -- highest id its server had handed out by then
  server       bigint not null,          -- who committed it
  total        bigint not null,          -- bytes of all blocks ever written, this one included
  news         bytea not null,           -- for the other servers: counts, what falls due; see commit_notice.py
  body         bytea not null
);
create index journal_seq on journal (seq) where count > 0;

-- What must be done by one server at a time. The holder of a lease sends its term with each write.
create table leases (
  name         text primary key,
  holder       bigint not null,
  term         bigint not null,
  until        bigint not null           -- ms, by the database's clock
);
-- Servers that share this shard, each with the number that keeps its ids apart from those of the others.
create table nodes (
  node         int primary key,
  server       bigint not null,
  until        bigint not null           -- ms, by the database's clock
);

create function clock_ms() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000)::bigint $$;

-- Have as many waiting jobs of each touched group unblocked as the group has free places, and no others.
create function put_right(in_queues int[], in_groups text[], places int) returns void language plpgsql as $$
declare
  one record;
  busy int;
begin
  for one in select q, g from unnest(in_queues, in_groups) as u (q, g) order by q, g loop
    perform pg_advisory_xact_lock({LOCK_GROUP}, hashtext(one.q || '/' || one.g));
    select count(*) into busy from jobs where state = 2 and queue = one.q and group_id = one.g;
    update jobs set blocked = 1 where state = 0 and queue = one.q and group_id = one.g and blocked = 0;
    if busy < places then
      update jobs set blocked = 0 where state = 0 and id in (
        select id from jobs where state = 0 and queue = one.q and group_id = one.g and blocked = 1
        order by priority desc, position limit places - busy);
    end if;
  end loop;
end $$;

-- One look per state, each over an index of its own.
create function are_empty(numbers int[]) returns boolean language sql volatile as $$
  select not (
       exists (select from jobs where state = 0 and queue = any (numbers))
    or exists (select from jobs where state = 1 and queue = any (numbers))
    or exists (select from jobs where state = 2 and queue = any (numbers))
    or exists (select from jobs where state = 5 and queue = any (numbers))
    or exists (select from jobs where state in (3, 4) and queue = any (numbers)))
$$;

-- The last words of every transaction that wrote something; see the head of schema.py.
create function finish(
  touched int[], known_version bigint, emptied int[], events int, at_ms bigint, mark bigint, by_server bigint, in_news bytea,
  in_body bytea, out new_block bigint, out new_seq bigint, out new_total bigint, out xid text
) language plpgsql as $$
begin
  perform pg_advisory_xact_lock({LOCK_COMMIT}, 0);
  if exists (select from queues where number = any (touched) and version > known_version) then
    raise exception 'a queue was changed meanwhile' using errcode = '{CHANGED_STATE}';
  end if;
  if cardinality(emptied) > 0 and not are_empty(emptied) then
    raise exception 'a queue is not empty any more' using errcode = '{CHANGED_STATE}';
  end if;
  select j.block + 1, j.seq + j.count, j.total into new_block, new_seq, new_total
    from journal j order by j.block desc limit 1;
  new_block := coalesce(new_block, 1);
  new_seq := coalesce(new_seq, 1);
  new_total := coalesce(new_total, 0) + length(in_body);
  insert into journal values (new_block, new_seq, events, at_ms, mark, by_server, new_total, in_news, in_body);
  perform pg_notify('{CHANNEL}', by_server || ' ' || new_block);
  xid := pg_current_xact_id()::text;
end $$;
"""  # noqa: S608 - put together from constants of this file

# Ready lists in Redis: queues with a ready list, jobs leased for it, and how far the logs of servers are stored.
_FAST_PATH = f"""
alter table catalog add column identity uuid not null default gen_random_uuid();  -- of this shard, in Redis
alter table catalog add column generation bigint not null default 0;              -- of what is in Redis
alter table catalog add column fence bigint not null default 0;     -- lease tokens below this are of earlier generations
alter table catalog add column fenced_at bigint not null default 0; -- ms, by the database's clock
create table hot (
  queue        int primary key,
  epoch        bigint not null           -- counts what was fetched for its list
);
create index jobs_set_aside on jobs_live (lease_until) where state = 2 and started_at is null;
create table wals (
  wal          bigint primary key,       -- a server's log of what it has promised to store
  stored       bigint not null,          -- everything up to this number is
  at           bigint not null           -- ms, by the database's clock
);

drop function finish(int[], bigint, int[], int, bigint, bigint, bigint, bytea, bytea);
create function finish(
  touched int[], known_version bigint, emptied int[], events int, at_ms bigint, mark bigint, by_server bigint, in_news bytea,
  in_body bytea, out new_block bigint, out new_seq bigint, out new_total bigint, out xid text, out heated int[]
) language plpgsql as $$
begin
  perform pg_advisory_xact_lock({LOCK_COMMIT}, 0);
  if exists (select from queues where number = any (touched) and version > known_version) then
    raise exception 'a queue was changed meanwhile' using errcode = '{CHANGED_STATE}';
  end if;
  if cardinality(emptied) > 0 and not are_empty(emptied) then
    raise exception 'a queue is not empty any more' using errcode = '{CHANGED_STATE}';
  end if;
  select j.block + 1, j.seq + j.count, j.total into new_block, new_seq, new_total
    from journal j order by j.block desc limit 1;
  new_block := coalesce(new_block, 1);
  new_seq := coalesce(new_seq, 1);
  new_total := coalesce(new_total, 0) + length(in_body);
  insert into journal values (new_block, new_seq, events, at_ms, mark, by_server, new_total, in_news, in_body);
  perform pg_notify('{CHANNEL}', by_server || ' ' || new_block);
  xid := pg_current_xact_id()::text;
  heated := array(select queue from hot where queue = any (touched));
end $$;
"""  # noqa: S608

# Quotas over all servers: the number of jobs of each namespace in the last minute, per second.
_QUOTAS = f"""
create table quotas (
  namespace    text not null,
  second       bigint not null,          -- of the database's clock
  last         bigint not null,          -- ms: when something was last counted in it
  used         bigint not null,
  primary key (namespace, second)
) with (fillfactor = 50);

-- Count jobs against quotas: each as a whole or not at all, in order. Names that are the same stand side by side. A count below
-- zero gives back; a quota that is null lets everything pass. Returns for each 0, or how many ms until there is room.
create function quota_take(names text[], counts bigint[], allowed bigint[], given_ms bigint) returns bigint[]
language plpgsql as $$
declare
  size constant int := cardinality(names);
  waits bigint[] := '{{}}';
  at_ms bigint;
  since bigint;
  until bigint;
  taken bigint;       -- of this name, in the last minute
  added bigint;       -- to this name, by this call
  refused bigint;     -- the last count of this name that had no room, and
  wait bigint;        -- how long it would have to wait
begin
  perform pg_advisory_xact_lock({LOCK_QUOTA}, h)  -- in one order, so that there are no deadlocks
    from (select distinct hashtext(n) as h from unnest(names) as n order by h) as locks;
  at_ms := coalesce(given_ms, clock_ms());
  since := at_ms - 60000;
  until := at_ms + 60000;  -- what is later was written before the clock was set back
  for i in 1 .. size loop
    if i = 1 or names[i] <> names[i - 1] then
      select coalesce(sum(used), 0) into taken from quotas where namespace = names[i] and last > since and last <= until;
      added := 0;
      refused := null;
    end if;
    if counts[i] <= 0 or allowed[i] is null or taken + counts[i] <= allowed[i] then
      taken := greatest(0, taken + counts[i]);
      added := added + counts[i];
      refused := null;
      waits := waits || 0::bigint;
    else
      if refused is distinct from counts[i] then
        refused := counts[i];
        select f.last - since into wait from (
          select q.last, sum(q.used) over (order by q.second) as freed
            from quotas q where q.namespace = names[i] and q.last > since and q.last <= until) as f
          where f.freed >= taken + counts[i] - allowed[i] order by f.freed limit 1;
      end if;
      waits := waits || coalesce(wait, 60000);
    end if;
    if i = size or names[i] <> names[i + 1] then
      if added > 0 then
        insert into quotas as q values (names[i], at_ms / 1000, at_ms, added)
          on conflict (namespace, second) do update set used = q.used + added, last = at_ms;
      elsif added < 0 then
        update quotas q set used = q.used - least(q.used, -added - l.later) from (
          select second, sum(used) over (order by second desc) - used as later
            from quotas where namespace = names[i] and last > since and last <= until) as l
          where q.namespace = names[i] and q.second = l.second and l.later < -added;
      end if;
    end if;
  end loop;
  return waits;
end $$;
"""  # noqa: S608 - put together from constants of this file

# Names and flows across shards.
_ACROSS_SHARDS = f"""
create table reservations (
  namespace    text not null,
  name         text not null,
  shard        int not null,             -- where a job of that name may be
  ticket       bigint not null,
  at           bigint not null,          -- ms, by the database's clock
  primary key (namespace, name)
);
create table withdrawn (
  ticket       bigint primary key,       -- no push may use it any more
  at           bigint not null
);
create index withdrawn_at on withdrawn (at);
create table relays (
  needed       bigint not null,          -- when this job ends,
  shard        int not null,             -- the shard to which the end is sent
  asked_at     bigint not null,          -- ms, by the database's clock
  next_at      bigint,                   -- when to send it; null as long as the job has not ended
  told         int not null,             -- how often it was sent
  spared       bigint not null,          -- a job that does not need it any more, or 0
  serial       bigint not null,          -- of the end, and the rest of it, see ends
  state        smallint not null,
  buries       boolean not null,
  frees        boolean not null,
  inherited    boolean not null,
  error        bytea,                    -- UTF-8
  result       bytea,
  primary key (needed, shard)
);
create index relays_due on relays (shard, next_at) where next_at is not null;

-- A transaction that withdraws a ticket waits for those that read tickets, and they wait for it. Two statements, so that the
-- second sees what was committed while the first waited.
create function hold_tickets(tickets bigint[]) returns setof bigint language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock_shared({LOCK_TICKETS}, 0);
  return query select w.ticket from withdrawn w where w.ticket = any (tickets);
end $$;
"""  # noqa: S608 - put together from constants of this file

# Rebalancing: queues that move from one shard to another.
_REBALANCING = """
alter table layout add column epoch  int not null default 0;          -- how many rebalances were finished
alter table layout add column target int;                             -- shards there will be after the one under way
alter table queues add column standing smallint not null default 0;   -- core.queue.MoveStep
alter table queues add column peer     int not null default 0;        -- the shard at the other end of its way
alter table queues add column attempt  bigint not null default 0;     -- the number of the attempt to move it
alter table nodes  add column stores   int not null default 0;        -- how many stores the server has
"""

# API keys, which are the same for all shards: the first shard has the valid ones.
_API_KEYS = """
create table api_keys (
  id           text primary key,
  digest       bytea not null,           -- SHA-256 of the whole key
  namespaces   text[] not null,
  roles        text[] not null,
  label        text not null,
  created_at   bigint not null,          -- ms, by the database's clock, like the others
  expires_at   bigint,
  revoked_at   bigint
);
create table api_key_changes (
  one          boolean primary key default true check (one),
  revision     bigint not null           -- how many changes there were
);
insert into api_key_changes (revision) values (0);
"""

# Bulk work: consumer groups with their epochs, staged writes and their commits. See core/bulk_records.py.
_LEDGER = """
create table ledger (
  kind         smallint not null,        -- core.bulk_records.EntryKind
  namespace    text not null,
  name         text not null,
  number       bigint not null,
  at           bigint not null,          -- ms, by the database's clock
  weight       bigint not null,
  version      int not null,
  body         bytea not null,
  primary key (kind, namespace, name, number)
);
create index ledger_at on ledger (kind, at);
create table chunks (
  owner        bigint not null,          -- the draft whose rows these are
  number       int not null,
  queue        text not null,
  rows         int not null,
  body         bytea not null,
  primary key (owner, number)
);
alter table chunks alter column body set storage external;  -- it is written and read once: compressing it would not pay
"""

# The history of the journal, together with the identity: see core/history.py.
_HISTORY = """
alter table catalog add column history_epoch bigint not null default 0;  -- how often delivered events have been replaced
"""

# Lost ready lists: no job of their queues is delivered until the jobs of the lists are back in their positions.
_LOST_LISTS = f"""
create table lost (
  queue        int primary key
);
alter table nodes add column generation bigint not null default 0;  -- what the server handed out of earlier ones is stored

drop function finish(int[], bigint, int[], int, bigint, bigint, bigint, bytea, bytea);
create function finish(
  touched int[], known_version bigint, emptied int[], events int, at_ms bigint, mark bigint, by_server bigint, in_news bytea,
  in_body bytea, out new_block bigint, out new_seq bigint, out new_total bigint, out xid text, out heated int[],
  out lists_generation bigint
) language plpgsql as $$
begin
  perform pg_advisory_xact_lock({LOCK_COMMIT}, 0);
  if exists (select from queues where number = any (touched) and version > known_version) then
    raise exception 'a queue was changed meanwhile' using errcode = '{CHANGED_STATE}';
  end if;
  if cardinality(emptied) > 0 and not are_empty(emptied) then
    raise exception 'a queue is not empty any more' using errcode = '{CHANGED_STATE}';
  end if;
  select j.block + 1, j.seq + j.count, j.total into new_block, new_seq, new_total
    from journal j order by j.block desc limit 1;
  new_block := coalesce(new_block, 1);
  new_seq := coalesce(new_seq, 1);
  new_total := coalesce(new_total, 0) + length(in_body);
  insert into journal values (new_block, new_seq, events, at_ms, mark, by_server, new_total, in_news, in_body);
  perform pg_notify('{CHANNEL}', by_server || ' ' || new_block);
  xid := pg_current_xact_id()::text;
  heated := array(select queue from hot where queue = any (touched) union select queue from lost where queue = any (touched));
  select generation into lists_generation from catalog;
end $$;
"""  # noqa: S608 - put together from constants of this file

# The clock of leases: the database's wall clock plus a shift, which is corrected when that clock was set.
_LEASE_CLOCK = """
alter table catalog add column clock_shift bigint not null default 0;  -- ms
alter table catalog add column clock_term  bigint not null default 0;  -- how often it was corrected
create table lease_mark (
  one          boolean primary key default true check (one),
  counted      bigint not null           -- ms: the count when a server was last there; 0 = not known
);
insert into lease_mark (counted) values (0);
"""

# Groups of jobs that are paused or limited, see core/group_limits.py. Moments are on the clock of leases, ms.
_GROUP_LIMITS = f"""
create table groups (
  queue          int not null,
  group_id       text not null,
  paused         boolean not null,
  concurrency    bigint,
  rate_limit     bigint,
  rate_window_ms bigint not null,
  window_at      bigint,                 -- when the window of the rate limit began
  taken          bigint not null,        -- jobs claimed in it
  held_until     bigint,                 -- no job is claimed before
  reopens_at     bigint,                 -- when time lets more jobs through; null: it does not hold any back
  primary key (queue, group_id)
) with (fillfactor = 70);
create index groups_reopening on groups (queue, reopens_at) where reopens_at is not null;

-- Hold some groups for this transaction, in one order, and return what is set of them as it is from then on.
create function hold_groups(in_queues int[], in_groups text[]) returns setof groups language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock({LOCK_GROUP}, hashtext(q || '/' || g))
    from (select q, g from unnest(in_queues, in_groups) as u (q, g) order by q, g) as o;
  return query select t.* from groups t join unnest(in_queues, in_groups) as u (q, g) on t.queue = u.q and t.group_id = u.g;
end $$;

-- Have as many waiting jobs of each touched group unblocked as there is room for, and no others: as many as may be active at
-- once, less those that are, and no more than a number.
drop function put_right(int[], text[], int);
create function put_right(in_queues int[], in_groups text[], in_at_once bigint[], in_more bigint[]) returns void
language plpgsql as $$
declare
  one record;
  busy bigint;
  room bigint;
  chosen bigint[];
begin
  for one in select q, g, n, m from unnest(in_queues, in_groups, in_at_once, in_more) as u (q, g, n, m) order by q, g loop
    perform pg_advisory_xact_lock({LOCK_GROUP}, hashtext(one.q || '/' || one.g));
    select count(*) into busy from jobs where state = 2 and queue = one.q and group_id = one.g;
    room := greatest(0, least(one.n - busy, one.m));
    chosen := array(
      select id from (
        (select id, priority, position from jobs where state = 0 and queue = one.q and group_id = one.g and blocked = 0
          order by priority desc, position limit room)
        union all
        (select id, priority, position from jobs where state = 0 and queue = one.q and group_id = one.g and blocked = 1
          order by priority desc, position limit room)) as c
      order by priority desc, position limit room);
    update jobs j set blocked = 1 where state = 0 and queue = one.q and group_id = one.g and blocked = 0
      and not exists (select from unnest(chosen) as c (id) where c.id = j.id);
    if room > 0 then
      update jobs set blocked = 0 where state = 0 and blocked = 1 and id = any (chosen);
    end if;
  end loop;
end $$;
"""  # noqa: S608 - put together from constants of this file

# As before, except that the last update names the queue and the group: with ids alone, it may be planned as a look at all
# waiting jobs for each group, and a push of 10,000 groups kept its transaction busy longer than a database may take.
_GROUPS_BY_INDEX = f"""
create or replace function put_right(in_queues int[], in_groups text[], in_at_once bigint[], in_more bigint[]) returns void
language plpgsql as $$
declare
  one record;
  busy bigint;
  room bigint;
  chosen bigint[];
begin
  for one in select q, g, n, m from unnest(in_queues, in_groups, in_at_once, in_more) as u (q, g, n, m) order by q, g loop
    perform pg_advisory_xact_lock({LOCK_GROUP}, hashtext(one.q || '/' || one.g));
    select count(*) into busy from jobs where state = 2 and queue = one.q and group_id = one.g;
    room := greatest(0, least(one.n - busy, one.m));
    chosen := array(
      select id from (
        (select id, priority, position from jobs where state = 0 and queue = one.q and group_id = one.g and blocked = 0
          order by priority desc, position limit room)
        union all
        (select id, priority, position from jobs where state = 0 and queue = one.q and group_id = one.g and blocked = 1
          order by priority desc, position limit room)) as c
      order by priority desc, position limit room);
    update jobs j set blocked = 1 where state = 0 and queue = one.q and group_id = one.g and blocked = 0
      and not exists (select from unnest(chosen) as c (id) where c.id = j.id);
    if room > 0 then
      update jobs set blocked = 0
        where state = 0 and queue = one.q and group_id = one.g and blocked = 1 and id = any (chosen);
    end if;
  end loop;
end $$;
"""  # noqa: S608 - put together from constants of this file

#: Migration number n (counting from 1) brings a database from version n-1 to n. Never edit a released one; append.
MIGRATIONS: Final[tuple[str, ...]] = (
    _VERSION_1,
    _FAST_PATH,
    _QUOTAS,
    _ACROSS_SHARDS,
    _REBALANCING,
    _API_KEYS,
    _LEDGER,
    _HISTORY,
    _LOST_LISTS,
    _LEASE_CLOCK,
    _GROUP_LIMITS,
    _GROUPS_BY_INDEX,
)
SCHEMA_VERSION: Final = len(MIGRATIONS)
