"""The lines that clients sent, their acknowledgements, and checks that stored points agree with both."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from tsd.codec.names import Kind
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import data_cells, points, problems
from tsd.codec.opentsdb.rowkey import KeyLayout, split_key
from tsd.codec.opentsdb.uid import COUNTER_ROW, decode_counter, id_column, name_column
from tsd.codec.text import decode_number
from tsd.store import Row, Store, scan
from tsd.tables.open_points import OpenPoints

Series = tuple[str, tuple[tuple[str, str], ...]]  # metric, sorted tags
Key = tuple[Series, int]  # series, ms


class Violation(AssertionError):
    """A violated invariant."""


class Sent:
    """One complete line."""

    __slots__ = ("acked", "acked_at", "connection", "daemon", "deleted", "may_be_deleted", "sent_at", "value")

    def __init__(self, value: float, connection: int, daemon: int, sent_at: int) -> None:
        self.value = value
        self.connection = connection
        self.daemon = daemon  # number of the daemon that received it
        self.sent_at = sent_at
        self.acked = False
        self.acked_at = 0
        self.may_be_deleted = False
        self.deleted = False  # for certain


class SentPoints:
    """All valid lines by series and time, in the order of sending."""

    def __init__(self) -> None:
        self._sent: dict[Key, list[Sent]] = defaultdict(list)
        self._moment = 0
        self.acked = 0
        self.deleted = 0

    @property
    def moment(self) -> int:
        """The number of lines sent and acknowledged so far."""
        return self._moment

    def begin_delete(self, keys: Collection[Key]) -> None:
        """Record that what was stored at some keys is about to be deleted."""
        for sent in (sent for key in keys for sent in self._sent[key]):
            sent.may_be_deleted = True

    def end_delete(self, keys: Collection[Key], flushed_at: int) -> None:
        """Record that it is deleted. Lines that were acknowledged before `flushed_at` had been written before."""
        for sent in (sent for key in keys for sent in self._sent[key]):
            if sent.acked and sent.acked_at <= flushed_at:
                sent.deleted = True
                self.deleted += 1

    def send(self, series: Series, ms: int, value: float, connection: int, daemon: int) -> Sent:
        """Record a line before it is sent."""
        self._moment += 1
        sent = Sent(value, connection, daemon, self._moment)
        self._sent[series, ms].append(sent)
        return sent

    def acknowledge(self, sent: Sent) -> None:
        """Record the acknowledgement of a line."""
        self._moment += 1
        if not sent.acked:
            sent.acked, sent.acked_at = True, self._moment
            self.acked += 1

    def safe(self, metric: str) -> dict[Key, Sent]:
        """Return the last acknowledged line of each time of a metric."""
        return {
            key: [sent for sent in lines if sent.acked][-1]
            for key, lines in self._sent.items()
            if key[0][0] == metric and any(sent.acked for sent in lines)
        }

    def check_read(self, stored: Mapping[Key, Sequence[float]], safe: Mapping[Key, Sent]) -> None:
        """Check that a read found the points acknowledged before it, or later ones. Raise Violation."""
        for key, sent in safe.items():
            if sent.may_be_deleted:
                continue
            found = [one for one in self._sent[key] if one.value in stored.get(key, ())]
            if not any(one is sent or not _supersedes(sent, one) for one in found):
                raise Violation(f"not read: {key} = {sent.value}, but {stored.get(key)}")

    def check(self, stored: Mapping[Key, Sequence[float]]) -> None:
        """Check the stored points. Raise Violation. A renamed metric may have a value under each name."""
        for key, values in stored.items():
            if strange := set(values) - {sent.value for sent in self._sent.get(key, ())}:
                raise Violation(f"invented: {key} = {strange}")
        for key, lines in self._sent.items():
            if again := [sent.value for sent in lines if sent.deleted and sent.value in stored.get(key, ())]:
                raise Violation(f"not deleted: {key} = {again}")
            kept = [sent for sent in lines if sent.acked and not sent.may_be_deleted]
            if key not in stored:
                if kept:
                    raise Violation(f"lost: {key} = {[sent.value for sent in kept]}")
                continue
            winners = [sent for sent in lines if sent.value in stored[key]]
            beaten = {sent: [late.value for late in kept if _supersedes(late, sent)] for sent in winners}
            if all(beaten.values()):
                overwritten = ", ".join(f"{sent.value} after {later}" for sent, later in beaten.items())
                raise Violation(f"older value stored: {key} = {overwritten} was acknowledged")


def _supersedes(later: Sent, earlier: Sent) -> bool:
    """Whether a value was certainly written later and so must win."""
    if later.sent_at <= earlier.sent_at:
        return False
    same = later.connection == earlier.connection
    return same or later.daemon > earlier.daemon or (earlier.acked and earlier.acked_at < later.sent_at)


class Names(NamedTuple):
    """The UID table."""

    by_uid: dict[Kind, dict[bytes, bytes]]
    unused: dict[Kind, int]  # UIDs assigned without a name


async def read_names(store: Store, between: bytes = b"") -> Names:
    """Read and check the UID table: names and UIDs map to each other, and no UID exceeds its counter. `between` is a
    name that may be half renamed."""
    forward: dict[Kind, dict[bytes, bytes]] = {kind: {} for kind in Kind}
    reverse: dict[Kind, dict[bytes, bytes]] = {kind: {} for kind in Kind}
    used = dict.fromkeys(Kind, 0)
    async for rows in scan(store, "tsdb-uid"):
        for row in rows:
            for cell in row.cells:
                for kind in Kind:
                    if cell.column == id_column(kind) and row.key == COUNTER_ROW:
                        used[kind] = decode_counter(cell.value)
                    elif cell.column == id_column(kind):
                        forward[kind][row.key] = cell.value
                    elif cell.column == name_column(kind):
                        reverse[kind][row.key] = cell.value
    for kind in Kind:
        owners: dict[bytes, bytes] = {}
        for name, uid in forward[kind].items():
            if name == between:
                continue
            if uid in owners:
                raise Violation(f"{kind.value}: {uid.hex()} was given to {owners[uid]!r} and to {name!r}")
            owners[uid] = name
            if reverse[kind].get(uid) != name:
                raise Violation(f"{kind.value}: {name!r} has {uid.hex()}, which is {reverse[kind].get(uid)!r}")
            if int.from_bytes(uid, "big") > used[kind]:
                raise Violation(f"{kind.value}: {uid.hex()} is above the counter, {used[kind]}")
    return Names(reverse, {kind: used[kind] - len(set(forward[kind].values())) for kind in Kind})


def open_values(waiting: OpenPoints, names: Names) -> dict[Key, list[float]]:
    """Return the value of each open point under its name; of several values the last one."""
    keys = list(waiting.keys)
    found: dict[Key, list[float]] = {}
    for series, instant, flags, bits in zip(*(column.tolist() for column in waiting.columns), strict=True):
        head, tail = keys[series]
        uids = [(tail[at : at + 3], tail[at + 3 : at + 6]) for at in range(0, len(tail), 6)]
        tags = [(names.by_uid[Kind.TAGK][k].decode(), names.by_uid[Kind.TAGV][v].decode()) for k, v in uids]
        value = bits.to_bytes(8, "big", signed=True)[-(flags & 7) - 1 :]
        metric = names.by_uid[Kind.METRIC][head].decode()
        found[(metric, tuple(sorted(tags))), instant >> 1] = [decode_number(flags, value)]
    return found


async def read_points(store: Store, names: Names, renamed: Mapping[bytes, bytes]) -> dict[Key, list[float]]:
    """Return the stored points under the names they were sent with. Check the rows. `renamed` maps new to old names."""
    found: dict[Key, list[float]] = defaultdict(list)
    async for rows in scan(store, "tsdb"):
        for row in rows:
            for key, value in points_of(row, names, renamed):
                found[key].append(value)
    return found


def points_of(row: Row, names: Names, renamed: Mapping[bytes, bytes]) -> Iterator[tuple[Key, float]]:
    """Yield the points of a row as `read_points` returns them."""
    cells = data_cells(row.cells)
    if len(cells) == 1 and (wrong := problems(row.key, cells)):
        raise Violation(f"row {row.key.hex()}: {wrong}")
    _, series, base = split_key(KeyLayout(), row.key)
    metric = names.by_uid[Kind.METRIC][series.metric]
    metric = renamed.get(metric, metric)
    tags = tuple(
        sorted((names.by_uid[Kind.TAGK][k].decode(), names.by_uid[Kind.TAGV][v].decode()) for k, v in series.pairs)
    )
    for point in points(row.key, cells, MergeRules(fix_duplicates=True)):
        yield ((metric.decode(), tags), base * 1000 + point.offset_ms), point.number
