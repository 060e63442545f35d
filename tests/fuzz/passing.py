"""Metrics and hosts of a fuzzed daemon whose names are deleted and assigned again, with other UIDs."""

import json
import random
from collections.abc import Callable
from urllib.parse import quote

from tests.fuzz.process import Client, Daemon

PREFIX = "passing"  # of these names
KEY = f"{PREFIX}.k"  # of tags
NAMES = 3


class Passing:
    """Writes points of such names, deletes them with their names, and asks for them."""

    def __init__(self, dice: random.Random, now_s: Callable[[], int]) -> None:
        self._dice, self._now_s = dice, now_s
        self._points: dict[tuple[str, str], dict[int, int]] = {}  # by metric and host
        self._metrics: set[str] = set()  # that exist
        self._hosts: set[str] = set()

    def step(self, daemon: Daemon) -> str:
        """Do one thing, and return what. Raise AssertionError for another answer."""
        dice, metric, host = self._dice, self._name("m"), self._name("h")
        match dice.choice(["put", "put", "put", "metric", "host", "new"]):
            case "metric" if metric in self._metrics:
                daemon.run("delete", metric, *self._span(), "--yes", tries=4)
                daemon.run("uid", "delete", "metrics", metric)
                self._points = {place: own for place, own in self._points.items() if place[0] != metric}
                self._metrics.remove(metric)
                done = f"delete {metric}"
            case "host" if host in self._hosts:
                for each in self._metrics:
                    if self._points.get((each, host)):
                        daemon.run("delete", each, f"{KEY}={host}", *self._span(), "--yes", tries=4)
                daemon.run("uid", "delete", "tagv", host)
                self._points = {place: own for place, own in self._points.items() if place[1] != host}
                self._hosts.remove(host)
                done = f"delete {host}"
            case "new" if metric not in self._metrics:
                status, text = daemon.request("/api/uid/assign", {"metric": [metric]})
                assert status == 200, (status, text)
                self._metrics.add(metric)
                done = f"assign {metric}"
            case _:
                self._put(daemon, metric, host)
                done = f"put {metric} {host}"
        self.ask(daemon)
        return done

    def _put(self, daemon: Client, metric: str, host: str) -> None:
        own = self._points.setdefault((metric, host), {})
        for _ in range(self._dice.choice([1, 5, 30])):
            ago_s = self._dice.choice([0, 0, 60, 3600, 7200]) + self._dice.randrange(100)
            time_s = self._now_s() - ago_s
            own.pop(time_s, None)  # the last of several counts
            own[time_s] = self._dice.randrange(1000)
            daemon.send_lines(f"put {metric} {time_s} {own[time_s]} {KEY}={host}\n")
        self._metrics.add(metric)
        self._hosts.add(host)

    def ask(self, daemon: Client) -> None:
        """Compare all points and names. Raise AssertionError if they differ."""
        for metric in self._all("m"):
            path = f"/api/query?start=3d-ago&end={self._now_s() + 10}&m=none:{quote(metric)}"
            status, text = daemon.request(path)
            if metric not in self._metrics:
                assert status == 400, (status, text[:300], metric)
                assert b"No such name for" in text, (text[:300], metric)
                continue
            assert status == 200, (status, text[:300], metric)
            found = {
                (metric, each["tags"][KEY]): {int(at): value for at, value in each["dps"].items()}
                for each in json.loads(text)
            }
            wanted = {place: own for place, own in self._points.items() if place[0] == metric and own}
            assert found == wanted, (found, wanted)
            host = self._name("h")
            status, text = daemon.request(f"{path}{quote('{' + KEY + '=' + host + '}')}")
            assert status == (200 if host in self._hosts else 400), (status, text[:300], metric, host)
            if status == 200:
                dps = [each["dps"] for each in json.loads(text)]
                own = wanted.get((metric, host))
                assert dps == ([{str(at): value for at, value in sorted(own.items())}] if own else []), (dps, own)

    def _span(self) -> list[str]:
        return ["--since", "1", "--until", str(self._now_s() + 3600)]

    def _name(self, kind: str) -> str:
        return self._dice.choice(self._all(kind))

    def _all(self, kind: str) -> list[str]:
        return [f"{PREFIX}.{kind}{number}" for number in range(NAMES)]
