"""What the driver is asked for the times of nodes, and which answers are waited for."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

pytest.importorskip("cassandra")

from tsd.errors import StoreDown, StoreError
from tsd.store.cassandra import driver
from tsd.store.cassandra.session import Contact

TIME_MS = 1_700_000_000_000
LOST = OSError("lost")


class Host(NamedTuple):
    """A node as the driver lists it."""

    name: str
    is_up: bool = True


class Future:
    """A request with an answer: a time, an error, or none yet."""

    def __init__(self, answer: int | Exception | None) -> None:
        self._answer = answer

    def add_callbacks(self, done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        if isinstance(self._answer, Exception):
            failed(self._answer)
        elif self._answer is not None:
            done([(self._answer,)])


class Cluster:
    """A cluster of the driver that is its own session."""

    def __init__(self, answers: Mapping[Host, int | Exception | None]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def connect(self) -> "Cluster":
        return self

    def get_pool_state(self) -> Mapping[Host, object]:
        return self._answers

    def execute_async(self, _cql: str, host: Host | None) -> Future:
        if host is None:
            raise LOST
        self.asked.append(host.name)
        return Future(self._answers[host])


def times(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> list[int]:
    """Return the times of nodes that are found."""
    monkeypatch.setattr(driver, "Cluster", lambda **_: cluster)
    monkeypatch.setattr(driver, "LATE_S", 0.01)
    session = driver.connect(Contact((("127.0.0.1", 9042),), timeout_s=0.01))
    return sorted(found.time_ms for found in session.times(lambda: 0.0))


def test_nodes_that_fail_or_answer_late_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({Host("a"): LOST, Host("b"): TIME_MS + 1, Host("c"): None, Host("d"): TIME_MS})
    assert times(monkeypatch, cluster) == [TIME_MS, TIME_MS + 1]
    assert sorted(cluster.asked) == ["a", "b", "c", "d"]


def test_up_to_five_nodes_that_are_up_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    up = {Host(f"up{at}"): TIME_MS for at in range(9)}
    cluster = Cluster({**up, **{Host(f"down{at}", is_up=False): None for at in range(9)}})
    assert times(monkeypatch, cluster) == [TIME_MS] * 5
    assert len(set(cluster.asked)) == 5
    assert all(name.startswith("up") for name in cluster.asked)


@pytest.mark.parametrize("answers", [{}, {Host("a"): LOST}, {Host("a"): None}, {Host("a", is_up=False): TIME_MS}])
def test_without_any_answer_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[Host, int | Exception | None]
) -> None:
    with pytest.raises(StoreError) as error:
        times(monkeypatch, Cluster(answers))
    assert isinstance(error.value, StoreDown)
