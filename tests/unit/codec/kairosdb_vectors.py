"""What KairosDB was observed to store, and its telnet lines as points."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tests
from tsd.codec.kairosdb.keys import DOUBLE, LONG, STRING
from tsd.codec.kairosdb.rows import RowSpec, Unit
from tsd.codec.text import parse_double
from tsd.errors import BadLine

Vector = dict[str, Any]

VECTORS: dict[str, Any] = json.loads(
    (Path(tests.__file__).parent / "vectors" / "kairosdb_vectors.json").read_text("utf-8")
)
STORAGE: list[Vector] = VECTORS["storage"]
SPECS = {
    "": RowSpec(),
    "tag_indexed": RowSpec(),
    "legacy": RowSpec(Unit.LEGACY),
    "seconds": RowSpec(Unit.SECONDS, 1_814_400),
}
SECONDS_BELOW = 3_000_000_000
LONGEST_TTL = 600_000_000  # a point must expire before 2038: later ones were lost
WORD = re.compile(r'"(.*?)(?:"(?=[\0- ])|"?$)|([^\0- ]+)', re.DOTALL)
INTEGER = re.compile(r"-?[0-9]+")


class Point(NamedTuple):
    """A point as KairosDB stores it."""

    metric: str
    time_ms: int
    type: str
    value: int | float | str
    tags: dict[str, str]
    ttl_s: int


def spec_of(vector: Vector) -> RowSpec:
    return SPECS[vector.get("mode", "")]


def points_of(vector: Vector) -> Iterator[Point]:
    """The points that KairosDB took of a case's telnet lines."""
    for line in vector["lines"]:
        try:
            point = point_of(line.encode().decode("latin-1").removesuffix("\r"))
        except (BadLine, ValueError):
            continue
        if 0 <= point.ttl_s <= LONGEST_TTL:
            yield point


def point_of(line: str) -> Point:
    verb, metric, time, text, *words = [match[1] if match[2] is None else match[2] for match in WORD.finditer(line)]
    time_ms = integer(time) * (1000 if verb == "put" and integer(time) < SECONDS_BELOW else 1)
    kind, value = (STRING, text) if verb == "puts" else number(text)
    ttl_s, tags = 0, {}
    for word in words:
        name, tagv, *_ = word.split("=")
        if name == "kairos_opt.ttl" and tagv:
            ttl_s = integer(tagv)
            if abs(ttl_s) >> 31:
                raise ValueError(word)
        elif not name or not tagv or name in tags:
            raise ValueError(word)
        else:
            tags[name] = tagv
    return Point(metric, time_ms, kind, value, tags or {"add": "tag"}, ttl_s)


def number(text: str) -> tuple[str, int | float]:
    if "." not in text:
        return LONG, integer(text)
    if not re.search("[0-9]", text):
        raise ValueError(text)
    return DOUBLE, parse_double(text.encode("latin-1"))


def integer(text: str) -> int:
    if not INTEGER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(text)
    return int(text)
