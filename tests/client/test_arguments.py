"""Arguments and results of tasks: programs of other versions, models of pydantic, and what cannot be encoded."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from penstock.client import Client, JobFailed, Tasks
from penstock.client._names import NAME_CHARS_MAX, new_queue
from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.doors.jobs.base import check_queue_name
from tests.client.test_tasks import run
from tests.client.test_worker import PATIENCE_S, until, work


class Line(pydantic.BaseModel):
    sku: str
    count: int = pydantic.Field(gt=0, alias="n")


class Basket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    lines: list[Line]
    total: decimal.Decimal

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        return len(self.lines)


def enqueued(client: Client, tasks: Tasks, **args: Any) -> str:
    """Enqueue a call as another version of the program would."""
    return client.jobs.push(tasks.queue, {"task": "send", "args": args}, max_attempts=5, backoff=0)


def test_a_task_with_other_parameters_runs_what_was_enqueued_before(
    tasks: Tasks, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """One parameter is new and has a default, one was removed."""

    @tasks.task(name="send")
    def send(to: str, subject: str = "Hello", *, retries: int = 3, tags: list[str] | None = None) -> list[Any]:
        return [to, subject, retries, tags]

    older = enqueued(client, tasks, to="ada", subject="Hi", bcc="eve")
    newer = enqueued(client, tasks, to="ada", urgent=True, bcc="joe")
    with run(tasks):
        assert client.jobs.wait(older, PATIENCE_S).result == ["ada", "Hi", 3, None]
        assert client.jobs.wait(newer, PATIENCE_S).result == ["ada", "Hello", 3, None]
    assert [client.jobs.get(each).attempts for each in (older, newer)] == [0, 0]
    warned = [message for message in caplog.messages if "ignored" in message]
    assert warned == [
        "send has no parameter 'bcc': the argument of that name is ignored",
        "send has no parameter 'urgent': the argument of that name is ignored",
    ]


def test_an_argument_that_does_not_fit_is_tried_again_unless_the_task_says_otherwise(tasks: Tasks, client: Client) -> None:
    @tasks.task(name="send")
    def send(to: str, count: int) -> None: ...

    @tasks.task(name="strict", bad_arguments="fail")
    def strict(to: str) -> None: ...

    wrong, missing = enqueued(client, tasks, to="ada", count="many"), enqueued(client, tasks, to="ada")
    final = client.jobs.push(tasks.queue, {"task": "strict", "args": {}}, max_attempts=5, backoff=0)
    listed = client.jobs.push(tasks.queue, {"task": "send", "args": ["ada", 1]}, max_attempts=5, backoff=0)
    with run(tasks):
        until(lambda: all(client.jobs.state(each) == "failed" for each in (wrong, missing, final, listed)))
    assert [client.jobs.get(each).attempts for each in (wrong, missing, final, listed)] == [5, 5, 1, 5]
    of = "of test_an_argument_that_does_not_fit_is_tried_again_unless_the_task_says_otherwise.<locals>"
    assert client.jobs.get(wrong).error == f"TypeError: Wrong argument count {of}.send: Expected `int`, got `str`"
    assert client.jobs.get(missing).error == f"TypeError: Argument count {of}.send is missing, and has no default"
    assert client.jobs.get(final).error == f"Argument to {of}.strict is missing, and has no default"
    assert client.jobs.get(listed).error == f"TypeError: Wrong arguments {of}.send: Expected `object`, got `array`"
    with pytest.raises(ValueError, match="bad_arguments must be one of retry, fail"):
        tasks.task(bad_arguments="ignore")(work)  # type: ignore[call-overload]


def test_where_it_is_enqueued_a_wrong_argument_is_refused(tasks: Tasks) -> None:
    @tasks.task
    def send(to: str, count: int = 1) -> None: ...

    for args, kwargs in ((("a", "b"), {}), ((), {"count": 1}), (("a",), {"cc": "b"})):
        with pytest.raises(TypeError):
            send.enqueue(*args, **kwargs)


def test_models_of_pydantic(tasks: Tasks, client: Client) -> None:
    @tasks.task(max_attempts=1)
    def pay(basket: Basket, lines: dict[str, Line] | None = None, gift: Line | None = None) -> Basket:
        assert isinstance(basket, Basket)
        assert lines is not None
        return Basket(lines=[*basket.lines, *lines.values()], total=basket.total * 2)

    one, two = Line(sku="a", n=1), Line(sku="b", n=2)
    with run(tasks):
        handle = pay.enqueue(Basket(lines=[one], total=decimal.Decimal("1.10")), lines={"x": two})
        assert handle.result(PATIENCE_S) == Basket(lines=[one, two], total=decimal.Decimal("2.20"))
        assert handle.job().data["args"] == {
            "basket": {"lines": [{"sku": "a", "n": 1}], "total": "1.10"},
            "lines": {"x": {"sku": "b", "n": 2}},
            "gift": None,
        }
        wrong = client.jobs.push(tasks.queue, {"task": pay.name, "args": {"basket": {"lines": [], "total": "x"}}})
        until(lambda: client.jobs.get(wrong).error is not None)
    assert "Wrong argument basket of" in str(client.jobs.get(wrong).error)
    with pytest.raises(TypeError, match="Wrong argument basket of"):
        pay.enqueue({"lines": "none"})  # type: ignore[arg-type]
    job_id = client.jobs.push(f"{tasks.queue}-raw", {"basket": one})
    assert client.jobs.get(job_id).data == {"basket": {"sku": "a", "n": 1}}


@dataclass
class Order:
    items: list[Any]


def test_what_cannot_be_encoded_is_named(tasks: Tasks, client: Client, queue: str) -> None:
    @tasks.task
    def send(to: str, order: Order | None = None, extra: Any = None) -> None: ...

    with pytest.raises(TypeError, match=r"send: argument order\.items\[1\]\.price cannot be encoded as JSON: .*complex"):
        send.enqueue("ada", Order([1, {"price": 1j}]))
    with pytest.raises(TypeError, match=r"send: argument extra cannot be encoded as JSON: .*object"):
        send.enqueue("ada", extra=object())
    with pytest.raises(TypeError, match=r"^data\['a b'\]\[0\] cannot be encoded as JSON: .*object"):
        client.jobs.push(queue, {"a b": [object()]})
    with pytest.raises(TypeError, match=r"^jobs\[1\]\.data\.x cannot be encoded as JSON: .*object"):
        client.jobs.push_many(queue, [1, {"x": object()}])
    with pytest.raises(ValueError, match=r"^data\.name cannot be encoded as JSON: .*surrogates"):
        client.jobs.push(queue, {"name": "\udcff"})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match=r"^data\[0\]\[0\].* cannot be encoded as JSON: .*recursion"):
        client.jobs.push(queue, endless)
    assert client.queues.counts(queue).waiting == 0


def test_an_annotation_that_nothing_can_be_checked_against_is_refused_at_once(tasks: Tasks) -> None:
    def send(to: Line | str) -> None: ...

    with pytest.raises(TypeError, match="Type unions"):
        tasks.task(send)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a?b", "q" * (NAME_CHARS_MAX + 1), "a\0b", "a\n"])
def test_a_bad_name_of_a_queue_says_so(tasks: Tasks, client: Client, name: str) -> None:
    with pytest.raises(InvalidInput):  # the server's own rule
        check_queue_name(name)
    with pytest.raises(ValueError, match=r"cannot be the name of a queue or namespace\. A name has 1 to 256 letters"):
        new_queue(name)
    if name:  # without one, it is the group's
        with pytest.raises(ValueError, match="cannot be the name of a queue"):
            tasks.task(queue=name)(work)
    with pytest.raises(ValueError, match="cannot be the name of a queue"):
        client.crons.add("c", name, schedule="@daily")


def test_what_cannot_be_part_of_a_url_is_no_queue(client: Client) -> None:
    assert limits.name_chars_max == NAME_CHARS_MAX
    for name in ("a/b", ".", "..", ""):
        for call in (client.jobs.push, client.jobs.pull, client.queues.counts, client.queues.pause, client.workers.all):
            with pytest.raises(ValueError, match="cannot be the name of a queue"):
                call(name)
        with pytest.raises(ValueError, match="cannot be the name of a queue"):
            client.publish("ns", name, b"x")
    with pytest.raises(TypeError, match="must be a text, not int"):
        client.jobs.push(5, 1)  # type: ignore[arg-type]


def test_an_option_that_does_not_exist_is_named_with_the_one_that_may_be_meant(client: Client, queue: str) -> None:
    with pytest.raises(TypeError, match=r"There is no option 'prioritty'\. Did you mean 'priority'\?"):
        client.jobs.push(queue, 1, prioritty=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"There is no option 'x'\. Options of a job: priority, "):
        client.jobs.push(queue, 1, x=5)  # type: ignore[call-arg]


def test_a_job_that_names_its_task_oddly_does_not_take_the_worker_down(tasks: Tasks, client: Client) -> None:
    @tasks.task
    def fine() -> str:
        return "fine"

    client.jobs.push_many(tasks.queue, [{"task": []}, {"task": {}}, {"task": None}, [], None, 5, "x"])
    with run(tasks):
        assert fine.enqueue().result(PATIENCE_S) == "fine"


def test_the_type_of_a_result_is_told_apart_from_a_failure(tasks: Tasks) -> None:
    @tasks.task(max_attempts=1)
    def lies() -> int:
        return "text"  # type: ignore[return-value]

    with run(tasks), pytest.raises(TypeError, match="does not match the return type of the task") as wrong:
        lies.enqueue().result(PATIENCE_S)
    assert not isinstance(wrong.value, JobFailed)
