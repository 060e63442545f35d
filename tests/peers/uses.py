"""When the peers of a test run are not used any more."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest


class PeerUses:
    """When tests use the peers of the run: each is stopped before the first test after all of its users. Idle ones
    would take a tenth of the CPU."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are marks of the tests that use the peers. Each peer comes before those that it needs itself."""
        self._names = names
        self._place: dict[str, int] = {}  # of each test
        self._last: dict[str, int] = {}  # place of each peer's last user
        self._running: dict[str, ExitStack] = {}

    def note(self, items: Sequence[pytest.Item], group_of: Callable[[str], str] = str) -> None:
        """Note the order of all tests. A process runs whole groups of them, in the order of their first tests.
        `group_of` returns the group of a test."""
        groups: dict[str, int] = {}
        for number, item in enumerate(items):
            place = self._place[item.nodeid] = groups.setdefault(group_of(item.nodeid), number)
            for name in self._names:
                if item.get_closest_marker(name):
                    self._last[name] = max(self._last.get(name, 0), place)

    @contextmanager
    def running(self, name: str, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` once no test uses the peer any more, or at the end of the run."""
        with ExitStack() as stack:
            stack.callback(stop)
            self._running[name] = stack
            yield

    def stop_unneeded(self, item: pytest.Item) -> None:
        """Stop the peers that neither this test nor a later one uses."""
        for name in self._names:
            if name in self._running and self._last.get(name, 0) < self._place[item.nodeid]:
                self._running.pop(name).close()
