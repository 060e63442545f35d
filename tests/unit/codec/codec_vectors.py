"""What OpenTSDB was observed to do, by kind, and where we do otherwise on purpose."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tests

Vector = dict[str, Any]

VECTORS: list[Vector] = json.loads(
    (Path(tests.__file__).parent / "vectors" / "storage_vectors.json").read_text("utf-8")
)
WIRE: list[Vector] = json.loads((Path(tests.__file__).parent / "vectors" / "wire_vectors.json").read_text("utf-8"))


class Departure(NamedTuple):
    """One vector that we do not follow: its outcome in words, ours, and why."""

    opentsdb: str
    here: str
    why: str


def of_kind(kind: str) -> list[Vector]:
    return [vector for vector in VECTORS if vector["kind"] == kind]


def check(departures: dict[str, Departure], name: str, opentsdb: str, here: str) -> None:
    """Our outcome is OpenTSDB's, or the one that stands in `departures`, which then does differ."""
    departure = departures.get(name)
    if departure is None:
        assert here == opentsdb
    else:
        assert (opentsdb, here) == departure[:2]
        assert here != opentsdb


def check_names(departures: dict[str, Departure], vectors: Iterable[Vector], name: Callable[[Vector], str]) -> None:
    """Each departure names one vector."""
    assert set(departures) - set(map(name, vectors)) == set()


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def line_of(vector: Vector) -> str:
    return str(vector["line"])


def body_of(vector: Vector) -> str:
    return str(vector["body"])
