"""The fast path: jobs of hot queues are handed out from ready lists in Redis, without a transaction for each claim.

How it stays right (docs/redis.md tells it with pictures):

* A job on a list is leased already, in the database: it is *set aside* (active, not started). Redis is never the only one to
  know of it, and its lease token is the one its worker gets.
* The lease a job is set aside with outlasts the one its worker is promised, so a worker is not cheated if its server dies. A
  moment after a job was handed out, unless it is settled by then, the lease daemon writes down who has it and for how long.
* What is set aside and never handed out comes back: when nobody wants it any more, when its lease ends, or, if Redis fails,
  soon after. The generation of lists is then given up in the database, each server says at once what it has handed out, and
  the rest is released. None of this counts as an attempt.
"""
