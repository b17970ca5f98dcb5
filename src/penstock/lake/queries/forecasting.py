"""A forecast of a series of depths, with its error. Plain numbers: no clock, no tables.

Three models compete: no change, Holt's damped trend, and with three seasons or more the same with a season added (Holt and
Winters). Each is fitted on the first two thirds and has to forecast the rest, from several origins. So the best model, and
its error for each number of steps ahead, are measured, not assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The smallest number of points for a forecast.
POINTS_MIN: Final = 24
#: A season is used only if the data has this many of it.
SEASONS_MIN: Final = 3
#: The number of origins of the backtest's forecasts.
ORIGINS_MAX: Final = 24
#: The share of actual values that should be between the lowest and the highest forecast.
COVERAGE: Final = 0.9

_ALPHAS: Final = (0.1, 0.3, 0.6, 0.9)
_BETAS: Final = (0.02, 0.1, 0.3)
#: The damping of a trend per step. The best value for one step ahead says little about it, so each value competes.
_PHIS: Final = (0.8, 0.95, 0.995)
_GAMMAS: Final = (0.1, 0.4)


class Smoothing(NamedTuple):
    """The weights of a model. ``season``: steps; 0: none. Without ``alpha``, the forecast is no change."""

    alpha: float = 1.0
    beta: float = 0.0
    phi: float = 0.0
    gamma: float = 0.0
    season: int = 0

    @property
    def name(self) -> str:
        """The name of the model."""
        if self.season:
            return "holt-winters"
        return "holt-damped" if self.beta else "last-value"


class Forecast(NamedTuple):
    """The expected values, step by step, and their bounds. ``error``: mean absolute error in the backtest."""

    model: str
    expected: list[float]
    lowest: list[float]
    highest: list[float]
    error: float
    naive_error: float  #: of the forecast of no change, in the same backtest
    origins: int  #: number of origins in the backtest


class _Level:
    """A level, a trend and a season, as learned so far."""

    __slots__ = ("level", "season", "step", "trend")

    def __init__(self, values: Sequence[float], smoothing: Smoothing) -> None:
        period = smoothing.season
        if period:
            first, second = sum(values[:period]) / period, sum(values[period : 2 * period]) / period
            self.level, self.trend = first, (second - first) / period
            self.season = [each - first for each in values[:period]]
        else:
            self.level, self.trend, self.season = values[0], 0.0, []
        self.step = 0

    def take(self, value: float, smoothing: Smoothing) -> float:
        """Learn a value; return its difference from the expected one."""
        alpha, beta, phi, gamma, period = smoothing
        place = self.step % period if period else 0
        seasonal = self.season[place] if period else 0.0
        ahead = self.level + phi * self.trend
        level = alpha * (value - seasonal) + (1 - alpha) * ahead
        self.trend = beta * (level - self.level) + (1 - beta) * phi * self.trend
        if period:
            self.season[place] = gamma * (value - level) + (1 - gamma) * seasonal
        self.level = level
        self.step += 1
        return value - ahead - seasonal

    def ahead(self, steps: int, smoothing: Smoothing) -> list[float]:
        """Forecast so many steps. No value is below 0."""
        phi, period = smoothing.phi, smoothing.season
        damp, total, found = 1.0, 0.0, []
        for each in range(steps):
            damp *= phi
            total += damp
            seasonal = self.season[(self.step + each) % period] if period else 0.0
            found.append(max(0.0, self.level + total * self.trend + seasonal))
        return found


def forecast(values: Sequence[float], steps: int, season: int = 0) -> Forecast | None:
    """Forecast the next ``steps`` values; None if there are too few values. ``season``: its length in steps, 0: none."""
    if len(values) < POINTS_MIN or steps < 1:
        return None
    train = max(POINTS_MIN // 2, len(values) * 2 // 3)
    seasons = [0, season] if season > 1 and train >= SEASONS_MIN * season else [0]
    candidates = [Smoothing(), *(_fitted(values[:train], each, phi) for each in seasons for phi in _PHIS)]
    trials = [(_backtest(values, train, steps, each), each) for each in candidates]
    naive = _mean_error(trials[0][0])
    errors, best = min(trials, key=lambda trial: _mean_error(trial[0]))
    state = _Level(values, best)
    for value in values:
        state.take(value, best)
    expected = state.ahead(steps, best)
    margins = _margins(errors, steps)
    return Forecast(
        best.name,
        expected,
        [max(0.0, each - margin) for each, margin in zip(expected, margins, strict=True)],
        [each + margin for each, margin in zip(expected, margins, strict=True)],
        _mean_error(errors),
        naive,
        len(errors[0]) if errors else 0,
    )


def reaches_nothing(path: Sequence[float]) -> int | None:
    """Return after how many steps less than half a job is left; None if that does not happen."""
    return next((number for number, each in enumerate(path, 1) if each < 0.5), None)


def _fitted(values: Sequence[float], season: int, phi: float) -> Smoothing:
    """Return the weights with the smallest error one step ahead."""
    gammas = _GAMMAS if season else (0.0,)
    tried = [Smoothing(alpha, beta, phi, gamma, season) for alpha in _ALPHAS for beta in _BETAS for gamma in gammas]
    return min(tried, key=_one_step_error(values))


def _one_step_error(values: Sequence[float]) -> Callable[[Smoothing], float]:
    def measure(smoothing: Smoothing) -> float:
        state = _Level(values, smoothing)
        return sum(abs(state.take(value, smoothing)) for value in values)

    return measure


def _backtest(values: Sequence[float], train: int, steps: int, smoothing: Smoothing) -> list[list[float]]:
    """Forecast from origins after ``train``; return the errors, a list for each number of steps ahead."""
    state = _Level(values, smoothing)
    for value in values[:train]:
        state.take(value, smoothing)
    stride = max(1, (len(values) - train) // ORIGINS_MAX)
    errors: list[list[float]] = [[] for _ in range(min(steps, len(values) - train))]
    for place in range(train, len(values)):
        if (place - train) % stride == 0:
            for ahead, (said, came) in enumerate(zip(state.ahead(len(errors), smoothing), values[place:], strict=False)):
                errors[ahead].append(said - came)
        state.take(values[place], smoothing)
    return errors


def _mean_error(errors: Sequence[Sequence[float]]) -> float:
    count = sum(map(len, errors))
    return sum(abs(each) for ahead in errors for each in ahead) / count if count else 0.0


def _margins(errors: Sequence[Sequence[float]], steps: int) -> list[float]:
    """Return the bounds of most errors, by steps ahead: never smaller than for fewer steps.

    For many steps ahead there were few origins, or none; there the bound grows with the square root of the steps.
    """
    found: list[float] = []
    most = 0.0
    for ahead in range(steps):
        seen = sorted(abs(each) for each in errors[ahead]) if ahead < len(errors) else []
        if len(seen) >= 5:
            most = max(most, seen[min(len(seen) - 1, int(COVERAGE * len(seen)))])
        elif found:
            most = max(most, found[-1] * ((ahead + 1) / ahead) ** 0.5)
        found.append(most)
    return found
