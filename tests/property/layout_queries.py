"""Random points and queries for tables of several layouts, and the comparison of their answers."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.property.layout_worlds import LayoutWorld, differs
from tsd.query.model import Query
from tsd.query.parse.uri import read_uri
from tsd.tables.quirks import quirks_for

START_S = 1_356_998_400
HOURS = 5
NOW_S = START_S + HOURS * 3600 - 1000

# Other layouts order the series of a group in another way than UIDs do: `first` and `last` of a group differ.
AGGREGATORS = "sum min max avg none median mult dev count zimsum mimmin mimmax pfsum squareSum p90 ep50r3".split()
FUNCTIONS = "sum min max avg median dev count first last zimsum mimmax p75 ep95r7 mult".split()
INTERVALS = "1s 10s 1m 7m 10m 1h 90m 2h 1dc 1hc 0all".split()
FILTERS = [
    "", "{host=*}", "{dc=*}", "{host=a|c}", "{host=*,dc=lga}", "{host=a}", "{host=wildcard(*)}{dc=literal_or(sjc)}",
    "{}{dc=not_literal_or(lga)}", "{dc=*}{host=regexp([ab])}", "{host=b,cpu=*}", "{}{cpu=iwildcard(*)}", "{host=none}",
]  # fmt: skip
EVERY_NAME = [("a", "lga", "0"), ("b", "sjc", "1"), ("c", "sjc", "1"), ("none", "sjc", "1")]


class Sender:
    """Draws points: late ones, rewritten ones, and those of the present hour."""

    def __init__(self, dice: random.Random, *, only_doubles: bool) -> None:
        self.dice = dice
        self.only_doubles = only_doubles
        tags = [
            f"host={host}{dc}{cpu}"
            for host in ("a", "b", "c")
            for dc in ("", " dc=lga", " dc=sjc")
            for cpu in ("", " cpu=0", " cpu=1")
        ]
        self.series = [(metric, one) for metric in ("x", "y") for one in dice.sample(tags, dice.choice([1, 4, 12]))]
        self.steps = {one: dice.choice([7, 10, 60, 60, 601, 4000]) for one in self.series}
        self.kinds = {one: dice.choice(["integers", "doubles", "mixed"]) for one in self.series}
        self.in_ms = {one: dice.random() < 0.3 for one in self.series}

    def windows(self) -> Iterator[list[str]]:
        """Yield the points of some windows."""
        # OpenTSDB refuses tag names and values that have no UIDs. Layouts without UIDs answer that no series has them.
        seen = [f"z {START_S} 1 host={host} dc={dc} cpu={cpu}" for host, dc, cpu in EVERY_NAME]
        seen += [f"{metric} {START_S} 1 host=a dc=lga cpu=0" for metric in ("x", "y")]
        yield seen
        for _ in range(self.dice.choice([1, 3, 6])):
            lines = [line for series in self.series if self.dice.random() < 0.7 for line in self._some(series)]
            lines += [self._again(line) for line in self.dice.sample(seen, min(len(seen), 30))]
            self.dice.shuffle(lines)
            seen += lines
            yield lines

    def _some(self, series: tuple[str, str]) -> Iterator[str]:
        first = START_S + self.dice.randrange(HOURS * 3600 - 1000)
        last = min(first + self.dice.choice([60, 3600, 2 * 3600, HOURS * 3600]), NOW_S)
        step = self.steps[series]
        times = list(range(first // step * step, last, step))[:400]
        for at in times:
            if at >= START_S and self.dice.random() < 0.9:
                time = f"{at}{self.dice.choice([1, 250, 999]):03}" if self.in_ms[series] else str(at)
                yield f"{series[0]} {time} {self._value(self.kinds[series])} {series[1]}"

    def _again(self, line: str) -> str:
        metric, time, _, tags = line.split(" ", 3)
        return f"{metric} {time} {self._value('mixed')} {tags}"

    def _value(self, kind: str) -> str:
        whole = self.dice.choice([0, 1, -7, 255, 70_000, self.dice.randrange(1000)])
        if kind == "integers" or (kind == "mixed" and self.dice.random() < 0.5):
            return f"{whole}.0" if self.only_doubles else str(whole)
        return str(whole + self.dice.choice([0.0, 0.5, 0.25]))


def draw(dice: random.Random) -> tuple[list[str], int, int]:
    """Return sub queries without the prefix of their metrics, and the bounds in seconds."""
    ms = []
    for _ in range(dice.choice([1, 1, 1, 3])):
        parts = [dice.choice(AGGREGATORS)]
        if dice.random() < 0.3:
            parts.append(dice.choice(["rate", "rate{counter,1000,50}", "rate{dropcounter}"]))
        if dice.random() < 0.7:
            fill = dice.choice(["", "", "-nan", "-zero", "-null"])
            parts.append(f"{dice.choice(INTERVALS)}-{dice.choice(FUNCTIONS)}{fill}")
        ms.append(":".join(parts) + ":%s" + dice.choice(["x", "x", "y"]) + dice.choice(FILTERS))
    first = START_S + dice.choice([0, 0, 1, 1800, 3600, dice.randrange(HOURS * 3600)])
    last = first + dice.choice([1, 600, 3599, 3600, 7199, HOURS * 3600])
    return ms, first, last


def query_of(drawn: tuple[list[str], int, int], prefix: str, *, corrected: bool) -> Query:
    """Return the query of what was drawn."""
    ms, first, last = drawn
    read = read_uri(
        {"start": [str(first)], "end": [str(last)], "m": [m % prefix for m in ms]},
        NOW_S * 1000,
        quirks=quirks_for(corrected),
    )
    return replace(read, ms_resolution=True)


async def compare(worlds: Mapping[str, LayoutWorld], dice: random.Random, *, only_doubles: bool) -> None:
    """Put the same points into all worlds, and compare their answers with those of the plain one with the same prefix,
    whose name is `plain-PREFIX`."""
    prefixes = {world.form.prefix for world in worlds.values()}
    *windows, last = Sender(dice, only_doubles=only_doubles).windows()
    for lines in windows:
        for world in worlds.values():
            await world.put(lines)
            await world.fold(dice)
    for name, world in worlds.items():  # some read the last points from memory
        await world.put(last, stored=name.startswith("plain") or dice.random() < 0.5)
    for number in range(25):
        drawn, corrected = draw(dice), dice.random() < 0.3
        if number % 10 == 9:
            erased = ["none:%sx{host=a}"], *drawn[1:]
            for world in worlds.values():
                await world.answer(replace(query_of(erased, world.form.prefix, corrected=False), delete=True))
        wanted = {}
        for prefix in prefixes:
            wanted[prefix] = await worlds[f"plain-{prefix}"].answer(query_of(drawn, prefix, corrected=corrected))
        for name, world in worlds.items():
            rows, size = dice.choice([1, 2, 7, 100, 1000]), dice.choice([1, 50, 500, 5000, 1 << 20])
            world.cut_pages(rows, size)
            found = await world.answer(query_of(drawn, world.form.prefix, corrected=corrected))
            assert not differs(found, wanted[world.form.prefix]), (name, drawn, corrected, rows, size)
    for world in worlds.values():
        await world.flush()
    for back_h in (0, 1, 3, 100):
        newest = {name: await world.newest("x", back_h) for name, world in worlds.items()}
        assert newest == dict.fromkeys(newest, newest["plain-m."]), back_h
