"""Repeated queries of few series are answered as the general way answers them, whatever was written in between."""

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tsd.daemon.settings import now_ms

SETTINGS = {"tsd.core.auto_create_metrics": "true", "tsd.http.query.allow_delete": "true"}
SERIES = [f"host={host} cpu={cpu}" for host in "abc" for cpu in range(3)] + ["host=a", "host=b rack=r"]
FILTERS = (
    "",
    "{host=a}",
    "{host=*}",
    "{cpu=*}",
    "{host=a|b,cpu=1}",
    "{}{host=regexp([ab])}",
    "{rack=*}",
    "{host=b,cpu=2}",
)
FORMS = "sum", "none", "avg", "max:1m-avg", "sum:5m-max-zero", "min:1h-count", "sum:rate", "count:10m-sum:rate", "dev"


class Writer:
    """A client that sends points of random series and times, and does other things."""

    def __init__(self, daemon: Running, chance: random.Random) -> None:
        self._daemon = daemon
        self._chance = chance
        self.hour_s = now_ms() // 1000 // 3600 * 3600
        self._known = chance.sample(SERIES, 4)

    async def act(self) -> None:
        """Do one thing."""
        chance = self._chance
        match chance.choices(("alike", "points", "new", "flush", "drop", "delete"), (8, 6, 1, 2, 0.3, 0.5))[0]:
            case "alike":  # a round of agents
                await self._send([(one, self._time()) for one in self._known])
                start_s, step_s = self._time(), chance.choice((1, 10, 60))
                await self._send([(one, start_s + at * step_s) for at in range(20) for one in self._known])
            case "points":
                await self._send([(chance.choice(self._known), self._time()) for _ in range(chance.randrange(1, 30))])
            case "new":
                self._known = [*self._known, chance.choice(SERIES)]
            case "flush":
                await self._daemon.daemon.flush()
            case "drop":
                self._daemon.daemon.drop_caches()
            case "delete":
                span = f"start={self.hour_s - 7200}&end={self.hour_s - 7200 + chance.randrange(3600)}"
                await http_request(self._daemon, f"/api/query?{span}&m=sum:m{{host=a}}&delete")

    def _time(self) -> int:
        return self.hour_s + self._chance.choice((-2, -1, -1, 0, 0, 0)) * 3600 + self._chance.randrange(3600)

    async def _send(self, points: list[tuple[str, int]]) -> None:
        values = self._chance.choice(((1, 2, 3), (0.5, -0.25, 7.125), (1, 0.5, -3)))
        lines = [f"put m {at_s} {self._chance.choice(values)} {tags}\n" for tags, at_s in points]
        await self._daemon.send_lines("".join(lines).encode())


async def ask(daemon: Running, path: str) -> tuple[int, bytes]:
    response = await http_request(daemon, path)
    return response.status, response.body


@settings(max_examples=8)
@given(st.integers(0, 1 << 40), st.sampled_from(("0", "10000000")), st.booleans())
async def test_answers_are_those_of_the_general_way(seed: int, cache_memory: str, indexed: bool) -> None:
    chance = random.Random(seed)
    own = {"tsd.query.cache_memory": cache_memory, "tsd.query.series_index": str(indexed).lower()}
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), {**SETTINGS, **own}) as daemon:
            writer = Writer(daemon, chance)
            queries = [f"{chance.choice(FORMS)}:m{chance.choice(FILTERS)}" for _ in range(4)]
            for _ in range(12):
                await writer.act()
                start_s = writer.hour_s - chance.choice((0, 600, 3600, 7200))
                end_s = start_s + chance.choice((300, 3600, 9000))
                for m in queries:
                    path = f"/api/query?start={start_s}&end={end_s}&m={m}&arrays&show_tsuids"
                    found = [await ask(daemon, path) for _ in range(3)]
                    wanted = await ask(
                        daemon, f"{path}&global_annotations"
                    )  # these are always answered the general way
                    assert found == [wanted] * 3, (m, start_s - writer.hour_s, end_s - writer.hour_s)
