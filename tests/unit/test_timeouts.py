"""A test without an end fails with where it waited."""

import threading

import pytest
import trio

from tests import overdue


async def wait_for_nothing() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)


async def in_a_task() -> None:  # as pytest-trio runs tests
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_nothing)


def test_one_in_trio_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "MOST_S", 0.01)
    with pytest.raises(pytest.fail.Exception, match="wait_for_nothing"), overdue.bounded():
        trio.run(in_a_task)


def test_another_is_ended_where_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "MOST_S", 0.01)
    with pytest.raises(pytest.fail.Exception, match=r"threading\.py"), overdue.bounded():
        threading.Event().wait()


def test_an_error_stays_itself() -> None:
    with pytest.raises(ZeroDivisionError), overdue.bounded():
        1 / 0  # noqa: B018
