"""Lists of queues, and sums over them, made in steps: a namespace may have very many queues.

Only the namespaces that a client may see are looked at. A list of many queues counts as a large request of the client's
namespace, and is made in slices, so that other requests are served meanwhile.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.core import limits
from penstock.core.time_slices import at_once, in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.queue import Queue
    from penstock.core.time_slices import Steps
    from penstock.store.contract import Store
    from penstock.store.sharded import ShardedStore

T = TypeVar("T")


class Asker(Protocol):
    """A request, or a command."""

    async def become_large(self) -> None:
        """Count it as a large request from now on."""


async def listed(asker: Asker, queues: int, steps: Steps[T]) -> T:
    """Do the work of a request over this many queues: at once if they are few, else as a large request, in slices."""
    if queues <= limits.queues_at_once:
        return at_once(steps)
    await asker.become_large()
    return await in_slices(steps)


def has_jobs(queue: Queue) -> bool:
    """Return whether a job was ever pushed to a queue. One without is listed at the messages door only."""
    return queue.created_at is not None


def queue_steps(
    store: Store | ShardedStore, namespaces: Iterable[str], choose: Callable[[Queue], bool]
) -> Steps[list[list[Queue]]]:
    """Return the chosen queues of each namespace, in steps."""
    found: list[list[Queue]] = []
    for namespace in namespaces:
        queues = store.queues_of(namespace)
        chosen: list[Queue] = []
        for some in slices_of(queues):
            chosen += filter(choose, some)
            yield
        found.append(chosen)
    return found


def name_steps(store: Store | ShardedStore, namespace: str, choose: Callable[[Queue], bool]) -> Steps[list[str]]:
    """Return the sorted names of the chosen queues of a namespace, in steps."""
    (queues,) = yield from queue_steps(store, (namespace,), choose)
    names: list[str] = []
    for some in slices_of(queues):
        names += [queue.key.name for queue in some]
        yield
    return (yield from sorted_steps(names))


def slices_of(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return parts of a list, each for one step."""
    for start in range(0, len(items), limits.queues_at_once):
        yield items[start : start + limits.queues_at_once]


def sorted_steps(items: Sequence[T], key: Callable[[T], Any] | None = None) -> Steps[list[T]]:
    """Return the items sorted, in steps."""
    runs: list[list[T]] = []
    for start in range(0, len(items), limits.sorted_at_once):
        runs.append(sorted(items[start : start + limits.sorted_at_once], key=key))  # type: ignore[type-var, arg-type]
        yield
    if len(runs) < 2:
        return runs[0] if runs else []
    found: list[T] = []
    for each in heapq.merge(*runs, key=key):  # type: ignore[arg-type]
        found.append(each)
        if not len(found) % limits.queues_at_once:
            yield
    return found
