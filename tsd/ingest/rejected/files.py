"""The folder of refused lines: numbered files of records, oldest first. Commands read it without the daemon.

A record is one line of JSON. Its name is the number of its file and its offset in it. The last line of a file is
ignored if it has no LF, because a crash truncated it.

Lines have no known encoding: each byte is stored as the ISO-8859-1 character of its value.

Acknowledged lines that the writer could not store are in separate files (`refused/`), which are never removed. Records
of their replays, called marks, are in files next to them and are never removed either. This folder is bounded: it would
drop marks before the lines, and lines would be sent again, with old values over newer ones.

`RejectedFilter` selects refused lines, and `groups` counts them.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

import msgspec

from tsd.config.files import with_suffix
from tsd.config.state_dir import sync_folder
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, UNKNOWN_NAME, TsdError

LINE_BYTES = 32 << 10  # of one line; longer ones (points of HTTP) are truncated
MESSAGE_CHARACTERS = 500
UNCOUNTED = -1  # the number of missing bytes is unknown: a telnet line was refused before its end arrived


class RejectedLine(msgspec.Struct, tag_field="kind", tag="refused", frozen=True, gc=False):
    """A line that was refused."""

    time: int  # ms
    reason: str
    message: str
    peer: str  # address and port it came from
    account: str  # empty: not authenticated
    line: str
    cut: int = 0  # bytes that are missing at its end; UNCOUNTED: an unknown number
    as_sent: bool = False  # in the charset and dialect of the telnet port; otherwise it was translated

    @property
    def bytes(self) -> bytes:
        """The line without its LF: a telnet line, or an HTTP path and the JSON of data points."""
        return self.line.encode("latin-1")

    @property
    def shown(self) -> str:
        """The line as text: decoded as UTF-8 if it is valid UTF-8, otherwise as ISO-8859-1."""
        try:
            return self.bytes.decode()
        except UnicodeDecodeError:
            return self.line


class DroppedLines(msgspec.Struct, tag_field="kind", tag="dropped", frozen=True):
    """Counts of refused lines that were not kept, because there were too many or a write failed."""

    since: int  # ms
    until: int
    lines: dict[str, int]  # by reason


class Replayed(msgspec.Struct, tag_field="kind", tag="replayed", frozen=True, gc=False):
    """The result of a refused line that was sent again."""

    time: int  # ms
    of: str  # name of the line's record
    taken: bool  # accepted
    reason: str = ""  # of a line that was refused again
    message: str = ""


Record = RejectedLine | DroppedLines | Replayed
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class InvalidRecord(TsdError):
    """A line of the folder is not a valid record."""


class Outcome(NamedTuple):
    """The outcome of a line that was sent again."""

    taken: bool
    reason: str = ""
    message: str = ""


class RejectedBytes(NamedTuple):
    """A line that was refused, before its record is made. See RejectedLine."""

    time_ms: int
    reason: str
    message: str
    peer: str
    account: str
    line: bytes
    cut: int = 0
    as_sent: bool = False

    def record(self) -> RejectedLine:
        """Return the record of the line."""
        text = self.message[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()  # JSON has no lone surrogates
        line = self.line.decode("latin-1")
        return RejectedLine(self.time_ms, self.reason, text, self.peer, self.account, line, self.cut, self.as_sent)


def encode_records(records: list[Record]) -> bytes:
    """Encode records as lines of JSON."""
    return bytes(_encoder.encode_lines(records))


def decode_record(line: bytes) -> Record:
    """Decode a line of JSON. Raise InvalidRecord.

    >>> decode_record(encode_records([RejectedBytes(1, "r", "m", "p:1", "", b"put \\xff").record()])).bytes
    b'put \\xff'
    """
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError as exc:
        raise InvalidRecord(str(exc)) from exc


SUFFIX = ".jsonl"
UNSTORED = ".lines"  # of the writer's files
MARKS = ".marks"
CHECKED_BYTES = 64 << 10  # at the start of a file of the writer, for the checksum that identifies it
_REASONS = {"invalid value": INVALID_VALUE, "unknown metric": UNKNOWN_NAME}


class NamedRecord(NamedTuple):
    """A record and its name."""

    name: str
    record: Record


class Entry(NamedTuple):
    """A refused line, and its last replay."""

    name: str
    refused: RejectedLine
    replayed: Replayed | None  # None: never sent again

    @property
    def taken(self) -> bool:
        """Whether a replay was accepted."""
        return self.replayed is not None and self.replayed.taken

    @property
    def reason(self) -> str:
        """Reason of the latest refusal."""
        return self.replayed.reason if self.replayed is not None and not self.taken else self.refused.reason

    @property
    def message(self) -> str:
        """Error message of the latest refusal."""
        return self.replayed.message if self.replayed is not None and not self.taken else self.refused.message


def file_path(folder: Path, number: int) -> Path:
    """Return the path of the file with this number."""
    return folder / f"{number:08}{SUFFIX}"


def files(folder: Path) -> list[tuple[int, Path]]:
    """Return the files by number, oldest first."""
    found = ((path.stem, path) for path in with_suffix(folder, SUFFIX))
    return sorted((int(stem), path) for stem, path in found if stem.isascii() and stem.isdigit())


def read_records(folder: Path) -> Iterator[NamedRecord]:
    """Yield all records in order. Damaged lines are skipped."""
    for number, path in files(folder):
        for at, record in _records(path):
            yield NamedRecord(f"{number}-{at}", record)


def read_line(folder: Path, name: str) -> RejectedLine | None:
    """Return the line of a record. None if its file was deleted."""
    number, _, at = name.rpartition("-")
    with suppress(OSError, ValueError, InvalidRecord), file_path(folder, int(number)).open("rb") as file:
        file.seek(int(at))
        record = decode_record(file.readline())
        return record if isinstance(record, RejectedLine) else None
    return None


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield the records of a file, each with its offset."""
    at = 0
    try:
        file = path.open("rb")
    except FileNotFoundError:  # the daemon has deleted it meanwhile, or there are no marks
        return
    with file:
        for line in file:
            if line.endswith(b"\n"):
                with suppress(InvalidRecord):
                    yield at, decode_record(line)
            at += len(line)


def read_entries(folder: Path, unstored: Path) -> Iterator[Entry]:
    """Yield all refused lines: first those of `unstored`, where the writer keeps acknowledged lines that it could not
    store, then those of `folder`, oldest first. Lines that are added meanwhile are left out: a replay adds some."""
    replayed: dict[str, Replayed] = {}
    last = ""
    for name, record in read_records(folder):
        last = name
        if isinstance(record, Replayed):
            replayed[record.of] = record
    for path in with_suffix(unstored, UNSTORED):
        try:
            mark_file, lines = _marks_of(path), _unstored(path)
        except FileNotFoundError:  # removed meanwhile
            continue
        marks = (record for _, record in _records(mark_file))
        replayed |= {record.of: record for record in marks if isinstance(record, Replayed)}
        for name, record in lines:
            yield Entry(name, record, replayed.get(name))
    for name, record in read_records(folder) if last else ():
        if isinstance(record, RejectedLine):
            yield Entry(name, record, replayed.get(name))
        if name == last:
            break


def is_unstored(name: str) -> bool:
    """Return whether the record of that name is a line of one of the writer's files."""
    return Path(name.rpartition("-")[0]).suffix == UNSTORED


def mark_unstored(unstored: Path, marks: Sequence[Replayed]) -> None:
    """Write marks next to the writer's files, and sync them. Raise OSError."""
    by_file: dict[str, list[Record]] = {}
    for mark in marks:
        by_file.setdefault(mark.of.rpartition("-")[0], []).append(mark)
    for name, records in by_file.items():
        try:
            mark_file = _marks_of(unstored / name)
        except FileNotFoundError:  # removed meanwhile
            continue
        with mark_file.open("ab+") as file:
            cut = file.tell() > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"  # by a crash
            file.write((b"\n" if cut else b"") + encode_records(records))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(unstored)


def _marks_of(path: Path) -> Path:
    """Return the path of the marks of a file. The name has a checksum of the file's start, because a number may be
    reused after its file was removed: marks of other lines do not apply."""
    with path.open("rb") as file:
        return path.with_name(f"{path.stem}-{crc32(file.read(CHECKED_BYTES)):08x}{MARKS}")


def _unstored(path: Path) -> Iterator[tuple[str, RejectedLine]]:
    """Open one of the writer's files at once, and yield its lines. Raise FileNotFoundError."""
    return _lines(path.name, path.open("rb"))


def _lines(name: str, file: BinaryIO) -> Iterator[tuple[str, RejectedLine]]:
    """Yield the lines of one of the writer's files. A line `# ERROR` precedes the lines that were refused with it."""
    message, at = "", 0
    with file:
        time_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
        for line in file:
            text = line.rstrip(b"\n").decode("latin-1")
            if text.startswith("# "):
                message = text[2:]
            elif line.endswith(b"\n"):
                reason = _REASONS.get(message.partition(":")[0], ILLEGAL_ARGUMENT)
                yield f"{name}-{at}", RejectedLine(time_ms, reason, message, "journal", "", text)
            at += len(line)


_METRIC_WORD = {
    "put": 1,
    "rollup": 2,
    "histogram": 1,
    "puts": 1,
    "putm": 1,
}  # index of the metric among the words of a line


class RejectedFilter(NamedTuple):
    """Conditions on refused lines. Empty and None match every line."""

    reason: str = ""
    source: str = ""  # an address, with or without its port, an account, or account@address; with wildcards * and ?
    metric: str = ""  # with the same wildcards
    since_ms: int = 0
    until_ms: int | None = None
    match: re.Pattern[str] | None = None  # anywhere in the line or in the message
    taken: bool | None = False

    def has(self, entry: Entry) -> bool:
        """Return whether a line meets all conditions."""
        refused = entry.refused
        return (
            (self.taken is None or entry.taken == self.taken)
            and refused.time >= self.since_ms
            and (self.until_ms is None or refused.time < self.until_ms)
            and (not self.reason or entry.reason == self.reason)
            and (not self.source or any(fnmatchcase(name, self.source) for name in _sources(entry)))
            and (not self.metric or fnmatchcase(metric_of(refused.shown), self.metric))
            and (self.match is None or bool(self.match.search(refused.shown) or self.match.search(entry.message)))
        )


def _sources(entry: Entry) -> tuple[str, str, str, str]:
    refused = entry.refused
    address = refused.peer.rpartition(":")[0] or refused.peer
    return refused.peer, address, refused.account, f"{refused.account}@{address}" if refused.account else address


def metric_of(line: str) -> str:
    """Return the metric that a refused line seems to name; empty if none is recognized.

    >>> metric_of("put sys.cpu 1 x"), metric_of("rollup 1h-sum m 1"), metric_of('api/put {"metric":"m"}')
    ('sys.cpu', 'm', 'm')
    >>> metric_of('api/datapoints {"name":"m"}'), metric_of('write {"series":{"key":"m"}}')
    ('m', 'm')
    """
    command, _, rest = line.partition(" ")
    if command.startswith("api/") or command == "write":
        try:
            point = msgspec.json.decode(rest)
        except msgspec.DecodeError:
            return ""
        return _metric_in(point) if isinstance(point, dict) else ""
    words = line.split(" ", 3)
    at = _METRIC_WORD.get(command)
    return words[at] if at is not None and at < len(words) else ""


def _metric_in(point: Mapping[str, object]) -> str:
    """Return the metric of a point of OpenTSDB's, KairosDB's or Heroic's API."""
    series = point.get("series")
    metric = point.get("metric", point.get("name", series.get("key") if isinstance(series, dict) else None))
    return metric if isinstance(metric, str) else ""


class RejectedGroup(NamedTuple):
    """Refused lines with the same reason, source and metric."""

    reason: str
    source: str  # address, or account@address
    metric: str
    lines: int
    last_ms: int
    message: str  # of the last line


def groups(entries: Iterable[Entry]) -> Iterator[RejectedGroup]:
    """Count lines by reason, source and metric; yield the largest group first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    last: dict[tuple[str, str, str], Entry] = {}
    for entry in entries:
        refused = entry.refused
        key = entry.reason, _sources(entry)[-1], metric_of(refused.shown)
        counts[key] += 1
        last[key] = entry
    for key, lines in counts.most_common():
        yield RejectedGroup(*key, lines, last[key].refused.time, last[key].message)
