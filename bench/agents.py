"""Lines at the pace of agents: one point of every series per round, hosts spread over the round.

Of four metrics of a host, two are gauges with two decimals that walk, one is a counter and one a small integer. Some
points come late, and some hosts are replaced by new ones every hour. The same arguments give the same bytes.
"""

from collections import deque
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HOUR_S = 3600
METRICS = 50
GROUPS = 10  # of hosts: each sends at its own second of the round
LATE_S = 2700


class Fleet(NamedTuple):
    """Size and behaviour of the agents."""

    series: int
    round_s: int
    hours: float
    start_s: int  # start of an hour
    late: float = 0.01  # fraction of points that come LATE_S after their time
    churn: float = 0.05  # fraction of hosts that are replaced in an hour
    connections: int = 4  # that the hosts share

    @property
    def hosts(self) -> int:
        """Hosts that send at a time."""
        return max(self.series // METRICS, 1)

    @property
    def rounds(self) -> int:
        """Points of a series that is never replaced."""
        return int(self.hours * HOUR_S) // self.round_s

    @property
    def points(self) -> int:
        """Total number of points."""
        return self.hosts * METRICS * self.rounds

    @property
    def end_s(self) -> int:
        """End of the last hour with points."""
        return self.start_s + -(-self.rounds * self.round_s // HOUR_S) * HOUR_S


class Batch(NamedTuple):
    """Lines that are sent at one time."""

    due_s: int
    group: int
    text: bytes
    points: int
    times_s: int  # sum
    cents: int  # sum of values × 100

    def shares(self, connections: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of each connection with its number. Hosts of a group share one, if there are few."""
        if connections <= GROUPS:
            yield self.group % connections, self.text
            return
        found: dict[int, list[bytes]] = {}
        for line in self.text.splitlines(keepends=True):
            found.setdefault(int(line.partition(b" host=web")[2][:5]) % connections, []).append(line)
        for number, lines in found.items():
            yield number, b"".join(lines)

    def with_lines(self, other: "Batch") -> "Batch":
        """Return the batch with the lines of another one of its group, which are sent at the same time."""
        return self._replace(
            text=self.text + other.text, points=self.points + other.points, times_s=self.times_s + other.times_s,
            cents=self.cents + other.cents,
        )  # fmt: skip


def batches(fleet: Fleet) -> Iterator[Batch]:
    """Yield all lines in the order of their due times."""
    chance = np.random.default_rng(1)
    groups = [np.arange(group, fleet.hosts, GROUPS) for group in range(min(GROUPS, fleet.hosts))]
    levels = [chance.uniform(0, 100, (len(hosts), METRICS)) for hosts in groups]
    totals = [chance.integers(0, 10**9, (len(hosts), METRICS)) for hosts in groups]
    held: list[deque[Batch]] = [deque() for _ in groups]
    for at in range(fleet.rounds):
        for group, hosts in enumerate(groups):
            time_s = fleet.start_s + at * fleet.round_s + fleet.round_s * group // GROUPS
            levels[group] = np.clip(levels[group] + chance.normal(0, 1, levels[group].shape), 0, 100)
            totals[group] += chance.integers(0, 5000, totals[group].shape)
            cents = np.choose(
                np.arange(METRICS) % 4,
                [np.rint(levels[group] * 100), np.rint(levels[group] * 100), totals[group] * 100,
                 np.floor(levels[group]) * 100],
            ).astype(np.int64)  # fmt: skip
            lines = _lines(time_s, cents, _tags(fleet, hosts, time_s))
            late = chance.random(cents.shape) < fleet.late
            for chosen, due_s in ((~late, time_s), (late, time_s + LATE_S)):
                places = np.flatnonzero(chosen)
                text = b"".join([lines[place] for place in places.tolist()])
                cents_sum = int(cents.ravel()[places].sum())
                batch = Batch(due_s, group, text, len(places), time_s * len(places), cents_sum)
                if due_s == time_s:
                    own = batch
                elif batch.points:
                    held[group].append(batch)
            while held[group] and held[group][0].due_s <= time_s:
                own = own.with_lines(held[group].popleft())
            yield own
    end_s = fleet.start_s + fleet.rounds * fleet.round_s
    yield from (reduce(Batch.with_lines, late)._replace(due_s=end_s) for late in held if late)


def _tags(fleet: Fleet, hosts: NDArray[np.int64], time_s: int) -> list[bytes]:
    """Return the tags of hosts at a time. Hosts that are replaced get a new name in turns, group by group."""
    hour, into_s = divmod(time_s - fleet.start_s, HOUR_S)
    found = []
    for host in hosts.tolist():
        turns = hour + (into_s * GROUPS >= HOUR_S * (host % GROUPS))
        born = int(host * 0.618034 % 1 + turns * fleet.churn)  # each hour replaces this fraction
        found.append(b"host=web%05d-%d dc=fra%d" % (host, born, host % 3))
    return found


def _lines(time_s: int, cents: NDArray[np.int64], tags: list[bytes]) -> list[bytes]:
    """Return the lines of hosts, host by host."""
    found = []
    for own, row in zip(tags, cents.tolist(), strict=True):
        for metric, value in enumerate(row):
            text = b"%d.%02d" % divmod(value, 100) if metric % 4 < 2 else b"%d" % (value // 100)
            found.append(b"put bench.agents.metric%02d %d %s %s\n" % (metric, time_s, text, own))
    return found
