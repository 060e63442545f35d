"""The folder of refused lines: numbered files of records, oldest first, read without the daemon.

A record's name is its file's number and its first byte in it. A file's last line is a record only if it has its end:
what a crash cut off is passed over.

Lines that the writer could not store stand in files of its own, which are never removed: what came of them since stands
beside them, in files of marks, and lives as long. (In the folder, which has a bound, it would leave before them, and
they would be sent again: old values over newer ones.)
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

from tsd.deadletters.records import NoRecord, Record, Refused, Replayed, decode_record, encode_records
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, UNKNOWN_NAME
from tsd.state import sync_folder

SUFFIX = ".jsonl"
UNSTORED = ".lines"  # of the writer's files
MARKS = ".marks"
KNOWN_BYTES = 64 << 10  # of one of them, that tell it from others
_REASONS = {"invalid value": INVALID_VALUE, "unknown metric": UNKNOWN_NAME}


class Named(NamedTuple):
    """A record and its name."""

    name: str
    record: Record


class Entry(NamedTuple):
    """A refused line, and what came of it since."""

    name: str
    refused: Refused
    replayed: Replayed | None  # when it was last sent again

    @property
    def taken(self) -> bool:
        """Whether it was taken since."""
        return self.replayed is not None and self.replayed.taken

    @property
    def reason(self) -> str:
        """Why it is refused, by the newest that is known."""
        return self.replayed.reason if self.replayed is not None and not self.taken else self.refused.reason

    @property
    def message(self) -> str:
        """Likewise in words."""
        return self.replayed.message if self.replayed is not None and not self.taken else self.refused.message


def file_path(folder: Path, number: int) -> Path:
    """Where the file of that number is."""
    return folder / f"{number:08}{SUFFIX}"


def files(folder: Path) -> list[tuple[int, Path]]:
    """The files by number, oldest first."""
    found = ((path.stem, path) for path in folder.glob(f"*{SUFFIX}"))
    return sorted((int(stem), path) for stem, path in found if stem.isascii() and stem.isdigit())


def read_records(folder: Path) -> Iterator[Named]:
    """All records in order. What is none (a disk's damage) is passed over."""
    for number, path in files(folder):
        for at, record in _records(path):
            yield Named(f"{number}-{at}", record)


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """A file's records, each with its first byte in it."""
    at = 0
    try:
        file = path.open("rb")
    except FileNotFoundError:  # the daemon has made room meanwhile; or there never was one
        return
    with file:
        for line in file:
            if line.endswith(b"\n"):
                with suppress(NoRecord):
                    yield at, decode_record(line)
            at += len(line)


def read_entries(folder: Path, unstored: Path) -> Iterator[Entry]:
    """All refused lines, oldest first: those of `folder`, and, before them, those of `unstored`, where the writer keeps
    acknowledged lines that could not be stored."""
    replayed: dict[str, Replayed] = {}
    for _, record in read_records(folder):
        if isinstance(record, Replayed):
            replayed[record.of] = record
    for path in sorted(unstored.glob(f"*{UNSTORED}")):
        try:
            beside, lines = _marks_of(path), _unstored(path)
        except FileNotFoundError:  # somebody has taken it away meanwhile
            continue
        marks = (record for _, record in _records(beside))
        replayed |= {record.of: record for record in marks if isinstance(record, Replayed)}
        for name, record in lines:
            yield Entry(name, record, replayed.get(name))
    for name, record in read_records(folder):
        if isinstance(record, Refused):
            yield Entry(name, record, replayed.get(name))


def is_unstored(name: str) -> bool:
    """Whether the record of that name is a line of one of the writer's files."""
    return Path(name.rpartition("-")[0]).suffix == UNSTORED


def mark_unstored(unstored: Path, marks: Sequence[Replayed]) -> None:
    """Note beside the writer's files what became of their lines; on disk by then. Raises OSError."""
    by_file: dict[str, list[Record]] = {}
    for mark in marks:
        by_file.setdefault(mark.of.rpartition("-")[0], []).append(mark)
    for name, records in by_file.items():
        try:
            beside = _marks_of(unstored / name)
        except FileNotFoundError:  # somebody has taken it away since
            continue
        with beside.open("ab+") as file:
            cut = file.tell() > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"  # by a crash
            file.write((b"\n" if cut else b"") + encode_records(records))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(unstored)


def _marks_of(path: Path) -> Path:
    """Where the marks of one of the writer's files are. Its number may be given again once it was taken away: what came
    of other lines says nothing of these."""
    with path.open("rb") as file:
        return path.with_name(f"{path.stem}-{crc32(file.read(KNOWN_BYTES)):08x}{MARKS}")


def _unstored(path: Path) -> Iterator[tuple[str, Refused]]:
    """The lines of one of the writer's files, which is opened before this returns."""
    return _lines(path.name, path.open("rb"))


def _lines(name: str, file: BinaryIO) -> Iterator[tuple[str, Refused]]:
    """Each stands under a line with `# ` and why."""
    message, at = "", 0
    with file:
        time_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
        for line in file:
            text = line.rstrip(b"\n").decode("latin-1")
            if text.startswith("# "):
                message = text[2:]
            elif line.endswith(b"\n"):
                reason = _REASONS.get(message.partition(":")[0], ILLEGAL_ARGUMENT)
                yield f"{name}-{at}", Refused(time_ms, reason, message, "journal", "", text)
            at += len(line)
