"""The session of one client: its identity, its namespace, and its commands, executed in order.

Consecutive commands of one kind are given to the engine together and answered together. Before a command of another kind,
all earlier ones are answered. So the outcome is the same as if each command was executed alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from penstock.access.expiry import Expiry
from penstock.access.identity import UNRESTRICTED, Right
from penstock.core import limits
from penstock.core.errors import InvalidInput, ServerError, Unauthorized
from penstock.core.job import DEFAULT_NAMESPACE
from penstock.core.queue import QueueKey
from penstock.doors.http.namespace import check_namespace
from penstock.doors.identity_watch import ENDED
from penstock.doors.net.loop_share import LoopShare
from penstock.doors.resp import arguments, connection_commands, replies
from penstock.doors.resp.command_table import COMMANDS, Kind
from penstock.doors.resp.pipeline import Pipeline, new_settle_command
from penstock.doors.resp.pulls import PulledJobs, new_pull
from penstock.doors.resp.pushes import Pushes, failed_to_publish, new_job, new_large_job
from penstock.doors.resp.receive import Received
from penstock.doors.resp.subscription import RespSubscription
from penstock.doors.topics.message import check_topic, new_large_message, new_message
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import PendingClaim

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from penstock.access.authenticator import Authenticator
    from penstock.access.identity import Identity
    from penstock.access.rate_limit import SlidingWindow
    from penstock.core.job import JobSpec
    from penstock.doors.resp.command_table import RespCommand
    from penstock.doors.resp.parser import Command
    from penstock.doors.resp.pipeline import SettleCommand
    from penstock.doors.resp.pulls import Pull
    from penstock.doors.topics.subscriber import Subscribers
    from penstock.engine.api import EngineApi

log = structlog.get_logger("penstock.resp")


#: Commands between two checks of the time: a check before each would cost more than the smallest commands.
_LOOKS_EVERY: Final = 8
#: Commands that only read or claim. They are skipped when the connection is lost.
_ASKS: Final = frozenset(name for name, entry in COMMANDS.items() if entry.kind in (Kind.NOW, Kind.PULL)) | {b"TOPICS"}


class SessionEnd(Exception):
    """Ends the session."""


class Link(Protocol):
    """The connection, as the session uses it."""

    number: int  #: its number, unique in this server
    gone: bool  #: the client sends nothing more
    lost: bool  #: the connection is lost: replies are not sent

    @property
    def ahead(self) -> int:
        """Return the number of bytes that arrived and are not parsed yet."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    async def writable(self) -> None:
        """Wait until the client has read most of its replies."""

    def peek(self) -> Command | None:
        """Return the next command without taking it, or None. Raises ProtocolError."""

    def drop(self) -> None:
        """Remove the command that ``peek`` returned."""

    def put_back(self, commands: Sequence[Command]) -> None:
        """Put commands back that were taken, in front of the others."""

    async def stir(self) -> None:
        """Wait until bytes arrive, the client disconnects, or ``wake`` is called."""

    def wake(self) -> None:
        """End the wait of ``stir``."""


class RespSession:
    """The session of one client.

    ``authenticator`` checks tokens. ``rate_limit`` limits how many commands the address ``client`` may send in a period (None:
    no limit). ``admit`` counts the connection for a namespace after authentication. It raises TooMany if the namespace has used
    its share.
    """

    def __init__(
        self,
        engine: EngineApi,
        authenticator: Authenticator,
        subscribers: Subscribers,
        link: Link,
        *,
        rate_limit: SlidingWindow | None = None,
        client: str = "",
        figures: Callable[[], Mapping[str, int]] = dict,
        share: LoopShare | None = None,
        admit: Callable[[str], None] = lambda _namespace: None,
    ) -> None:
        self._share = LoopShare(engine.clock) if share is None else share
        self.figures = figures  #: returns the figures of INFO
        self.engine = engine
        self.authenticator = authenticator
        self.subscribers = subscribers
        self.link = link
        self.client = client
        self._admit = admit
        self.held = PulledJobs(engine)
        self.received = Received(subscribers, engine.clock)
        self._rate_limit = rate_limit
        self._slots: list[bytes] = []  #: replies that were not sent yet, in order
        self._unsent_bytes = 0  #: bytes of the replies of commands that were answered immediately
        self._open: Pushes | Pipeline | None = None  #: the open group of commands
        self._allowed: set[bytes] = set()  #: commands that the client may use, checked in this turn
        self._key = QueueKey("", "")  #: the queue of the last topic
        self._waiting: PendingClaim | None = None
        self.at_once = True  #: no command of the last ``work`` waited for the engine
        self._logs_commands = log.is_enabled_for(logging.DEBUG)
        self.forget()

    def forget(self) -> None:
        """Reset the session to its first state."""
        self.namespace = DEFAULT_NAMESPACE
        self.identity: Identity | None = self.authenticator.open_identity if self.authenticator.is_open else None
        self.protocol = 2
        self.name = ""
        self.is_stock = False  #: the client is a Redis library, and expects the answers of Redis
        self.keeps_subscribe = False  #: the library uses SUBSCRIBE only for the pub/sub of Redis
        self._topic: bytes | None = None

    async def close(self) -> None:
        """Release what the client holds."""
        await self.received.release()
        await self.held.release_all(self.namespace)

    def mark_disconnected(self) -> None:
        """End all waits, because the client is disconnected."""
        if self._waiting is not None:
            self._waiting.give_up()
        self.received.mark_disconnected()

    # Authentication.

    @property
    def tenant(self) -> str:
        """The namespace whose share of the event loop the commands use: never one in which the client has no rights."""
        return "" if self.identity is None else self.identity.tenant(self.namespace)

    async def show(self, token: bytes, user: bytes | None) -> None:
        """Authenticate the client, and set its namespace to the user name.

        Raises Unauthorized, or InvalidInput.
        """
        try:
            namespace = self.namespace if user is None else check_namespace(user.decode())
        except (InvalidInput, UnicodeDecodeError):
            raise InvalidInput(
                f"The user name is the namespace: 1 to {limits.namespace_chars_max} letters, digits and _.:-"
            ) from None
        identity = await self.authenticator.identify(token.decode("utf-8", "replace"))
        if user is not None:
            identity.check_any(namespace)
        if namespace != self.namespace and (self.held or self.received):
            raise InvalidInput("Choose the namespace before the first command on this connection")
        self._admit(identity.tenant(namespace))
        self.namespace, self.identity, self._topic = namespace, identity, None

    def log_command(self, command: Command) -> None:
        """Log a command at level debug: its name and its first argument. The rest may be data, or a token."""
        if self._logs_commands:
            entry = COMMANDS.get(command[0].upper())
            about = {"of": arguments.shown(command[1])} if entry is not None and entry.named and len(command) > 1 else {}
            log.debug("command", name=arguments.shown(command[0]).upper(), **about, client=self.client)

    def check_pace(self) -> None:
        """Count a command. Raises RateLimited if the client's address sends too many."""
        if self._rate_limit is not None:
            self._rate_limit.check(self.client)

    def _check(self, name: bytes, entry: RespCommand | None) -> None:
        """Raise Unauthorized or Forbidden unless the client may use a command now. The result is kept for one turn."""
        if name in self._allowed or (entry is not None and entry.public):
            return
        if self.identity is None:
            raise Unauthorized("Authentication required.")
        for right in (Right.NONE,) if entry is None else entry.rights:
            self.authenticator.check(self.identity, self.namespace, right)
        if entry is not None:
            self._allowed.add(name)

    # Commands.

    async def work(self, commands: Sequence[Command]) -> None:
        """Execute commands, and answer them. The caller has the loop's turn for the first of them. Raises Goodbye."""
        self._allowed.clear()
        self.at_once = True
        share, link = self._share, self.link
        try:
            for place, command in enumerate(commands):
                if place % _LOOKS_EVERY == _LOOKS_EVERY - 1 and share.elapsed_s() >= share.ends_at:
                    await share.turn()
                name = command[0].upper()
                if link.lost and name in _ASKS:
                    continue  # no client gets the answer
                if name == b"SUBSCRIBE":  # the commands after it belong to the subscription
                    link.put_back(commands[place + 1 :])
                rest = self._begin(name, command)
                if rest is not None:
                    await self._finish(rest)
                if name == b"SUBSCRIBE":
                    break
            await self.flush()
        except SessionEnd:
            self._send()
            raise

    async def flush(self) -> None:
        """Execute the open group, and send the replies."""
        if self._open is not None:
            gathered, self._open = self._open, None
            self.at_once = False
            await gathered.finish()
        if self._slots:
            self._send()
            await self.link.writable()

    def _send(self) -> None:
        self.link.write(b"".join(self._slots))
        self._slots.clear()
        self._unsent_bytes = 0

    def _begin(self, name: bytes, command: Command) -> Coroutine[Any, Any, None] | None:
        """Execute a command, or add it to the open group. Return what has to be awaited for it; None for most commands."""
        entry = COMMANDS.get(name)
        if self._logs_commands:
            self.log_command(command)
        try:
            if self._rate_limit is not None:
                self._rate_limit.check(self.client)
            if not self.authenticator.is_open:
                self._check(name, entry)
            if entry is not None and entry.fewest <= len(command) <= entry.most:
                return self._do(entry, command)
        except ServerError as problem:
            self._slots.append(replies.refusal(problem))
            return None
        if entry is None:
            self._slots.append(replies.error(f"unknown command '{arguments.shown(command[0])}'"))
            return None
        self._slots.append(entry.wrong_arity)
        return self._leave() if entry.name == "SUBSCRIBE" else None

    async def _finish(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except ServerError as problem:
            self._slots.append(replies.refusal(problem))

    async def _leave(self) -> None:
        await self.flush()
        raise SessionEnd

    def _do(self, entry: RespCommand, command: Command) -> Coroutine[Any, Any, None] | None:
        """Add a command to the open group. If that is not possible, return the coroutine that finishes the group first."""
        kind = entry.kind
        if kind is Kind.PUBLISH or kind is Kind.PUSH:
            if len(command[2]) > limits.small_body_bytes:
                return self._push_large(command, kind is Kind.PUBLISH)
            try:
                publish = kind is Kind.PUBLISH
                return self._push(command[1], new_message(command[2]) if publish else new_job(command), publish)
            except ServerError as problem:
                if kind is Kind.PUSH:
                    raise
                self._slots.append(failed_to_publish(problem))
                return None
        if kind is Kind.PULL:
            return self._pull(command)
        if kind is Kind.DONE or kind is Kind.FAIL:
            return self._settle(new_settle_command(command, failed=kind is Kind.FAIL))
        if kind is Kind.NOW:
            reply = connection_commands.NOW[entry.name](self, command)
            self._slots.append(reply)
            self._unsent_bytes += len(reply)
            return self.flush() if self._unsent_bytes > limits.resp_unsent_bytes else None
        return self._after(entry, command)

    def _push(self, topic: bytes, job: JobSpec, publish: bool) -> Coroutine[Any, Any, None] | None:
        key = self._key if topic == self._topic else self.key_of(topic)
        pushes = self._open
        if pushes is None and not self._slots:  # the first command of a group
            self._open = pushes = Pushes(self.engine, self._slots)
        if not isinstance(pushes, Pushes) or not pushes.takes(key, job):
            return self._push_behind(key, job, publish)
        pushes.add(key, job, publish)
        return None

    async def _push_large(self, command: Command, publish: bool) -> None:
        """Push a job, or publish a message, whose payload is checked in slices."""
        try:
            job = await (new_large_message(command[2]) if publish else new_large_job(command))
            rest = self._push(command[1], job, publish)
        except ServerError as problem:
            if not publish:
                raise
            self._slots.append(failed_to_publish(problem))
            return
        if rest is not None:
            await rest

    async def _push_behind(self, key: QueueKey, job: JobSpec, publish: bool) -> None:
        """Execute the open group before a push that does not fit into it."""
        await self.flush()
        self._open = pushes = Pushes(self.engine, self._slots)
        pushes.add(key, job, publish)

    def _pull(self, command: Command) -> Coroutine[Any, Any, None] | None:
        pull, works = new_pull(self.key_of(command[1]), command), self._open
        if pull.wait_ms and not self.link.gone:
            return self._pull_and_wait(pull)
        if works is None and not self._slots:
            self._open = works = self._new_pipeline()
        if not isinstance(works, Pipeline) or not works.takes_pull(pull):
            return self._pull_behind(pull)
        works.add_pull(pull)
        return None

    async def _pull_and_wait(self, pull: Pull) -> None:
        await self.flush()
        self._slots.append(await self._wait(pull))

    async def _pull_behind(self, pull: Pull) -> None:
        await self.flush()
        self._open = works = self._new_pipeline()
        works.add_pull(pull)

    def _settle(self, settling: SettleCommand) -> Coroutine[Any, Any, None] | None:
        works = self._open
        if works is None and not self._slots:
            self._open = works = self._new_pipeline()
        if not isinstance(works, Pipeline) or not works.takes_settling(settling):
            return self._settle_behind(settling)
        works.add_settling(settling)
        return None

    async def _settle_behind(self, settling: SettleCommand) -> None:
        await self.flush()
        self._open = works = self._new_pipeline()
        works.add_settling(settling)

    def _new_pipeline(self) -> Pipeline:
        return Pipeline(self.engine, self.namespace, self._slots, self.held)

    async def _wait(self, pull: Pull) -> bytes:
        """Wait for jobs while the client is connected."""
        wait = self._waiting = PendingClaim(self.engine, Claim(pull.queue, pull.jobs, wait_ms=pull.wait_ms)).submit()
        self._allowed.clear()  # the rights for later commands are checked again
        expiry = Expiry(self.identity or UNRESTRICTED, self.engine.clock, wait.give_up)
        try:
            deliveries = await wait.answer()
            if self.identity is not None and self.identity.expired(self.engine.clock.now_ms()):  # perhaps both at once
                wait.give_up()
                raise Unauthorized(ENDED)
            return self.held.take(pull, deliveries)
        finally:
            expiry.cancel()
            self._waiting = None

    async def _after(self, entry: RespCommand, command: Command) -> None:
        """Execute a command that waits until all earlier ones are answered."""
        await self.flush()
        if entry.name == "QUIT":
            self._slots.append(replies.OK)
            raise SessionEnd
        if entry.name != "SUBSCRIBE":
            self._slots.append(await connection_commands.AFTER[entry.name](self, command))
            self._allowed.clear()
            return
        if self.keeps_subscribe:
            raise InvalidInput(
                "This library uses SUBSCRIBE for Redis' own pub/sub, which Penstock does not have. Send RECEIVE topic "
                "WAIT ms as a plain command, and ACK, NACK, BACK or DACK for each message."
            )
        if self.received:
            raise InvalidInput("A received message is held: send ACK, NACK, BACK or DACK before SUBSCRIBE")
        over = await RespSubscription(self, self.key_of(command[1])).run()
        if not over.goes_on:
            self._slots.append(over.last)
            raise SessionEnd
        self._slots.append(await connection_commands.reset(self, command))

    def key_of(self, topic: bytes) -> QueueKey:
        """Return the queue of a topic. Raises InvalidInput."""
        if topic != self._topic:
            try:
                name = check_topic(topic.decode())
            except UnicodeDecodeError:
                raise InvalidInput("invalid topic value: expected UTF-8") from None
            self._key = QueueKey(self.namespace, name)
            self._topic = topic
        return self._key
