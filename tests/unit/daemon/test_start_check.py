"""The check of settings at a start: it waits a short time for the store, and goes on later."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tsd.daemon.lifecycle import Shutdown, _start_check
from tsd.errors import StoreDown, UnfitSettings

UNFIT = UnfitSettings("another salt")
WAIT_S, AGAIN_S = 3.0, 7.0


class Store:
    """Takes its time for each check, and then has its next answer."""

    def __init__(self, took_s: float, *answers: Exception | None) -> None:
        self.took_s, self.answers = took_s, list(answers)

    async def check(self) -> None:
        """See Tables."""
        await trio.sleep(self.took_s)
        if (error := self.answers.pop(0)) is not None:
            raise error


@pytest.mark.parametrize(
    ("store", "start_s", "stop_s"),
    [
        (Store(1, None), 1, None),
        (Store(0, StoreDown("gone"), None), 0, None),
        (Store(0, StoreDown("gone"), StoreDown("gone"), UNFIT), 0, 2 * AGAIN_S),
        (Store(60, UNFIT), WAIT_S, 60),
        (Store(60, StoreDown("timeout"), UNFIT), WAIT_S, 120 + AGAIN_S),
    ],
    ids=["it fits", "down, then it fits", "down, then other settings", "slow", "it hangs, then other settings"],
)
async def test_start_goes_on_without_a_store_that_is_asked_again(
    autojump_clock: MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    store: Store,
    start_s: float,
    stop_s: float | None,
) -> None:
    monkeypatch.setattr("tsd.daemon.lifecycle.CHECK_WAIT_S", WAIT_S)
    monkeypatch.setattr("tsd.daemon.lifecycle.CHECK_AGAIN_S", AGAIN_S)
    shutdown = Shutdown(trio.Event())
    daemon: Any = SimpleNamespace(tables=store)
    begun = trio.current_time()
    await _start_check(daemon, shutdown, nursery)
    assert trio.current_time() - begun == pytest.approx(start_s)
    with trio.move_on_after(1000):
        await shutdown.stop_now.wait()
    assert store.answers == []
    if stop_s is None:
        assert shutdown.unfit is None
    else:
        assert shutdown.unfit is UNFIT
        assert trio.current_time() - begun == pytest.approx(stop_s)
