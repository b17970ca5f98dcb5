"""Calls that our server answers otherwise than bunqueue's own, on purpose, with why. docs/jobs-door.md tells users of it."""

from __future__ import annotations

from typing import Final

NAME = "the text of the refusal is that of every other field"
NOT_ACTIVE = "the document's text"
UNKNOWN = "a job that is not there is said to be not there"
COUNT = "count has the active jobs, too: the document says all of them"
ORDER = "listings are in the order of the document: highest priority first"
REASON = "a failure that no retry can mend is told apart from one that had all its attempts"
ACTIVE_ONLY = "only an active job can be put off, as the document says"
NULL = "a worker that answers null has answered nothing"
TIMEZONE = "a cron without a time zone is one of UTC, and a reply has the fields of the document"
CRON_TEXT = "the words for a bad pattern are those of our parser"
WORKER = "a reply has the fields of the document; GET /workers has the rest"
WEBHOOK = "the words for a private address say which kind it is"
# What 2.9 has mended in the meantime, and we never had.
REFUSES = "2.7 takes what is outside the document's ranges"
SEES_ALL = "2.7 lists completed jobs as waiting, and neither those that are dead nor those that were promoted"
PAUSED = "2.7 counts the jobs of a paused queue twice"
LOGS = "2.7 answers with all lines, whatever was asked for"
PROMOTES = "2.7 counts jobs as delayed for a while that it has promoted"
DELAYED = "2.7 puts an active job among the waiting ones"
ONE_COMPLETED = "2.7 cannot run one completed job again"
COMPLETED = "2.7 counts completed jobs for a while that run again or were cleaned"
UNRECOVERABLE = "2.7 tries again what no retry can mend"
UPDATES = "2.7 cannot change the data of an active job"
PROGRESS = "2.7 leaves the progress of a job that is done at 0"

DIFFERENT: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("queue", "2.9"): {
        "refused: an empty name": NAME,
        "refused: a long name": NAME,
        "counts: countAsync": COUNT,
        "priority: getPrioritized": ORDER,
        "change: moveJobToCompleted of a job that waits": NOT_ACTIVE,
        "change: moveJobToFailed of a job that waits": NOT_ACTIVE,
        "retry: retryJob of an unknown one": UNKNOWN,
        "dlq: getDlqAsync": REASON,
        "dlq: getDlqAsync by reason": REASON,
        "dlq: getDlqAsync newer than the first": REASON,
        "dlq: getDlqStatsAsync": REASON,
        "dlq: retryDlqByFilterAsync by reason": REASON,
        "dlq: getJobCountsAsync": REASON,
        "dlq: one is dead": REASON,
        "dlq: purgeDlqAsync": REASON,
        "a looked-up job: 17. moveToDelayed": ACTIVE_ONLY,
        "a looked-up job: 19. moveToCompleted": NOT_ACTIVE,
        "a looked-up job: 20. moveToFailed": NOT_ACTIVE,
    },
    ("queue", "2.7"): {
        "refused: a bad priority": REFUSES,
        "refused: a negative delay": REFUSES,
        "refused: too many attempts": REFUSES,
        "refused: an empty name": REFUSES,
        "refused: a long name": REFUSES,
        "refused: in a bulk": REFUSES,
        "refused: getJobCountsAsync": REFUSES,
        "counts: countAsync": COUNT,
        "counts: getJob c1-done": PROGRESS,
        "counts: getWaitingAsync": SEES_ALL,
        "counts: getCompletedAsync": SEES_ALL,
        "counts: getFailedAsync": SEES_ALL,
        "counts: getJobsAsync": SEES_ALL,
        "counts: getJobsAsync, two states": SEES_ALL,
        "counts: getJobsAsync, to the end": SEES_ALL,
        "counts: getJobsAsync, a page": SEES_ALL,
        "counts: getJobsAsync, the last first": SEES_ALL,
        "counts: getJobsAsync, the first first": SEES_ALL,
        "priority: getPrioritized": ORDER,
        "control: getJobCountsAsync": PAUSED,
        "change: the counts": PROMOTES,
        "change: getJobLogs a part": LOGS,
        "change: getJobState after moveJobToDelayed": DELAYED,
        "retry: retryJob of an unknown one": UNKNOWN,
        "retry: retryCompletedAsync one": ONE_COMPLETED,
        "retry: getJobState after retryCompletedAsync": ONE_COMPLETED,
        "retry: retryCompletedAsync": ONE_COMPLETED,
        "retry: all wait again": COMPLETED,
        "clean: getJobCountsAsync": COMPLETED,
    },
    ("worker", "2.9"): {
        "results: returnvalue: nothing": NULL,
    },
    ("worker", "2.7"): {
        "failures: how often each ran": UNRECOVERABLE,
        "failures: the events": UNRECOVERABLE,
        "inside: the data after that": UPDATES,
    },
    ("simple", "2.9"): {},
    ("simple", "2.7"): {},
    ("cli", "2.9"): {
        "work: ack of an unknown one": NOT_ACTIVE,
        "work: fail of an unknown one": NOT_ACTIVE,
        "crons: add": TIMEZONE,
        "crons: add with a pattern": TIMEZONE,
        "crons: add of nonsense": CRON_TEXT,
        "crons: list": TIMEZONE,
        "crons: list, as text": TIMEZONE,
        "workers: register": WORKER,
        "workers: list": WORKER,
        "webhooks: add of a private address": WEBHOOK,
    },
    ("cli", "2.7"): {
        "work: ack of an unknown one": NOT_ACTIVE,
        "work: fail of an unknown one": NOT_ACTIVE,
        "queues: queue jobs cli --state waiting": SEES_ALL,
        "queues: queue jobs cli --state failed": SEES_ALL,
        "crons: add of nonsense": CRON_TEXT,
        "workers: register": WORKER,
        "workers: list": WORKER,
        "webhooks: add of a private address": WEBHOOK,
    },
}
#: Fields of a job in bunqueue's memory, which a user of the command line has no use for.
NOT_COMPARED: Final = frozenset(("childrenCompleted", "lastHeartbeat", "_state", "timeline", "stackTraceLimit"))
