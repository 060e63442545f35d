"""RocksDB's opening: no write that a sync had covered is missing from its write-ahead log, or it is not opened.

RocksDB reads its log up to the first byte that is not as written, and forgets what is behind: right for what a power
loss has torn, which no sync had covered, but not for a disk that changed a byte in the middle. So the number of the
last write that a sync covered is kept in a file beside the database, and an opening must come at least as far. That
number is a maximum over all logs: an older one, which other tables still need, is held to the size that RocksDB's
manifest tells (see tsd.store.rocks_options).

    store/synced        "synced 000000000123 crc 00000000"; without it there is nothing to compare with
    store/damaged-wal   logs of an opening without it that could not be read to their ends

The file is written after the sync that it speaks of, and not synced itself: it never promises too much.
"""

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path

import structlog
from rocksdict import AccessType, DBRecoveryMode, Options, Rdict

from tsd.errors import StoreError
from tsd.store.rocks_options import OPEN_FILES

log = structlog.get_logger(__name__)

_RECORD = re.compile(rb"synced (\d{12,}) crc ([0-9a-f]{8})\n")
_CORRUPTION = re.compile("^Corruption: ")
_LOG_GONE = re.compile("^Corruption: .*(ahead of WALs|Missing WAL|Size mismatch: WAL)")


class SyncedRecord:
    """How far the disk had RocksDB's writes for sure, by their sequence numbers."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self.path = folder / "synced"
        self.number = self._read()

    def _read(self) -> int | None:
        """None where it says nothing. One that is damaged is said to be so, and believed no more."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        match = _RECORD.fullmatch(text)
        if match is not None and _written(int(match[1])) == text:
            return int(match[1])
        if text:  # none: it was being made when the power was cut
            log.error("how far the store had been on disk is not known", path=str(self.path), got=repr(text[:60]))
        return None

    def note(self, number: int) -> None:
        """A sync has covered all writes up to `number`. Where the disk refuses, it promises less than it could."""
        if self.number is not None and number <= self.number:
            return
        with suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.pwrite(fd, _written(number), 0)
            finally:
                os.close(fd)
            self.number = number


def _written(number: int) -> bytes:
    text = b"synced %012d" % number
    return text + b" crc %08x\n" % zlib.crc32(text)


def open_whole(path: Path, options: Options, families: dict[str, Options], synced: SyncedRecord) -> Rdict:
    """The database in `path`. Raises StoreError where writes are gone that `synced` speaks of, else what rocksdict
    raises; nothing is changed then."""
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    try:
        found = Rdict(str(path), options, families)
    except Exception as exc:
        if not _CORRUPTION.search(str(exc)):
            raise
        found = _open_cut(path, options, families, synced)
    reached = found.latest_sequence_number()
    if synced.number is not None and reached < synced.number:
        found.close()
        raise _lost(path, reached, synced)
    if not families:
        synced.note(reached)  # a new one
    return found


def _open_cut(path: Path, options: Options, families: dict[str, Options], synced: SyncedRecord) -> Rdict:
    """The database up to where its log is damaged; or, where it has no such state, without what cannot be read."""
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    try:  # an opening removes the logs
        looked_at = Rdict(str(path), options, families, access_type=AccessType.read_only())
    except Exception as exc:
        if not _LOG_GONE.search(str(exc)):
            raise
        return _open_holed(path, options, families, synced, str(exc))
    reached = looked_at.latest_sequence_number()
    looked_at.close()
    if synced.number is not None and reached < synced.number:
        raise _lost(path, reached, synced)
    if synced.number is not None:
        log.warning("the end of the store's write-ahead log, which no sync had covered, is cut off", path=str(path))
    else:
        kept = _keep_logs(path)
        log.error(
            "the store's write-ahead log is damaged, what was written behind that is lost",
            path=str(path), writes=reached, kept_in=str(kept),
        )  # fmt: skip
    return Rdict(str(path), options, families)


def _open_holed(path: Path, options: Options, families: dict[str, Options], synced: SyncedRecord, reason: str) -> Rdict:
    """The database without what its logs have lost in their middle: an older one, whose later writes one table has on
    disk already and another has not."""
    if synced.number is not None:
        raise StoreError(
            f"{path}: its write-ahead log is damaged: {reason.rstrip('.')}. Restore a backup; or, to go on "
            f"without the writes that cannot be read, remove {synced.path}"
        )
    kept = _keep_logs(path)
    log.error(
        "the store's write-ahead log is damaged, the writes that cannot be read are lost: see what `tsd fsck` finds",
        path=str(path), error=reason, kept_in=str(kept),
    )  # fmt: skip
    Rdict(str(path), _skipping(), families).close()  # what can be read is in the tables then, and the logs are gone
    return Rdict(str(path), options, families)


def _skipping() -> Options:
    """Of a database that takes from its logs all that can be read, and asks for no size of them. Opened read-only with
    them, RocksDB 9.8 ends the process: it would write that no sizes are kept any more."""
    result = Options(raw_mode=True)
    result.set_wal_recovery_mode(DBRecoveryMode.skip_any_corrupted_record())
    result.set_max_open_files(OPEN_FILES)
    return result


def _keep_logs(path: Path) -> Path:
    """Where the logs are kept that the next opening removes."""
    folder = path / "damaged-wal"
    folder.mkdir(exist_ok=True)
    for log_file in path.glob("*.log"):
        kept = folder / log_file.name
        if not kept.exists():
            os.link(log_file, kept)
    return folder


def _lost(path: Path, reached: int, synced: SyncedRecord) -> StoreError:
    return StoreError(
        f"{path}: its write-ahead log is damaged: {synced.number} writes were on disk, {reached} can be read. Restore "
        f"a backup; or, to go on without what was written after the damage, remove {synced.path}"
    )
