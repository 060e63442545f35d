"""The folder of refused lines: numbered files of records, oldest first, read without the daemon.

A record's name is its file's number and its first byte in it. A file's last line is a record only if it has its end:
what a crash cut off is passed over.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tsd.deadletters.records import NoRecord, Record, Refused, Replayed, decode_record
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, UNKNOWN_NAME

SUFFIX = ".jsonl"
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
        at = 0
        try:
            file = path.open("rb")
        except FileNotFoundError:  # the daemon has made room meanwhile
            continue
        with file:
            for line in file:
                if line.endswith(b"\n"):
                    with suppress(NoRecord):
                        yield Named(f"{number}-{at}", decode_record(line))
                at += len(line)


def read_entries(folder: Path, unstored: Path) -> Iterator[Entry]:
    """All refused lines, oldest first: those of `folder`, and, before them, those of `unstored`, where the writer keeps
    acknowledged lines that could not be stored."""
    replayed: dict[str, Replayed] = {}
    for _, record in read_records(folder):
        if isinstance(record, Replayed):
            replayed[record.of] = record
    for path in sorted(unstored.glob("*.lines")):
        for name, record in _unstored(path):
            yield Entry(name, record, replayed.get(name))
    for name, record in read_records(folder):
        if isinstance(record, Refused):
            yield Entry(name, record, replayed.get(name))


def _unstored(path: Path) -> Iterator[tuple[str, Refused]]:
    """The lines of one of the writer's files: each stands under a line with `# ` and why."""
    time_ms = path.stat().st_mtime_ns // 1_000_000
    message, at = "", 0
    with path.open("rb") as file:
        for line in file:
            text = line.rstrip(b"\n").decode("latin-1")
            if text.startswith("# "):
                message = text[2:]
            elif line.endswith(b"\n"):
                reason = _REASONS.get(message.partition(":")[0], ILLEGAL_ARGUMENT)
                yield f"{path.name}-{at}", Refused(time_ms, reason, message, "journal", "", text)
            at += len(line)
