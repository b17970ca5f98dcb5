"""The fast path: jobs of hot queues are handed out from ready lists in Redis, without a transaction for each claim.

Why it is correct (docs/redis.md explains it with pictures):

* A job on a list is leased already, in the database: it is *set aside* (active, not started). So the database always has the
  job as well, and its lease token is the one that its worker gets.
* The lease of a job that is set aside ends later than the one that its worker is promised, so a worker keeps its full lease if
  its server dies. A moment after a job was handed out, unless it is settled by then, the lease recorder records which worker
  has it and for how long.
* A job that is set aside and never handed out returns to its queue: when the list is not used any more, when its lease ends,
  or, if Redis fails, soon after. The generation of lists is then given up in the database, each server records at once what it
  has handed out, and the rest is released. None of this counts as an attempt.
"""
