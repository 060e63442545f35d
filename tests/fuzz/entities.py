"""Tables of entities of a fuzzed daemon: compared with the points by a command and by answers for an entity."""

import json
import random

from tests.fuzz.process import Client, Daemon
from tests.fuzz.questions import Series, is_close
from tests.fuzz.world import HOUR_S, World

NEW_MS = 120_000  # by when points are in the answers for an entity


class Entities:
    """Asks for entities."""

    def __init__(self, dice: random.Random, world: World) -> None:
        self._dice, self._world = dice, world

    def check(self, daemon: Daemon) -> None:
        """Have a command compare the tables. Raise AssertionError if they differ."""
        found = json.loads(daemon.run("entity", "check", "--json"))
        assert (found["differences"], found["warnings"]) == (0, 0), found

    def ask(self, daemon: Client) -> None:
        """Compare the points of an entity, and its newest ones. Raise AssertionError if they differ."""
        world, dice = self._world, self._dice
        name = dict(world.any().tags)["host"]
        start_ms = world.now_ms() - dice.choice([HOUR_S, 3 * HOUR_S, 30 * HOUR_S, 96 * HOUR_S]) * 1000
        start_ms, end_ms = max(start_ms, world.uncertain_ms()), world.now_ms() - dice.choice([-5000, 0, 3_600_000])
        if start_ms >= end_ms:
            return
        status, text = daemon.request(f"/api/entity/{name}?start={start_ms}&end={end_ms}")
        assert status == 200, (status, text)
        answers = json.loads(text)["series"]
        found = {(each["metric"], tuple(sorted(each["tags"].items()))): each["dps"] for each in answers}
        for series in world.stored:
            if ("host", name) in series.tags:
                own = found.pop((series.metric, tuple(tag for tag in series.tags if tag[0] != "host")), {})
                self._compare(series, {int(at): value for at, value in own.items()}, start_ms, end_ms)
        assert not found, (list(found), name)

    def _compare(self, series: Series, found: dict[int, float], start_ms: int, end_ms: int) -> None:
        world = self._world
        expected = {at: value for at, value in world.stored[series].items() if start_ms <= at < end_ms}
        odd = [
            (at, found.get(at), expected.get(at))
            for at in found.keys() | expected.keys()
            if not is_close(found.get(at), expected.get(at))
            and world.sent_ms.get((series.tsuid, at), 0) < world.now_ms() - NEW_MS
        ]
        assert not odd, (series, sorted(odd)[:3], len(odd), world.now_ms())
