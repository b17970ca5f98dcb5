"""Stage C: top-level names that go to another module, by their names after stage B. ``*``: all of them, and the module is gone."""

#: (from, to, names, docstring of a module that is new)
MOVES = [
    (
        "engine/maintenance/service.py",
        "engine/maintenance/store_recovery.py",
        "StoreRecovery",
        "Recovery of the store: looks for free space, or opens the files again.",
    ),
    (
        "engine/maintenance/service.py",
        "engine/maintenance/retention.py",
        "Retention RetentionService TrimJournal trim_journal",
        "Retention: removes completed jobs and journal blocks that are too many or too old.",
    ),
    (
        "engine/maintenance/service.py",
        "engine/maintenance/dead_letter_service.py",
        "_BEGINNING DeadLetterService AutoRevive auto_revive _revive_once",
        "Dead letters: removes old ones and retries those that their queue's settings ask for.",
    ),
    (
        "engine/maintenance/service.py",
        "engine/maintenance/membership.py",
        "Membership",
        "Membership of a server in a shared store: heartbeat and leadership.",
    ),
    (
        "engine/maintenance/service.py",
        "engine/maintenance/lease_clock.py",
        "ClockMarker MarkClock mark_clock",
        "The lease clock of a store with one server: saves how much time has been counted.",
    ),
    (
        "engine/jobs/claim.py",
        "engine/jobs/claim_waiters.py",
        "ClaimWaiters RecheckQueue PendingClaim abandon",
        "Claims that wait for a job: the waiters of each queue, and a claim that its caller may give up.",
    ),
    ("server/app.py", "server/doors.py", "Doors", "Builds all doors of a server, and its listeners."),
    ("doors/messages/view.py", "doors/messages/rendering.py", "*", ""),
    ("doors/messages/stray.py", "doors/messages/handlers.py", "*", ""),
    ("doors/jobs/cron_commands.py", "doors/jobs/commands.py", "*", ""),
    ("doors/jobs/flow_commands.py", "doors/jobs/commands.py", "*", ""),
    ("doors/jobs/webhook_commands.py", "doors/jobs/commands.py", "*", ""),
    ("doors/jobs/worker_commands.py", "doors/jobs/commands.py", "*", ""),
    ("doors/closing.py", "doors/websocket.py", "*", ""),
    ("bulkwork/trailer.py", "bulkwork/arrow_files.py", "*", ""),
    ("client/_task_runner.py", "client/_executors.py", "*", ""),
]
#: Modules that only pass on names of another: (module, the other). Their docstring becomes the other's.
PASSED_ON = [("doors/opaque.py", "core/binary_payload.py")]
