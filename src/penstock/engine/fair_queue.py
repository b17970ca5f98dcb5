"""Commands that wait for the next batch, in a line for each namespace.

As long as all waiting commands fit into one batch, there are no lines: the batch is all of them, in order of arrival. Only
when more commands wait than a batch should have does each namespace get its share: deficit round robin (Shreedhar and
Varghese, 1995), by the weight of the commands. Within a namespace, order is kept. So a namespace with very many commands
waits for itself, and the commands of others are in the next batch.

Commands about leases (``Command.urgent``) have lines of their own, which come first: no lease should end while its renewal
waits behind pushes of the same namespace. Commands of the server itself have no line. They come before all others, as far
as one batch has room for them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import TooMany

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from penstock.engine.command import AnyCommand
    from penstock.engine.fair_share import FairShare

#: A line gets this part of a batch before it is the turn of the next line. Commands that are not urgent get at least as
#: much of a batch together, however many urgent ones wait; and so do the urgent ones, however many the server itself sends.
_TURNS_OF_BATCH: Final = 8
#: Up to this weight, the cost of a command is its own weight: ``weigh`` is not called.
_LIGHT: Final = 32


class NamespaceQueue:
    """The waiting commands of one namespace, each with its weight, and the weight that they may use in this turn."""

    __slots__ = ("commands", "credit")

    def __init__(self) -> None:
        self.commands: deque[tuple[AnyCommand, int]] = deque()
        self.credit = 0


class Rotation:
    """Lines of namespaces that take turns. The first has the next turn; none is empty."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: dict[str, NamespaceQueue] = {}

    def line(self, namespace: str) -> NamespaceQueue:
        """Return the line of a namespace. To a new one, the caller adds a command."""
        line = self.lines.get(namespace)
        if line is None:
            line = self.lines[namespace] = NamespaceQueue()
        return line

    def length(self, namespace: str) -> int:
        """Return how many commands of a namespace wait."""
        line = self.lines.get(namespace)
        return 0 if line is None else len(line.commands)

    def take(self, batch: list[AnyCommand], room: int, bound: int) -> int:
        """Add commands to a batch, line by line, until they weigh as much as there is room. Return their weight.

        ``bound``: the weight of a complete batch. The next call continues with the next line.
        """
        lines, share, taken, left = self.lines, bound // _TURNS_OF_BATCH, False, room
        while lines and left > 0 and len(batch) < limits.batch_commands_max:
            namespace, line = next(iter(lines.items()))
            commands, alone = line.commands, len(lines) == 1
            line.credit += left if alone else share
            while commands and left > 0 and len(batch) < limits.batch_commands_max:
                command, weight = commands[0]
                # A command larger than a batch gets its turn when its line has saved enough credit, or nothing else is to be
                # done.
                if weight > line.credit and (taken or not alone):
                    break
                commands.popleft()
                batch.append(command)
                taken = True
                line.credit -= weight
                left -= weight
            del lines[namespace]
            if commands:  # to the end of the rotation
                lines[namespace] = line
                if alone:
                    line.credit = max(0, line.credit)
                    break
        return room - left


class FairQueue:
    """Commands that wait for the same lane. The weight of a command is its cost: about one unit for each of its jobs.

    ``weigh`` gets a heavy command and its weight, and returns its real cost. ``now`` returns seconds: after a batch in which
    several namespaces had to share, batches stay small for a while, so that the next command of a namespace with few
    commands does not wait for a long batch. While ``fair_share`` reports that several namespaces are active, batches are small
    too.
    """

    def __init__(
        self, weigh: Callable[[AnyCommand, int], int], now: Callable[[], float], fair_share: FairShare | None = None
    ) -> None:
        self._fair_share = fair_share
        self._weigh = weigh
        self._now = now
        self._fresh: list[AnyCommand] = []  #: in no line yet
        self._weighed = 0  #: how many of these, from the first, ...
        self._weight = 0  #: ... have this weight
        self._first: deque[tuple[AnyCommand, int]] = deque()  #: commands of the server itself, each with its weight
        self._urgent = Rotation()
        self._rest = Rotation()
        self._sorted = 0  #: commands in lines, and in ``_first``
        self._small_until = 0.0

    def __len__(self) -> int:
        return len(self._fresh) + self._sorted

    def add(self, command: AnyCommand) -> bool:
        """Add a command; return whether it is the only one.

        Raises TooMany if too many wait: of all commands, or of those of its namespace.
        """
        waiting = len(self._fresh) + self._sorted
        if waiting >= limits.pending_commands_namespace_max:
            self._check_room(command)
        self._fresh.append(command)
        return not waiting

    def put_first(self, commands: Iterable[AnyCommand]) -> None:
        """Add commands at the front that were in a batch and were not done."""
        if not self._sorted:
            self._fresh[:0] = commands
            self._weighed = self._weight = 0
            return
        for command in reversed(list(commands)):
            self._place_of(command).appendleft((command, self._cost(command)))
            self._sorted += 1

    def take_out(self, lanes: Container[int]) -> list[AnyCommand]:
        """Remove the commands that may be done in other lanes, and return them, in order within each namespace."""
        waiting = self._waiting()
        taken = [command for command in waiting if command.lane in lanes]
        if taken:
            self._fresh = [command for command in waiting if command.lane not in lanes]
            self._weighed = self._weight = self._sorted = 0
            self._rest.lines.clear()
            self._urgent.lines.clear()
            self._first.clear()
        return taken

    def has(self, lanes: Container[int]) -> bool:
        """Return whether a command waits that may be done in other lanes."""
        return any(command.lane in lanes for command in self._waiting())

    def _waiting(self) -> list[AnyCommand]:
        if not self._sorted:
            return self._fresh
        places = [self._first, *(line.commands for part in (self._urgent, self._rest) for line in part.lines.values())]
        return [*(command for place in places for command, _ in place), *self._fresh]

    @property
    def full(self) -> bool:
        """Return whether there are enough commands for a batch."""
        if self._sorted:
            return True
        fresh, weighed = self._fresh, self._weighed
        if weighed < len(fresh):
            total = self._weight
            for command in fresh[weighed:] if weighed else fresh:
                weight = command.weight()
                total += weight if weight <= _LIGHT else self._weigh(command, weight)
            self._weighed, self._weight = len(fresh), total
        return self._weight >= self._bound() or len(fresh) >= limits.batch_commands_max

    def take(self) -> list[AnyCommand]:
        """Take the next batch: all commands or, if they are too many for one batch, a share for each namespace."""
        if not self.full:
            all_waiting, self._fresh = self._fresh, []
            self._weighed = self._weight = 0
            return all_waiting
        self._sort()
        batch: list[AnyCommand] = []
        bound = room = self._bound()
        first = self._first
        while first and room > 0 and len(batch) < limits.batch_commands_max:
            command, weight = first.popleft()
            batch.append(command)
            room -= weight
        least = bound // _TURNS_OF_BATCH
        for part in (self._urgent, self._rest):
            if part.lines:
                room -= part.take(batch, max(room, least), bound)
        self._sorted -= len(batch)
        return batch

    def _sort(self) -> None:
        for command in self._fresh:
            self._place_of(command).append((command, self._cost(command)))
        self._sorted += len(self._fresh)
        self._fresh = []
        self._weighed = self._weight = 0
        if self._is_shared:
            self._small_until = self._now() + limits.batch_shared_ms / 1000

    def _cost(self, command: AnyCommand) -> int:
        weight = command.weight()
        return weight if weight <= _LIGHT else self._weigh(command, weight)

    def _place_of(self, command: AnyCommand) -> deque[tuple[AnyCommand, int]]:
        namespace = command.tenant()
        if namespace is None:
            return self._first
        return (self._urgent if command.urgent else self._rest).line(namespace).commands

    @property
    def _is_shared(self) -> bool:
        """Whether commands of several namespaces wait."""
        urgent, rest = self._urgent.lines, self._rest.lines
        return len(urgent) > 1 or len(rest) > 1 or (bool(urgent) and bool(rest) and urgent.keys() != rest.keys())

    def _bound(self) -> int:
        shared = (
            self._is_shared
            or (self._fair_share is not None and self._fair_share.shared)
            or (self._small_until and self._now() < self._small_until)
        )
        return limits.batch_weight_shared_max if shared else limits.batch_weight_max

    def _check_room(self, command: AnyCommand) -> None:
        """Refuse a command if there is no room for it. Called only if very many commands wait."""
        namespace = command.tenant()
        if namespace is not None:
            self._sort()
            if self._urgent.length(namespace) + self._rest.length(namespace) >= limits.pending_commands_namespace_max:
                raise TooMany("Too many requests of this namespace are waiting to be written. Slow down and retry.")
        if len(self) >= limits.pending_commands_max:
            raise TooMany("Too many requests are waiting to be written. Slow down and retry.")
