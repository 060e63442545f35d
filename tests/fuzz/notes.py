"""Annotations of a fuzzed daemon: changed by all requests that change them, and compared in answers."""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.fuzz.process import Client
from tests.fuzz.questions import Question
from tests.fuzz.world import HOUR_S, World, note_ms

GLOBAL = ""  # in place of a TSUID
Group = tuple[Any, ...]  # TSUID if it has points, times of these, annotations


class Place(NamedTuple):
    """Where an annotation is stored."""

    tsuid: str
    start: int  # in s or ms


class Notes:
    """Changes annotations and asks for them."""

    def __init__(self, dice: random.Random, world: World, log: Callable[[str], None]) -> None:
        self._dice, self._world, self._log = dice, world, log
        self._number = 0

    def change(self, daemon: Client) -> None:
        """Add, replace or delete annotations, one or several. Raise AssertionError for another answer."""
        match self._dice.choice(["one", "bulk", "delete", "delete_bulk", "one", "bulk"]):
            case "one":
                [new] = self._some(1)
                self._expect(daemon, "POST", "/api/annotation", new, new)
            case "bulk":
                several = self._some(self._dice.choice([2, 5, 30]))
                self._expect(daemon, "POST", "/api/annotation/bulk", several, several)
            case "delete" if self._world.notes:
                tsuid, start = self._dice.choice(list(self._world.notes))
                self._expect(daemon, "DELETE", "/api/annotation", {"tsuid": tsuid, "startTime": start}, None)
                del self._world.notes[tsuid, start]
            case "delete_bulk" if self._world.notes:
                self._delete_bulk(daemon)

    def _some(self, count: int) -> list[dict[str, Any]]:
        """Return new annotations, mostly next to points, and record them."""
        found: dict[Place, dict[str, Any]] = {}
        for _ in range(count):
            one = self._world.any()
            times_ms = list(self._world.stored[one]) or [self._world.now_ms()]
            time_ms = self._dice.choice(times_ms) + self._dice.choice([0, 0, 1000, 777, 7_200_000])
            time_ms = max(time_ms, self._world.uncertain_ms())
            is_global = self._dice.random() < 0.2
            in_s = is_global or time_ms % 1000 == 0 or self._dice.random() < 0.3  # a whole second has one column
            start = time_ms // 1000 if in_s else time_ms
            place = Place(GLOBAL if is_global else one.tsuid, start)
            self._number += 1
            text = {"description": f"n{self._number}", "notes": self._dice.choice(["", "more", "ü" * 50])}
            found[place] = {"tsuid": place.tsuid, **text, "startTime": start, "endTime": 0}
        for place, members in found.items():  # empty members do not change an annotation
            members["notes"] = members["notes"] or self._world.notes.get(place, {}).get("notes", "")
            self._world.notes[place] = members
        self._log(f"notes {list(found)}")
        return list(found.values())

    def _delete_bulk(self, daemon: Client) -> None:
        chosen = self._dice.sample(list(self._world.notes), min(3, len(self._world.notes)))
        tsuids = sorted({tsuid for tsuid, _ in chosen if tsuid != GLOBAL})
        is_global = any(tsuid == GLOBAL for tsuid, _ in chosen)
        first_s = note_ms(chosen[0][1]) // 1000
        span_ms = first_s * 1000, (first_s + self._dice.choice([0, 600, HOUR_S, 5 * HOUR_S])) * 1000
        gone = [
            place
            for place in self._world.notes
            if (is_global if place[0] == GLOBAL else place[0] in tsuids)
            and span_ms[0] <= note_ms(place[1]) <= span_ms[1]
            and (place[0] == GLOBAL or note_ms(place[1]) >= self._world.uncertain_ms())
        ]
        body = {"tsuids": tsuids, "global": is_global, "startTime": str(span_ms[0]), "endTime": str(span_ms[1])}
        self._log(f"delete_bulk {body}")
        status, text = daemon.request("/api/annotation/bulk", body, "DELETE")
        assert status == 200, (status, text)
        deleted = json.loads(text)["totalDeleted"]
        for place in gone:
            del self._world.notes[place]
        # Those that may have expired are not counted.
        assert span_ms[0] < self._world.uncertain_ms() or deleted == len(gone), (deleted, gone)

    def _expect(self, daemon: Client, method: str, path: str, body: object, expected: object) -> None:
        status, text = daemon.request(path, body, method)
        found = json.loads(text) if text else None
        assert (status, found) == (204 if expected is None else 200, expected), (status, text, expected)

    def ask(self, daemon: Client, span_ms: tuple[int, int]) -> None:
        """Compare the annotations of a query's answer. Raise AssertionError if they differ."""
        world, one = self._world, self._world.any()
        asked = Question(one.metric, "none", usage="ROLLUP_RAW")
        scan = asked.scan(span_ms)
        if scan.start_ms < world.uncertain_ms():
            return
        with_global, without = self._dice.random() < 0.6, self._dice.random() < 0.2
        body = {
            "start": span_ms[0], "end": span_ms[1], "queries": [asked.body()], "msResolution": True, "showTSUIDs": True,
            "globalAnnotations": with_global, "noAnnotations": without,
        }  # fmt: skip
        status, text = daemon.request("/api/query", body)
        assert status == 200, (status, text)
        answers = json.loads(text)
        expected: list[Group] = []
        for series in asked.chosen(world.stored):
            points = [at for at in world.stored[series] if scan.start_ms <= at < scan.stop_ms]
            notes = world.notes_of(series.tsuid, scan.start_ms, scan.stop_ms - 1)
            notes = [] if without else notes  # they are not read then
            if points or notes:
                shown = world.notes_of(series.tsuid, *span_ms) if notes else None
                named = (series.tsuid,) if points else ()  # an annotation alone makes an answer without its series
                expected.append((*named, tuple(sorted(t for t in points if span_ms[0] <= t <= span_ms[1])), shown))
        found = [(*each["tsuids"], tuple(map(int, each["dps"])), each.get("annotations")) for each in answers]
        odd = [one for one in found if one not in expected], [one for one in expected if one not in found]
        assert found == expected, (odd, body, self._world.now_ms())
        is_wanted = with_global and not without
        wanted = world.notes_of(GLOBAL, span_ms[0] // 1000 * 1000, span_ms[1]) if is_wanted else []
        for each in answers:
            assert each.get("globalAnnotations", []) == wanted, (each.get("globalAnnotations"), wanted, body)
        if not without:
            self._list(daemon, span_ms)

    def _list(self, daemon: Client, span_ms: tuple[int, int]) -> None:
        first_s, last_s = (at // 1000 for at in span_ms)
        status, text = daemon.request(f"/api/annotations?start_time={first_s}&end_time={last_s}")
        wanted = self._world.notes_of(GLOBAL, first_s * 1000, last_s * 1000)
        assert (status, json.loads(text)) == (200, wanted), (status, text, wanted)
