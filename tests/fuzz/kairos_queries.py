"""Random queries of KairosDB's API."""

import random
from typing import Any

METRICS = ("m.a", "m.b", "m.c")


class Maker:
    """Makes queries."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of a query."""
        return [self._metric() for _ in range(self._dice.choice([1, 1, 1, 2, 3, 5]))]

    def _metric(self) -> dict[str, Any]:
        dice = self._dice
        found: dict[str, Any] = {"name": dice.choice(METRICS)}
        if dice.random() < 0.4:
            found["tags"] = self.tags()
        if dice.random() < 0.45:
            found["group_by"] = [self._grouping() for _ in range(dice.choice([1, 1, 2]))]
        if dice.random() < 0.75:
            found["aggregators"] = [self._step() for _ in range(dice.choice([1, 1, 2, 3]))]
        gaps = any(one["name"] == "gaps" for one in found.get("aggregators", []))
        if dice.random() < 0.15 and not gaps:
            found["order"] = dice.choice(["asc", "desc", "desc"])
        if dice.random() < 0.12:
            found["limit"] = dice.choice([1, 3, 10])
        if dice.random() < 0.05:
            found["exclude_tags"] = True
        return found

    def tags(self) -> dict[str, Any]:
        """Return filters of tags."""
        return self._dice.choice(
            [
                {"host": "h1"}, {"host": ["h1"]}, {"host": ["h1", "h2", "h9"]}, {"dc": "x"},
                {"dc": ["x"], "host": "h2"},
                {"host": "regex:h[0-2]"}, {"host": ["regex:.*3", "h1"]}, {"dc": ["x", "y"]}, {"nosuch": "x"},
                {"host": ["a|b", "h0"]}, {"host": "a.b"}, {"host": ["(", "*", "\u00e9"]}, {"host": "regex:[^h].*"},
                {"host": "a|b"}, {"host": ["=", "h1:2"]},
                {"host": "nosuch"}, {"host": []}, {"dc": "regex:[^x]"}, {"host": "h"}, {"host": "regex:h|h1"},
            ]
        )  # fmt: skip

    def _grouping(self) -> dict[str, Any]:
        match self._dice.choice(["tag", "tag", "tag", "time", "value", "bin"]):
            case "tag":
                names = self._dice.choice([["host"], ["dc"], ["dc", "host"], ["nosuch"], ["host", "nosuch"]])
                return {"name": "tag", "tags": names}
            case "time":
                size = {"value": self._dice.choice([1, 2, 7]), "unit": self._dice.choice(["minutes", "hours", "days"])}
                return {"name": "time", "range_size": size, "group_count": self._dice.choice([1, 2, 24])}
            case "value":
                return {"name": "value", "range_size": self._dice.choice([1, 10, 500])}
        return {"name": "bin", "bins": self._dice.choice([[0], [10, 20], [0, 100, 500, 1000]])}

    def _sampling(self) -> dict[str, Any]:
        units = ["milliseconds", "seconds", "minutes", "minutes", "hours", "hours", "days", "weeks", "months", "years"]
        return {"value": self._dice.choice([1, 1, 2, 7, 10]), "unit": self._dice.choice(units)}

    def _step(self) -> dict[str, Any]:
        dice = self._dice
        if dice.random() < 0.6:
            names = ["avg", "sum", "min", "max", "count", "first", "last", "percentile", "dev", "gaps"]
            found: dict[str, Any] = {"name": dice.choice(names)}
            if dice.random() < 0.9:
                found["sampling"] = self._sampling()
            for flag in ("align_sampling", "align_start_time", "align_end_time"):
                if dice.random() < 0.35:
                    found[flag] = dice.random() < 0.7
            if found["name"] == "percentile":
                found["percentile"] = dice.choice([0.01, 0.5, 0.75, 0.95, 1.0])
            if found["name"] == "gaps":
                found["trim"] = dice.random() < 0.5
                found["sampling"] = {"value": 1, "unit": dice.choice(["hours", "days"])}
            return found
        op = dice.choice(["lt", "lte", "gt", "gte", "equal", "ne"])
        unit = dice.choice(["milliseconds", "seconds", "hours", "days"])
        return dice.choice(
            [
                {"name": "diff"}, {"name": "div", "divisor": dice.choice([2, 0.5, -10])},
                {"name": "scale", "factor": dice.choice([0, 2, -0.5])}, {"name": "rate", "unit": unit},
                {"name": "rate", "sampling": {"value": 10, "unit": unit}}, {"name": "sampler", "unit": unit},
                {"name": "trim", "trim": dice.choice(["first", "last", "both"])},
                {"name": "sma", "size": dice.choice([1, 2, 5])},
                {"name": "filter", "filter_op": op, "threshold": dice.choice([0, 100, 250.25, "text 3"])},
            ]
        )  # fmt: skip
