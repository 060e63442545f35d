"""Cells that other programs write: append columns, single points and joined ones, at times that have no point."""

import random

from tests.fuzz.questions import SALTS, Series
from tests.fuzz.world import HOUR_S, World
from tests.query_vectors import Value
from tsd.codec.opentsdb.cell import APPEND, COLUMN, Point, join, join_append, ms_qualifier, seconds_qualifier
from tsd.codec.opentsdb.rowkey import salt_of
from tsd.codec.text import encode_float, encode_integer
from tsd.store import Put


class Cells:
    """Draws cells of rows of OpenTSDB's layout."""

    def __init__(self, dice: random.Random, world: World) -> None:
        self._dice, self._world = dice, world
        self._appended: set[bytes] = set()  # rows with an append column: a put would replace it

    def draw(self) -> list[Put]:
        """Return puts for some rows, and note their points as stored."""
        return [put for _ in range(self._dice.choice([1, 5, 30])) for put in self._row(self._world.any())]

    def _row(self, series: Series) -> list[Put]:
        dice, own = self._dice, self._world.stored[series]
        if not own:
            return []
        base_s = dice.choice(list(own)) // (HOUR_S * 1000) * HOUR_S
        places = {self._place_ms() for _ in range(dice.choice([1, 1, 3, 20]))}
        free = [
            place_ms
            for place_ms in sorted(places)
            if (time_ms := base_s * 1000 + place_ms) not in own and time_ms < self._world.now_ms()
        ]
        if not free:
            return []
        points = []
        for place_ms in free:
            value = dice.choice([dice.randrange(-5, 70_000), dice.randrange(100) + 0.1])
            own[base_s * 1000 + place_ms] = value
            self._world.sent_ms[series.tsuid, base_s * 1000 + place_ms] = self._world.now_ms()
            points.append(self._point(place_ms, value))
        uids = bytes.fromhex(series.tsuid)
        salt = salt_of(uids[:3], uids[3:], series.salt_width, SALTS)
        return self._cells(salt + uids[:3] + base_s.to_bytes(4, "big") + uids[3:], points)

    def _place_ms(self) -> int:
        dice = self._dice
        if self._world.has_ms and dice.random() < 0.4:
            return dice.choice([1, 999, HOUR_S * 1000 - 1, dice.randrange(HOUR_S * 1000)])
        return dice.choice([0, HOUR_S - 1, dice.randrange(HOUR_S), dice.randrange(HOUR_S)]) * 1000

    def _point(self, place_ms: int, value: Value) -> Point:
        flags, text = encode_integer(value) if isinstance(value, int) else encode_float(value)
        if place_ms % 1000 == 0 and self._dice.random() < 0.8:
            return Point(seconds_qualifier(place_ms // 1000, flags), text)
        return Point(ms_qualifier(place_ms, flags), text)

    def _cells(self, key: bytes, points: list[Point]) -> list[Put]:
        form = self._dice.choice(["append", "joined", "single"])
        if form == "single":
            return [Put(key, COLUMN + point.qualifier, point.value) for point in points]
        if form == "joined" or key in self._appended:
            joined = join(points)
            return [Put(key, COLUMN + joined.qualifier, joined.value)]
        self._appended.add(key)
        return [Put(key, COLUMN + APPEND, join_append(self._dice.sample(points, len(points))))]
