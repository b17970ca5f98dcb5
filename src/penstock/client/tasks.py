"""``Tasks`` and ``@task``: functions that are called here and run in a worker, later."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, get_args, overload

from penstock.client import _settings
from penstock.client._arguments import Arguments
from penstock.client._backend import Backend, ServerBackend
from penstock.client._execute import UnknownTask
from penstock.client._names import NAME_CHARS_MAX, new_queue
from penstock.client._plain import encode
from penstock.client._task_call import TaskCall
from penstock.client.errors import Fail
from penstock.client.handle import Handle
from penstock.client.options import JobOptions, NewJob, job_fields

if TYPE_CHECKING:
    from penstock.client._async.client import AsyncClient
    from penstock.client._durations import Duration, Moment
    from penstock.client._sync.client import Client
    from penstock.client.context import JobContext

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
DEFAULT_QUEUE = "tasks"
#: What happens to a job whose arguments do not fit the task: it is retried like after any error, or is dead at once.
BadArguments = Literal["retry", "fail"]
#: Names of unknown arguments are logged once each, up to so many.
UNKNOWN_LOGGED_MAX: Final = 100

log = logging.getLogger("penstock.client")


class Task(Generic[P, C, R]):
    """A function that can be enqueued. Calling it runs it here and now, like the function itself.

    ``P`` are its parameters, ``C`` is what a call returns, ``R`` is its result: for a coroutine function, ``C`` is a
    coroutine.
    """

    def __init__(
        self,
        function: Callable[P, C],
        tasks: Tasks,
        *,
        name: str,
        queue: str,
        unique: bool | Sequence[str],
        options: JobOptions,
        bad_arguments: BadArguments = "retry",
    ) -> None:
        self.function = function
        self.name = name
        self.queue = queue
        self.is_async = inspect.iscoroutinefunction(function)
        self.arguments = Arguments(function)
        self._tasks = tasks
        self._unique = unique
        self._options = options
        self._bad_arguments: BadArguments = bad_arguments
        self._unknown: set[str] = set()
        self.__doc__ = function.__doc__
        for each in () if isinstance(unique, bool) else unique:
            if each not in self.arguments.signature.parameters:
                raise TypeError(f"unique names {each!r}, which is no parameter of {function.__qualname__}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run it here and now."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    def options(self, **options: Unpack[JobOptions]) -> Task[P, C, R]:
        """Return the same task with other options: ``send.options(priority=5).enqueue(…)``."""
        merged: JobOptions = {**self._options, **options}
        return Task(
            self.function,
            self._tasks,
            name=self.name,
            queue=self.queue,
            unique=self._unique,
            options=merged,
            bad_arguments=self._bad_arguments,
        )

    # For functions.

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call; it runs as soon as a worker is free. Raises TypeError for arguments of wrong types."""
        return self._enqueue([self._job(args, kwargs)])[0]

    def enqueue_in(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call that runs after ``delay``: seconds, or a timedelta."""
        return self._enqueue([self._job(args, kwargs, delay=delay)])[0]

    def enqueue_at(self, moment: Moment, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call that runs at a moment: a datetime with a time zone, or milliseconds since 1970."""
        return self._enqueue([self._job(args, kwargs, run_at=moment)])[0]

    def enqueue_many(self, calls: Iterable[Sequence[Any] | Mapping[str, Any]]) -> list[Handle[R]]:
        """Enqueue several calls, all or none: tuples of arguments, or mappings by name."""
        return self._enqueue([self._job_of(call) for call in calls])

    # For coroutines.

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """``enqueue`` for coroutines."""
        return (await self._aenqueue([self._job(args, kwargs)]))[0]

    async def aenqueue_in(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """``enqueue_in`` for coroutines."""
        return (await self._aenqueue([self._job(args, kwargs, delay=delay)]))[0]

    async def aenqueue_at(self, moment: Moment, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """``enqueue_at`` for coroutines."""
        return (await self._aenqueue([self._job(args, kwargs, run_at=moment)]))[0]

    async def aenqueue_many(self, calls: Iterable[Sequence[Any] | Mapping[str, Any]]) -> list[Handle[R]]:
        """``enqueue_many`` for coroutines."""
        return await self._aenqueue([self._job_of(call) for call in calls])

    def data(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Return the payload of a job that calls it: for crons, which take over its options, and for other producers."""
        job = self._job(args, kwargs)
        return TaskCall(self.name, job.data["args"], job.options)

    def handle(self, job_id: str) -> Handle[R]:
        """Return the handle of a job of this task that was enqueued earlier, by its id."""
        return Handle(job_id, self._tasks.backend, self.arguments.read_result)

    def read(self, plain: Any) -> dict[str, Any]:
        """Return stored arguments as the function takes them: for workers. Raises TypeError for arguments that do not fit.

        With ``bad_arguments="fail"``, raises Fail instead.
        """
        for name in self.arguments.unknown(plain):
            if name not in self._unknown and len(self._unknown) < UNKNOWN_LOGGED_MAX:
                self._unknown.add(name)
                log.warning("%s has no parameter %r: the argument of that name is ignored", self.name, name)
        try:
            return self.arguments.read(plain)
        except TypeError as error:
            if self._bad_arguments == "fail":
                raise Fail(str(error)) from None
            raise

    def _enqueue(self, jobs: Sequence[NewJob]) -> list[Handle[R]]:
        backend = self._tasks.backend
        return self._handles(backend, backend.push(self.queue, jobs) if jobs else [])

    async def _aenqueue(self, jobs: Sequence[NewJob]) -> list[Handle[R]]:
        backend = self._tasks.backend
        return self._handles(backend, await backend.apush(self.queue, jobs) if jobs else [])

    def _handles(self, backend: Backend, ids: Sequence[str]) -> list[Handle[R]]:
        return [Handle(job_id, backend, self.arguments.read_result) for job_id in ids]

    def _job_of(self, call: Sequence[Any] | Mapping[str, Any]) -> NewJob:
        if isinstance(call, Mapping):
            return self._job((), call)
        if isinstance(call, str | bytes):
            raise TypeError("Calls are tuples of arguments, or mappings by name: (text,) calls it with a text")
        return self._job(call, {})

    def _job(self, args: Sequence[Any], kwargs: Mapping[str, Any], **more: Unpack[JobOptions]) -> NewJob:
        plain = self.arguments.bind(args, kwargs)
        options: JobOptions = {**self._options, **more}
        if self._unique and "unique_key" not in options:
            options["unique_key"] = self._key(plain)
        return NewJob({"task": self.name, "args": plain}, **options)

    def _key(self, plain: Mapping[str, Any]) -> str:
        """Return the unique key of a call."""
        names = plain if isinstance(self._unique, bool) else self._unique
        digest = hashlib.sha256(encode([plain[name] for name in names])).hexdigest()
        return f"{self.name}:{digest[:32]}"


class Decorator(Protocol):
    """The type of ``@tasks.task(…)``."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class Tasks:
    """A group of tasks and the server they run on. ``penstock worker module:tasks`` runs its tasks.

    ``client``: a client, or the address of a server; without one, the environment variables (PENSTOCK_URL and so on) are
    read when the first task is enqueued. ``queue``: the queue of tasks that name none; ``tasks``.
    """

    def __init__(self, client: Client | AsyncClient | str | None = None, *, queue: str = DEFAULT_QUEUE) -> None:
        self.queue = queue
        self.tasks: dict[str, Task[Any, Any, Any]] = {}
        self._given = client
        self._backend: Backend | None = None

    @property
    def settings(self) -> _settings.Settings:
        """How to reach the server."""
        given = self._given
        if given is None:
            return _settings.from_environment()
        return _settings.Settings(url=given) if isinstance(given, str) else given.settings

    @property
    def backend(self) -> Backend:
        """The destination of enqueued tasks."""
        if self._backend is None:
            self._backend = ServerBackend(self.settings)
        return self._backend

    @backend.setter
    def backend(self, backend: Backend | None) -> None:
        self._backend = backend

    def connect(self, client: Client | AsyncClient | str) -> None:
        """Use another server from now on."""
        self.close()
        self._given, self._backend = client, None

    @property
    def queues(self) -> tuple[str, ...]:
        """All queues of the tasks of this group."""
        return tuple(dict.fromkeys(task.queue for task in self.tasks.values()))

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...

    @overload
    def task(
        self,
        *,
        queue: str | None = None,
        name: str | None = None,
        unique: bool | Sequence[str] = False,
        bad_arguments: BadArguments = "retry",
        **options: Unpack[JobOptions],
    ) -> Decorator: ...

    def task(self, *function: Any, **given: Any) -> Any:
        """Make a task of a function: ``@tasks.task``, or with options.

        ``queue``: the queue of its jobs; the group's. ``name``: the name by which workers find it; ``module.function``, also
        if the module is run as a program. ``unique``: of several calls with the same arguments, or the same values of the
        named ones, only one is enqueued at a time; ``unique_for`` limits how long. ``bad_arguments``: what happens to a job
        whose arguments do not fit, because another version of the program has enqueued it: ``retry``, like after any error,
        or ``fail``, dead at once; ``retry``. All others are options of its jobs: ``max_attempts``, ``backoff``, ``timeout``,
        ``priority``, …
        """
        return self._make(*function) if function else functools.partial(self._make, **given)

    def _make(
        self,
        function: Callable[..., Any],
        *,
        queue: str | None = None,
        name: str | None = None,
        unique: bool | Sequence[str] = False,
        bad_arguments: BadArguments = "retry",
        **options: Unpack[JobOptions],
    ) -> Task[Any, Any, Any]:
        known = name or f"{_module_of(function)}.{function.__qualname__}"
        if known in self.tasks:
            raise ValueError(f"There is a task {known!r} already. Give one of them another name.")
        if bad_arguments not in get_args(BadArguments):
            raise ValueError(f"bad_arguments must be one of {', '.join(get_args(BadArguments))}, not {bad_arguments!r}")
        job_fields(None, options, named=False)  # reports a mistake here, not at the first call
        made: Task[Any, Any, Any] = Task(
            function,
            self,
            name=known,
            queue=new_queue(queue or self.queue),
            unique=unique,
            options=options,
            bad_arguments=bad_arguments,
        )
        self.tasks[known] = made
        return made

    def of(self, context: JobContext) -> tuple[Task[Any, Any, Any], dict[str, Any]]:
        """Return the task that a job calls, and its arguments. Raises UnknownTask if the job calls no task of this group."""
        known = self.find(context.data)
        if known is None:
            raise UnknownTask(_called(context.data))
        return known, known.read(context.data.get("args", {}))

    def find(self, data: Any) -> Task[Any, Any, Any] | None:
        """Return the task that the payload of a job calls, if it is in this group."""
        name = data.get("task") if isinstance(data, dict) else None
        return self.tasks.get(name) if isinstance(name, str) else None

    def handle(self, job_id: str) -> Handle[Any]:
        """Return the handle of a job, by its id. Its result is a JSON value; ``task.handle`` has the task's type."""
        return Handle(job_id, self.backend, _as_it_is)

    def close(self) -> None:
        """Close the connections that functions have opened."""
        if isinstance(self._backend, ServerBackend):
            self._backend.close()

    async def aclose(self) -> None:
        """Close the connections that functions and coroutines have opened."""
        if isinstance(self._backend, ServerBackend):
            await self._backend.aclose()


def _as_it_is(plain: Any) -> Any:
    return plain


def _called(data: Any) -> str:
    """Return a description of the payload of a job that calls no task of this group, for people to read."""
    name = data.get("task") if isinstance(data, dict) else None
    return name[:NAME_CHARS_MAX] if isinstance(name, str) else "no task at all"


def _module_of(function: Callable[..., Any]) -> str:
    """Return the module of a function by the name under which others import it, even if it is run as a program."""
    module = function.__module__
    if module not in ("__main__", "__mp_main__"):  # the second is the first, in a process that multiprocessing started
        return module
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name != module:  # python -m package.module
        return str(spec.name)
    return PurePath(file).stem if file else module


#: The group of ``@task``: its server comes from the environment variables.
default_tasks = Tasks()
task = default_tasks.task
