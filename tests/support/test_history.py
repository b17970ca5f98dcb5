"""The judge itself: it must be able to find each kind of wrong."""

from __future__ import annotations

from tests.support.history import Ack, Delivery, History, judge


def delivery(at: float, token: str = "t1", lease_ms: int = 1_000) -> Delivery:
    return Delivery(at=at, job="j", token=token, attempt=0, lease_ms=lease_ms, epoch=1, asked_at=at - 0.01)


def history(*deliveries: Delivery, acks: tuple[Ack, ...] = ()) -> History:
    made = History(attempted={"a"}, acknowledged={"a": "j"})
    made.deliveries["a"] = list(deliveries)
    made.acks["a"] = list(acks)
    return made


def test_a_plain_life_is_clean() -> None:
    verdict = judge(history(delivery(1), acks=(Ack(1.1, 1.2, "j", "t1", "ok"),)))
    assert verdict.is_clean
    assert (verdict.acknowledged, verdict.delivered, verdict.duplicates) == (1, 1, 0)


def test_what_never_comes_out_is_lost() -> None:
    made = History(attempted={"a"}, acknowledged={"a": "j"})
    assert judge(made).lost == {"a"}
    made.left_over = {"a"}
    assert judge(made).is_clean


def test_what_nobody_put_in_is_unexpected() -> None:
    made = history(delivery(1))
    made.attempted = set()
    assert judge(made).unexpected == {"a"}


def test_what_was_refused_must_not_come_out() -> None:
    made = history(delivery(1))
    made.refused = {"a"}
    assert judge(made).failed_seen == {"a"}


def test_a_delivery_after_an_answered_ack_is_a_resurrection() -> None:
    verdict = judge(history(delivery(1), delivery(5, "t2"), acks=(Ack(1.1, 1.2, "j", "t1", "ok"),)))
    assert verdict.resurrected == {"a"}


def test_a_second_delivery_within_the_lease_is_two_holders_and_unexplained() -> None:
    verdict = judge(history(delivery(1), delivery(1.5, "t2")))
    assert verdict.two_holders == {"a"}
    assert verdict.unexplained == {"a"}


def test_a_second_delivery_after_the_lease_is_explained() -> None:
    verdict = judge(history(delivery(1), delivery(2.5, "t2")))
    assert verdict.is_clean
    assert verdict.duplicates == 1


def test_an_old_token_that_is_accepted_after_a_new_delivery_is_stale() -> None:
    verdict = judge(history(delivery(1), delivery(2.5, "t2"), acks=(Ack(3, 3.1, "j", "t1", "ok"),)))
    assert verdict.stale_ok == {"a"}


def test_a_lower_token_of_a_later_delivery_is_not_stale() -> None:
    verdict = judge(history(delivery(1, "t2"), delivery(2.5, "t1"), acks=(Ack(3, 3.1, "j", "t1", "ok"),)))
    assert verdict.is_clean


def test_a_long_poll_that_was_asked_first_and_served_last_is_the_second_delivery() -> None:
    first = Delivery(at=2.0, job="j", token="t1", attempt=0, lease_ms=0, epoch=1, asked_at=1.9)  # failed, so given up
    second = Delivery(at=2.1, job="j", token="t2", attempt=1, lease_ms=1_000, epoch=1, asked_at=1.0)
    assert judge(history(second, first)).is_clean
