"""A command that is killed at one of its changes: `python -m tests.fuzz.interrupted CHANGE before|after WORD…`."""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tsd.store.hbase.engine import HBaseStore
from tsd.store.hbase.stamped import HBaseStamped
from tsd.store.remote import ControlClient, RemoteStore
from tsd.store.rocksdb.database import Database

CALLS = {
    HBaseStore: ["put", "delete", "check_and_put", "create"],
    HBaseStamped: ["put", "delete", "delete_spans", "delete_rows"],
    RemoteStore: ["put", "delete", "check_and_put", "create", "rewrite"],
}
VERBS = ["retention", "mark_rollups_late", "flush"]  # of the control socket that change something


def _killed_at(change: int, *, after: bool) -> Callable[[], Iterator[None]]:
    """Return what wraps a change: it ends this process before or after one of them."""
    numbers = iter(range(1, 1 << 30))

    def wrap() -> Iterator[None]:
        is_last = next(numbers) >= change
        if is_last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    return wrap


def _patch(wrap: Callable[[], Iterator[None]]) -> None:
    def patched(call: Callable[..., Awaitable[Any]], verbs: list[str] | None = None) -> Callable[..., Awaitable[Any]]:
        async def made(self: object, *args: Any, **options: Any) -> Any:
            if verbs is not None and args[0] not in verbs:
                return await call(self, *args, **options)
            for _ in wrap():
                found = await call(self, *args, **options)
            return found

        return made

    def patched_now(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(self: object, *args: Any) -> Any:
            for _ in wrap():
                found = call(self, *args)
            return found

        return made

    for one, names in CALLS.items():
        for name in names:
            setattr(one, name, patched(getattr(one, name)))
    ControlClient.call = patched(ControlClient.call, VERBS)  # type: ignore[method-assign]
    Database.write = patched_now(Database.write)  # type: ignore[method-assign]
    Path.replace = patched_now(Path.replace)  # type: ignore[method-assign]


def main() -> None:
    """Run the command."""
    change, when = sys.argv[1:3]
    del sys.argv[1:3]
    _patch(_killed_at(int(change), after=when == "after"))
    from tsd.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
