"""A command's access to the store, directly or through the daemon that has the database open; and common options."""

import signal
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import click
import trio

from tsd.codec.names import Kind
from tsd.codec.text import encode_name
from tsd.config.files import exists
from tsd.config.loader import journal_folder, named_files, state_folder
from tsd.config.settings import Config
from tsd.config.state_dir import STATE, FolderKind, folder_errors, lock_state
from tsd.daemon.settings import control_path, now_ms
from tsd.errors import BadLine, DaemonRuns, NoSuchName, StoreError, TsdError
from tsd.ingest.journal.folder import JournalConflict, segment_paths, used_journal
from tsd.lazy import LazyModule
from tsd.store import Store
from tsd.store.remote import ControlClient, RemoteStore
from tsd.tables.opentsdb.uids import Uids

if TYPE_CHECKING:
    from tsd.daemon import wiring as wiring
else:  # the help of a command needs no engine
    wiring = LazyModule("tsd.daemon.wiring")


RECENT_MS = 3_600_000  # most points that wait in a daemon are newer
SHARED_PAUSE_RATIO = 1.0  # a job on a daemon's embedded store pauses after each part for as long as the part took


class Access(NamedTuple):
    """A command's store and, if it runs, the daemon."""

    store: Store
    uids: Uids
    daemon: ControlClient | None  # of this state folder; None if no daemon runs
    config: Config

    def journal(self) -> Path:
        """Return the folder where accepted lines may wait. It may be another than that of the command's settings.
        Raise TsdError if it is missing."""
        return used_journal(journal_folder(self.config), state_folder(self.config))

    @property
    def pause_ratio(self) -> float:
        """The pause after each part of a long job, as a share of the time that the part took."""
        return SHARED_PAUSE_RATIO if self.daemon is not None and wiring.has_local_store(self.config) else 0.0

    async def flush_daemon(self) -> str:
        """Have the daemon write its pending points. Return why points are not in the store, or an empty text."""
        if self.daemon is not None:
            return "" if await self.daemon.call("flush") else "the daemon cannot write its pending points now"
        try:
            journal = self.journal()
        except JournalConflict as exc:
            return str(exc)
        if segment_paths(journal):
            return f"no daemon runs, and the journal {journal} has pending points: start the daemon once"
        return ""

    async def require_flush(self, consequence: str) -> None:
        """Have the daemon write its pending points. Raise StoreError, with the `consequence`, if points are not in the
        store."""
        if reason := await self.flush_daemon():
            raise StoreError(f"{reason}. {consequence}")


def check_layout(config: Config) -> None:
    """Raise TsdError unless the tables are OpenTSDB's."""
    if not config.has_opentsdb_tables:
        raise TsdError(f"this command works on OpenTSDB's tables, and tsd.storage.layout is {config.layout}")


@asynccontextmanager
async def access(
    config: Config, *, must_exist: bool = False, any_layout: bool = False, kind: FolderKind = STATE
) -> AsyncIterator[Access]:
    """Open the store of `config` for the block. Raise TsdError.

    If a daemon has the embedded store open, requests go through the daemon. With `must_exist`, an absent embedded store
    is an error; otherwise it is created, and reported on standard error: the folder may be a wrong one.
    Without `any_layout`, other tables than OpenTSDB's are an error. `kind` is the state folder's, for errors.
    """
    if not any_layout:
        check_layout(config)
    folder = state_folder(config)
    local = wiring.has_local_store(config)
    with folder_errors(folder, STATE):
        is_absent = local and not await trio.to_thread.run_sync(exists, folder / "store")
    if is_absent and must_exist:
        raise TsdError(f"no embedded store in {folder}: give the state folder of your daemon with --data or --config")
    daemon = await connect(config)
    try:
        if local and daemon is not None:
            store = RemoteStore(daemon)
            yield Access(store, wiring.make_uids(config, store), daemon, config)
            return
        async with AsyncExitStack() as stack:
            if local:
                stack.enter_context(_closing_on_sigterm())
                stack.enter_context(_lock(config, kind))
            own = await stack.enter_async_context(wiring.opened_store(config))
            if is_absent and kind is STATE:  # the target of a copy usually is new
                click.echo(f"tsd: made a new embedded store in {folder}", err=True)
            yield Access(own, wiring.make_uids(config, own), daemon, config)
    finally:
        if daemon is not None:
            with trio.CancelScope(shield=True):
                await daemon.aclose()


async def flush_pending(opened: Access, *, delete: bool) -> None:
    """Have the daemon write its pending points before they are read or deleted. Print a warning if it cannot.

    Raise StoreError for `delete`: points written later would reappear.
    """
    try:
        reason = await opened.flush_daemon()
    except TsdError as exc:
        if delete or opened.daemon is not None:
            raise
        reason = f"{exc}. So pending points of a daemon there cannot be written"  # another user's folder
    if reason and delete:
        raise StoreError(f"{reason}. These points would reappear after the deletion: nothing deleted")
    if reason:
        click.echo(f"tsd: {reason}. The output lacks them", err=True)


def tell_of_others(config: Config, until_ms: int) -> None:
    """Print after a delete of recent points that daemons of other state folders may have more of them."""
    if not wiring.has_local_store(config) and until_ms > now_ms() - RECENT_MS:
        click.echo(
            "tsd: daemons of other state folders may store points later that they have accepted before (within "
            "tsd.storage.flush_interval, or after an outage of the store). Then run the command again",
            err=True,
        )


async def metric_uids(opened: Access, metrics: Sequence[str]) -> list[bytes]:
    """Return the UIDs of metrics on a command line. Raise NoSuchName for one without a UID."""
    try:
        names = [encode_name(metric) for metric in metrics]
    except BadLine as exc:
        raise click.UsageError(str(exc)) from exc
    found = await opened.uids.find(Kind.METRIC, names)
    uids: list[bytes] = []
    for name in dict.fromkeys(names):
        uid = found[name]
        if not isinstance(uid, bytes):
            raise uid if isinstance(uid, TsdError) else NoSuchName(name.decode("latin-1"))
        uids.append(uid)
    return uids


async def connect(config: Config) -> ControlClient | None:
    """Return a connection to the daemon of the state folder; None if no daemon runs."""
    try:
        return await ControlClient.connect(control_path(config))
    except OSError:
        return None


@contextmanager
def _closing_on_sigterm() -> Iterator[None]:
    """End the block on SIGTERM as on Ctrl-C, then the process. An embedded store that is closed in the block is synced,
    so that what the command has reported survives a loss of power. A second signal ends the process at once."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
    interrupt, is_ending = signal.getsignal(signal.SIGINT), False

    def end(_number: int, frame: FrameType | None) -> None:
        nonlocal is_ending
        is_ending = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if callable(interrupt):
            interrupt(signal.SIGINT, frame)  # ends also a write to a pipe that is not read
        else:  # a shell ignores Ctrl-C in the background
            token.run_sync_soon(scope.cancel)

    with scope:
        signal.signal(signal.SIGTERM, end)
        try:
            yield
        except TsdError as exc:
            if is_ending:  # the signal ends the process before others print the error
                click.echo(f"tsd: {exc}", err=True)
            raise
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if is_ending:
                signal.raise_signal(signal.SIGTERM)


@contextmanager
def _lock(config: Config, kind: FolderKind) -> Iterator[None]:
    """Lock the state folder for the block. Raise DaemonRuns with what to do."""
    try:
        with lock_state(state_folder(config), kind, named_files(config)):
            yield
    except DaemonRuns as exc:
        raise DaemonRuns(
            f"{exc} and does not answer at {control_path(config)}: wait until it has started or ended"
        ) from exc
