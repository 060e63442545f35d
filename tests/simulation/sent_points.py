"""What clients sent and were told, and whether what is stored fits it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tsd.codec.merge import MergeRules
from tsd.codec.row import data_cells, points, problems
from tsd.codec.rowkey import Layout, split_key
from tsd.codec.uid import COUNTER_ROW, Kind, decode_counter
from tsd.store import Store, scan

Series = tuple[str, tuple[tuple[str, str], ...]]  # metric, sorted tags
Key = tuple[Series, int]  # series, ms


class Violation(AssertionError):
    """Something that must never be."""


class Sent:
    """One line that was sent whole."""

    __slots__ = ("acked", "acked_at", "connection", "life", "sent_at", "value")

    def __init__(self, value: float, connection: int, life: int, sent_at: int) -> None:
        self.value = value
        self.connection = connection
        self.life = life  # of the daemon that it was sent to
        self.sent_at = sent_at
        self.acked = False
        self.acked_at = 0


class Account:
    """Every good line that was sent, by series and time, in order of sending."""

    def __init__(self) -> None:
        self._sent: dict[Key, list[Sent]] = defaultdict(list)
        self._moment = 0
        self.acked = 0

    def send(self, series: Series, ms: int, value: float, connection: int, life: int) -> Sent:
        """A line is about to be sent."""
        self._moment += 1
        sent = Sent(value, connection, life, self._moment)
        self._sent[series, ms].append(sent)
        return sent

    def acknowledge(self, sent: Sent) -> None:
        """The daemon has said that a line is safe."""
        self._moment += 1
        if not sent.acked:
            sent.acked, sent.acked_at = True, self._moment
            self.acked += 1

    def safe(self, metric: str) -> dict[Key, Sent]:
        """What was acknowledged of a metric by now: the last of each time."""
        return {
            key: [sent for sent in lines if sent.acked][-1]
            for key, lines in self._sent.items()
            if key[0][0] == metric and any(sent.acked for sent in lines)
        }

    def check_read(self, stored: Mapping[Key, Sequence[float]], safe: Mapping[Key, Sent]) -> None:
        """Who reads now finds what was safe when the reading began, or what came later. Raises Violation."""
        for key, sent in safe.items():
            found = [one for one in self._sent[key] if one.value in stored.get(key, ())]
            if not any(one is sent or not _supersedes(sent, one) for one in found):
                raise Violation(f"not read: {key} = {sent.value}, but {stored.get(key)}")

    def check(self, stored: Mapping[Key, Sequence[float]]) -> None:
        """Raises Violation. A metric that was renamed may have two values at a time, under each name."""
        for key, values in stored.items():
            if strange := set(values) - {sent.value for sent in self._sent.get(key, ())}:
                raise Violation(f"invented: {key} = {strange}")
        for key, lines in self._sent.items():
            if key not in stored:
                if any(sent.acked for sent in lines):
                    raise Violation(f"lost: {key} = {[sent.value for sent in lines if sent.acked]}")
                continue
            winners = [sent for sent in lines if sent.value in stored[key]]
            beaten = {
                sent: [late.value for late in lines if late.acked and _supersedes(late, sent)] for sent in winners
            }
            if all(beaten.values()):
                told = ", ".join(f"{sent.value} after {later}" for sent, later in beaten.items())
                raise Violation(f"an older value: {key} = {told} had been acknowledged")


def _supersedes(later: Sent, earlier: Sent) -> bool:
    """Whether a value must win over another, as it surely came after it."""
    if later.sent_at <= earlier.sent_at:
        return False
    same = later.connection == earlier.connection
    return same or later.life > earlier.life or (earlier.acked and earlier.acked_at < later.sent_at)


class Names(NamedTuple):
    """The UID table."""

    by_uid: dict[Kind, dict[bytes, bytes]]
    unused: dict[Kind, int]  # numbers that were counted and lead nowhere


async def read_names(store: Store, between: bytes = b"") -> Names:
    """The UID table, checked: no name leads to a UID that does not lead back, no UID is above its counter. `between` is
    a name that may be half renamed."""
    forward: dict[Kind, dict[bytes, bytes]] = {kind: {} for kind in Kind}
    reverse: dict[Kind, dict[bytes, bytes]] = {kind: {} for kind in Kind}
    used = dict.fromkeys(Kind, 0)
    async for rows in scan(store, "tsdb-uid"):
        for row in rows:
            for cell in row.cells:
                for kind in Kind:
                    if cell.column == kind.id_column and row.key == COUNTER_ROW:
                        used[kind] = decode_counter(cell.value)
                    elif cell.column == kind.id_column:
                        forward[kind][row.key] = cell.value
                    elif cell.column == kind.name_column:
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


async def read_points(store: Store, names: Names, renamed: Mapping[bytes, bytes]) -> dict[Key, list[float]]:
    """Every stored point in the names it was sent under; rows are sound. `renamed` says what a metric was called."""
    found: dict[Key, list[float]] = defaultdict(list)
    async for rows in scan(store, "tsdb"):
        for row in rows:
            cells = data_cells(row.cells)
            if len(cells) == 1 and (wrong := problems(row.key, cells)):
                raise Violation(f"row {row.key.hex()}: {wrong}")
            _, series, base = split_key(Layout(), row.key)
            metric = names.by_uid[Kind.METRIC][series.metric]
            metric = renamed.get(metric, metric)
            tags = tuple(
                sorted(
                    (names.by_uid[Kind.TAGK][k].decode(), names.by_uid[Kind.TAGV][v].decode()) for k, v in series.pairs
                )
            )
            for point in points(row.key, cells, MergeRules(fix_duplicates=True)):
                found[(metric.decode(), tags), base * 1000 + point.offset_ms].append(point.number)
    return found
