from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.webui import limits
from eagle_chat.webui.service import EngineService, Job, Waiting
from tests.patience import PATIENCE


class Parts:
    """Work whose steps a test lets happen one at a time."""

    def __init__(self, results: list[str]) -> None:
        self.results, self.go, self.ran = results, threading.Semaphore(0), list[str]()
        self.ended = threading.Event()

    def __call__(self, job: Job) -> Iterator[str]:
        try:
            for result in self.results:
                assert self.go.acquire(timeout=PATIENCE)
                if job.stopping:
                    return
                self.ran.append(result)
                yield result
        finally:
            self.ended.set()

    def finish(self) -> None:
        self.go.release(len(self.results) + 1)


def started(load: Any = lambda: "engine", **options: Any) -> EngineService:
    service = EngineService(load, **options)
    service.start()
    return service


def results(job: Job) -> list[Any]:
    return [one for batch in job.batches() if not isinstance(batch, Waiting) for one in batch]


def test_jobs_run_one_after_the_other_in_the_order_they_came() -> None:
    service = started()
    works = [Parts([f"{name}{step}" for step in range(3)]) for name in "abc"]
    jobs = [service.submit(f"owner {place}", work) for place, work in enumerate(works)]
    works[1].finish()
    works[2].finish()
    assert works[1].ran == []  # the first one is not through
    assert service.place_of(jobs[2]).ahead == 2
    works[0].finish()
    assert [results(job) for job in jobs] == [["a0", "a1", "a2"], ["b0", "b1", "b2"], ["c0", "c1", "c2"]]


def test_who_waits_is_told_how_many_are_in_front() -> None:
    service = started()
    first, second = Parts(["a"]), Parts(["b"])
    service.submit("anna", first)
    waiting = service.submit("ben", second).batches()
    assert next(waiting) == Waiting(ahead=1, loading=False)
    assert service.status.jobs == 2
    first.finish()
    second.finish()
    assert [batch for batch in waiting if not isinstance(batch, Waiting)] == [["b"]]


def test_a_consumer_that_leaves_ends_its_job_and_the_next_one_runs() -> None:
    service = started()
    left, next_one = Parts(["a", "b", "c"]), Parts(["x"])
    consumer = service.submit("anna", left).batches()
    left.go.release()
    assert next(consumer) == ["a"]
    consumer.close()
    left.finish()
    assert left.ended.wait(PATIENCE)
    assert left.ran == ["a"]
    next_one.finish()
    assert results(service.submit("ben", next_one)) == ["x"]


def test_one_job_for_an_owner_and_a_queue_that_ends() -> None:
    service = started()
    work = Parts(["a"])
    service.submit("anna", work)
    with pytest.raises(UserError, match="one question at a time"):
        service.submit("anna", Parts([]))
    for number in range(limits.WAITING - 1):
        service.submit(f"owner {number}", Parts([]))
    with pytest.raises(UserError, match="found it full"):
        service.submit("ben", Parts([]))
    work.finish()


def test_a_fault_in_one_job_is_told_to_its_owner_and_the_others_go_on() -> None:
    service = started()

    def broken(_job: Job) -> Iterator[str]:
        yield "a"
        raise RuntimeError("out of memory")

    batches = service.submit("anna", broken).batches()
    with pytest.raises(EagleChatError, match="RuntimeError: out of memory"):
        list(batches)
    good = Parts(["x"])
    good.finish()
    assert results(service.submit("ben", good)) == ["x"]


def test_questions_asked_while_the_model_loads_are_answered_when_it_is_there() -> None:
    there = threading.Event()

    def load() -> str:
        assert there.wait(PATIENCE)
        return "engine"

    service = started(load)
    work = Parts(["a"])
    work.finish()
    batches = service.submit("anna", work).batches()
    assert service.status.phase == "loading"
    assert next(batches) == Waiting(ahead=0, loading=True)
    there.set()
    assert [batch for batch in batches if not isinstance(batch, Waiting)] == [["a"]]
    assert service.status.phase == "ready"


def test_a_model_that_cannot_be_loaded_is_said_to_all_who_ask() -> None:
    go = threading.Event()

    def load() -> Any:
        assert go.wait(PATIENCE)
        raise UserError("a target expected, found none: check --base")

    service = started(load)
    early = service.submit("anna", Parts(["a"]))
    go.set()
    with pytest.raises(UserError, match="check --base"):
        list(early.batches())
    assert (service.status.phase, service.status.message) == ("failed", "a target expected, found none: check --base")
    with pytest.raises(UserError, match="check --base"):
        service.submit("ben", Parts(["a"]))


def test_other_heads_are_read_once_and_only_those_that_were_named() -> None:
    read: list[str] = []

    def change(engine: Any, name: str) -> Any:
        read.append(name)
        return f"{engine} with {name}"

    service = started(change=change, heads=("other",))
    found: list[Any] = []

    def work(_job: Job) -> Iterator[str]:
        found.extend([service.engine(), service.engine("other"), service.engine("other")])
        yield "done"
        service.engine("/etc/passwd")

    with pytest.raises(UserError, match="one of the page's heads expected"):
        results(service.submit("anna", work))
    assert found == ["engine", "engine with other", "engine with other"]
    assert read == ["other"]
