"""Lines of a fleet: every series has a point per round, and rounds are ten seconds apart unless said otherwise.

The metrics of a host are gauges with two decimals, counters and small integers. The same arguments give the same bytes.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

START_S = 1_700_006_400  # start of an hour
ROUND_S = 10
METRICS_A_HOST = 10


class Load(NamedTuple):
    """Amount of data."""

    series: int = 10_000
    points: int = 100
    connections: int = 4
    seed: int = 1
    start_s: int = START_S
    round_s: int = ROUND_S

    @property
    def lines(self) -> int:
        """Total number of lines."""
        return self.series * self.points

    @property
    def after(self) -> "Load":
        """Return the load with the same series' next points, from the next full hour on."""
        end_s = self.start_s + self.points * self.round_s
        return self._replace(seed=self.seed + 1, start_s=-(-end_s // 3600) * 3600)


def series_text(number: int) -> tuple[str, str]:
    """Return metric and tags of a series."""
    host, metric = divmod(number, METRICS_A_HOST)
    return f"bench.host.metric{metric}", f"host=web{host:05d} dc=fra{host % 3} cpu={metric}"


def rounds(load: Load, connection: int) -> Iterator[bytes]:
    """Yield one connection's lines, one round per piece: series with `connection` as remainder of their number."""
    chance = random.Random(load.seed * 1000 + connection)
    mine = [
        (number, metric.encode(), tags.encode())
        for number in range(connection, load.series, load.connections)
        for metric, tags in [series_text(number)]
    ]
    counters = {number: chance.randrange(10**6) for number, _, _ in mine}
    for at in range(load.points):
        time = load.start_s + at * load.round_s
        lines = []
        for number, metric, tags in mine:
            match number % 4:
                case 0 | 1:
                    value = b"%.2f" % chance.uniform(0, 100)
                case 2:
                    counters[number] += chance.randrange(5000)
                    value = b"%d" % counters[number]
                case _:
                    value = b"%d" % chance.randrange(200)
            lines.append(b"put %s %d %s %s\n" % (metric, time, value, tags))
        yield b"".join(lines)
