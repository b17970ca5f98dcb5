"""Handlers of ``/insights``. They check the query; a bulk process answers it."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.access.identity import ANYWHERE
from penstock.core import limits
from penstock.core.errors import InvalidInput, LakeUnavailable, LakeUnset
from penstock.doors.bulk.groups import GroupReply
from penstock.doors.bulk.service import BulkDoor
from penstock.doors.bulk.wire import ARROW, ROWS_HEADER
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import ErrorReply
from penstock.doors.http.route import JSON, File, Plain, Route
from penstock.doors.insights import wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.doors.bulk.service import BulkService
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi
    from penstock.engine.bulk.consumer_groups import ConsumerGroups

_UNITS: Final = {"m": limits.MINUTE_MS, "h": limits.HOUR_MS, "d": limits.DAY_MS}
_WINDOW: Final = BodyReader(wire.WindowQuery)
_SERIES: Final = BodyReader(wire.SeriesQuery)
_LATENCY: Final = BodyReader(wire.LatencyQuery)


class _Overview(msgspec.Struct):
    """The description of a lake, from a bulk process."""

    rows: list[wire.TableRow]
    last_batch: int | None
    known_from: int | None
    known_until: int | None
    offsets: dict[str, int]
    histories: dict[str, str]


class InsightHandlers(BulkDoor):
    """One method per route. ``lake``: its location; empty: there is none."""

    def __init__(self, engine: EngineApi, service: BulkService, groups: ConsumerGroups, lake: str) -> None:
        super().__init__(engine, service)
        self._groups = groups
        self._lake = lake

    async def overview(self, req: Request) -> wire.InsightsReply:
        namespace = self._whose(req)
        made = await self._ask("overview", {"namespace": namespace})
        found = msgspec.json.decode(made["body"], type=_Overview)
        written = max((each.written_at or 0 for each in found.rows if each.table == "gold/minutes"), default=None)
        groups = [GroupReply(*each) for each in await self._groups.statuses(namespace)]
        return wire.InsightsReply(
            ok=True,
            tables=found.rows,
            last_batch=found.last_batch,
            known_from=found.known_from,
            known_until=found.known_until,
            written_at=written,
            lag_ms=None if written is None else max(0, self.engine.clock.now_ms() - written),
            shards=self._lags(found.offsets, found.histories),
            groups=groups,
        )

    async def series(self, req: Request) -> Plain | File:
        query = _SERIES.parse_query(req)
        more = {} if query.columns is None else {"columns": _listed(query.columns)}
        return await self._answer(req, "series", query, **more)

    async def latency(self, req: Request) -> Plain | File:
        query = _LATENCY.parse_query(req)
        name = "latency-whole" if query.whole == "yes" else "latency"
        return await self._answer(req, name, query, kind=query.kind, quantiles=_quantiles(query.q))

    async def _windowed(self, name: str, req: Request) -> Plain | File:
        return await self._answer(req, name, _WINDOW.parse_query(req))

    async def _answer(self, req: Request, name: str, query: wire.WindowQuery, **more: Any) -> Plain | File:
        namespace = self._whose(req)
        is_arrow = ARROW in req.header("accept", "")
        question = {
            "namespace": namespace,
            "queue": query.queue,
            "start": query.from_,
            "end": query.to,
            "step": None if query.step is None else _step(query.step),
            "by": query.by,
            "limit": query.limit,
            "steps_max": limits.insight_steps_max,
            "rows_max": limits.insight_rows_max if is_arrow else limits.insight_json_rows_max,
            **more,
        }
        if is_arrow:
            return await self._file(name, question)
        return Plain((await self._ask(name, question))["body"], JSON)

    async def _ask(self, name: str, question: dict[str, Any]) -> Any:
        return await self.service.processes.run("insight", **self._task(name, question))

    async def _file(self, name: str, question: dict[str, Any]) -> File:
        made = await self.service.answer("insight", **self._task(name, question))
        return File(made["path"], ARROW, made["bytes"], ((ROWS_HEADER, str(made["rows"])),))

    def _task(self, name: str, question: dict[str, Any]) -> dict[str, Any]:
        """Return the task for a bulk process. Raises LakeUnset, LakeUnavailable."""
        if not self._lake:
            raise LakeUnset
        if importlib.util.find_spec("deltalake") is None:
            raise LakeUnavailable
        question |= {"read_rows_max": limits.insight_read_rows_max, "now": self.engine.clock.now_ms()}
        return {"lake": self._lake, "insight": name, "question": question}

    def _whose(self, req: Request) -> str | None:
        namespace = self.namespace(req)
        return None if namespace == ANYWHERE else namespace

    def _lags(self, offsets: dict[str, int], histories: dict[str, str]) -> list[wire.LagRow]:
        """Compare the positions of the lake with the ends of the journals."""
        found = []
        for number, engine in enumerate(self.engine.engines):
            read_to = offsets.get(str(number))
            if read_to is not None:
                history, durable_up_to = str(engine.store.history), engine.durable_up_to
                replaced = histories.get(str(number), history) != history
                if not engine.store.capabilities.is_shared:  # else another server may have newer events
                    replaced = replaced or read_to > durable_up_to
                found.append(wire.LagRow(number, read_to, durable_up_to, max(0, durable_up_to - read_to), replaced))
        return found

    def routes(self) -> list[Route]:
        """Return all routes under ``/insights``."""
        tag = "Insights"
        routes = [Route("GET", "/insights", self.overview, "Contents and age of the lake", tag, wire.InsightsReply)]
        told: list[tuple[str, Callable[[Request], Awaitable[Any]], str, type[msgspec.Struct], BodyReader[Any]]] = [
            ("queues", partial(self._windowed, "queues"), "Figures of queues", wire.QueueFiguresReply, _WINDOW),
            ("series", self.series, "Figures per step", wire.SeriesReply, _SERIES),
            ("latency", self.latency, "Percentiles of durations of jobs", wire.LatencyReply, _LATENCY),
            ("failures", partial(self._windowed, "failures"), "Failures by fingerprint", wire.FailuresReply, _WINDOW),
            ("backlog", partial(self._windowed, "backlog"), "Depth and age of queues", wire.BacklogReply, _WINDOW),
            ("workers", partial(self._windowed, "workers"), "Utilisation of workers", wire.UtilisationReply, _WINDOW),
            ("tenants", partial(self._windowed, "tenants"), "Use of each namespace", wire.TenantsReply, _WINDOW),
            ("slo", partial(self._windowed, "slo"), "Objectives: attainment and burn rate", wire.ObjectivesReply, _WINDOW),
            ("forecast", partial(self._windowed, "forecast"), "Forecast of the backlog", wire.ForecastReply, _WINDOW),
        ]
        routes += [
            Route("GET", f"/insights/{path}", handler, summary, tag, reply, query=query, arrow_too=True)
            for path, handler, summary, reply, query in told
        ]
        return [route._replace(namespaced=True, anywhere=True, also=((501, ErrorReply),)) for route in routes]


def _step(text: str) -> int:
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdigit() and 0 < len(number) < 8) or int(number) == 0:
        raise InvalidInput("step must be minutes, hours or days, such as 1m, 5m, 1h or 1d")
    return int(number) * unit


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(each.strip() for each in text.split(",")))


def _quantiles(text: str) -> list[float]:
    try:
        found = [float(each) for each in _listed(text)]
    except ValueError:
        found = [-1.0]
    if not all(0 <= each <= 1 for each in found):
        raise InvalidInput("q must be shares from 0 to 1, separated by commas, such as 0.5,0.99")
    if len(found) > limits.insight_quantiles_max:
        raise InvalidInput(f"q must be at most {limits.insight_quantiles_max} shares")
    return found
