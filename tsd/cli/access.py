"""A command's way to the store: its own, or that of the daemon that owns the database."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import NamedTuple

import trio

from tsd.assembly import control_path, make_uids, opened_store
from tsd.config import Backend, Config, state_folder
from tsd.errors import DaemonRuns, TsdError
from tsd.state import held
from tsd.store import Store
from tsd.store.remote import Caller, RemoteStore
from tsd.uids import Uids


class Access(NamedTuple):
    """What a command works with."""

    store: Store
    uids: Uids
    daemon: Caller | None  # a daemon of this state folder, if one runs

    async def flush(self) -> bool:
        """Have the daemon write its open rows; False where it could not."""
        return bool(await self.daemon.ask("flush")) if self.daemon else True


@asynccontextmanager
async def access(config: Config, *, must_exist: bool = False) -> AsyncIterator[Access]:
    """The store of `config`. With `must_exist`, an embedded one is not made if it is absent. Raises TsdError."""
    folder = state_folder(config)
    embedded = config.backend is Backend.EMBEDDED
    if embedded and must_exist and not await trio.Path(folder / "store").exists():
        raise TsdError(f"no embedded store in {folder}: name the state folder of your daemon with --data or --config")
    daemon = await _daemon(config)
    try:
        if embedded and daemon is not None:
            store = RemoteStore(daemon)
            yield Access(store, make_uids(config, store), daemon)
            return
        async with AsyncExitStack() as stack:
            if embedded:
                stack.enter_context(_ours(config))
            own = await stack.enter_async_context(opened_store(config))
            yield Access(own, make_uids(config, own), daemon)
    finally:
        if daemon is not None:
            with trio.CancelScope(shield=True):
                await daemon.aclose()


async def _daemon(config: Config) -> Caller | None:
    try:
        return await Caller.connect(control_path(config))
    except OSError:
        return None


@contextmanager
def _ours(config: Config) -> Iterator[None]:
    """The state folder's lock, or what to do without it."""
    try:
        with held(state_folder(config)):
            yield
    except DaemonRuns as exc:
        raise DaemonRuns(
            f"{exc} and does not answer at {control_path(config)}: wait until it has started or ended"
        ) from exc
