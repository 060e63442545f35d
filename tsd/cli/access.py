"""A command's way to the store: its own, or that of the daemon that owns the database."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import trio

from tsd.assembly import control_path, make_uids, opened_store
from tsd.config import Backend, Config, journal_folder, state_folder
from tsd.errors import DaemonRuns, StoreError, TsdError
from tsd.ingest.folder import segment_paths
from tsd.state import held
from tsd.store import Store
from tsd.store.remote import Caller, RemoteStore
from tsd.uids import Uids


class Access(NamedTuple):
    """What a command works with."""

    store: Store
    uids: Uids
    daemon: Caller | None  # a daemon of this state folder, if one runs
    journal: Path  # its journal's folder, or that of one that is to run

    async def unwritten(self) -> str:
        """Have the daemon write what it holds; why that cannot be, in words, or nothing where it was done. Where none
        runs, nobody writes what a killed one has left in its journal."""
        if self.daemon is not None:
            return "" if await self.daemon.ask("flush") else "the daemon cannot write the points that it holds now"
        if segment_paths(self.journal):
            return f"no daemon runs, and points wait for one in the journal {self.journal}: start it once"
        return ""


@asynccontextmanager
async def access(config: Config, *, must_exist: bool = False, writes: bool = True) -> AsyncIterator[Access]:
    """The store of `config`. With `must_exist`, an embedded one is not made if it is absent; who only reads `writes`
    not, and leaves its folder to older versions. Raises TsdError."""
    folder = state_folder(config)
    embedded = config.backend is Backend.EMBEDDED
    if embedded and must_exist and not await trio.Path(folder / "store").exists():
        raise TsdError(f"no embedded store in {folder}: name the state folder of your daemon with --data or --config")
    daemon = await _daemon(config)
    try:
        if embedded and daemon is not None:
            store = RemoteStore(daemon)
            yield Access(store, make_uids(config, store), daemon, journal_folder(config))
            return
        async with AsyncExitStack() as stack:
            if embedded:
                stack.enter_context(_ours(config, writes=writes))
            own = await stack.enter_async_context(opened_store(config))
            yield Access(own, make_uids(config, own), daemon, journal_folder(config))
    finally:
        if daemon is not None:
            with trio.CancelScope(shield=True):
                await daemon.aclose()


async def settle(ways: Access, *, delete: bool) -> None:
    """Have a daemon write what it holds, before it is read or deleted. Where it cannot, say so; raise StoreError where
    its points would outlive a delete."""
    why = await ways.unwritten()
    if why and delete:
        raise StoreError(f"{why}. Written later, they would come back: nothing deleted")
    if why:
        click.echo(f"tsd: {why}. They are missing here", err=True)


async def _daemon(config: Config) -> Caller | None:
    try:
        return await Caller.connect(control_path(config))
    except OSError:
        return None


@contextmanager
def _ours(config: Config, *, writes: bool) -> Iterator[None]:
    """The state folder's lock, or what to do without it."""
    try:
        with held(state_folder(config), writes=writes):
            yield
    except DaemonRuns as exc:
        raise DaemonRuns(
            f"{exc} and does not answer at {control_path(config)}: wait until it has started or ended"
        ) from exc
