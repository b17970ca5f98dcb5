"""Signals of an engine."""

from __future__ import annotations

from structlog.testing import capture_logs

from penstock.engine.signals import Signal


def test_subscribers_are_called_in_order_until_they_end_it() -> None:
    signal: Signal[[int]] = Signal()
    assert not signal.subscribers
    calls: list[tuple[str, int]] = []
    end_first = signal.subscribe(lambda number: calls.append(("first", number)))
    end_second = signal.subscribe(lambda number: calls.append(("second", number)))
    signal.emit(1)
    end_first()
    end_first()
    signal.emit(2)
    end_second()
    signal.emit(3)
    assert calls == [("first", 1), ("second", 1), ("second", 2)]
    assert not signal.subscribers


def test_a_subscriber_that_fails_does_not_keep_the_others_from_being_called() -> None:
    signal: Signal[[]] = Signal()
    calls: list[str] = []

    def fail() -> None:
        raise RuntimeError("broken")

    signal.subscribe(fail)
    signal.subscribe(lambda: calls.append("called"))
    with capture_logs() as logged:
        signal.emit()
    assert calls == ["called"]
    assert [each["event"] for each in logged] == ["a subscriber of a signal failed"]
