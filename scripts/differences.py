"""Write docs/differences.md from the markers of the tests that pin each difference from OpenTSDB.

    python -m scripts.differences

A test that pins a difference has the marker

    @pytest.mark.difference("name", topic="points", theirs="What OpenTSDB does", ours="What tsd does")

Further tests of the same difference have `@pytest.mark.difference("name")`. `why="…"` adds why it matters. The texts
have no full stop at their end. A test may have several markers. They are read from the syntax trees: no test is
imported, and no peer is needed.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "differences.md"
HEAD = """\
# Differences from OpenTSDB

<!-- Written by `python -m scripts.differences` from the markers of the tests. Edit those, not this page. -->

tsd answers the same and writes the same bytes as OpenTSDB 2.4.1, except where OpenTSDB loses, misplaces or mixes up
data, or fails. Each difference is pinned by the tests in its row. Their paths are below `tests/`.
"""
CORRECTED = """\
These differences apply only on request: with the parameter `corrected`, with `"corrected": true` in the body, or for
all requests with `tsd.query.corrected = true`. [Corrected answers](corrected.md) has a request and both answers for
each, and the accidents that `corrected` leaves unchanged.
"""
TABLE = "| Name | OpenTSDB 2.4.1 | tsd | Tests |\n|---|---|---|---|\n"
TOPICS = {  # topic -> the heading of its section and an introduction, in the order of the page
    "points": ("Points and names", ""),
    "connections": ("Connections", ""),
    "http": ("HTTP", ""),
    "security": ("Security", "[Security](security.md) describes roles, accounts, TLS and proxies.\n"),
    "limits": ("Limits", ""),
    "queries": ("Queries", ""),
    "corrected": ("Corrected queries", CORRECTED),
    "metadata": ("Series, names and annotations", ""),
    "rollups": ("Rollups and histograms", ""),
    "rows": ("Reading, compacting and repairing rows", ""),
    "commands": ("Commands and configuration", ""),
}
REQUIRED = {"topic", "theirs", "ours"}


class BadMarker(Exception):
    """A marker, or the markers of one difference, cannot be used."""


class Marker(NamedTuple):
    """One marker of one test."""

    name: str
    test: str  # PATH::FUNCTION, below tests/
    texts: Mapping[str, str]  # topic, theirs, ours, why; empty for a further test of a difference


class Difference(NamedTuple):
    """One row of the page."""

    name: str
    topic: str
    theirs: str
    ours: str
    why: str
    tests: tuple[str, ...]


def collect(root: Path = ROOT) -> list[Difference]:
    """Return the differences that the tests below `root` pin, by topic and name. Raise BadMarker."""
    markers: dict[str, list[Marker]] = {}
    for path in sorted((root / "tests").rglob("*.py")):
        for marker in read(path.read_text(), str(path.relative_to(root / "tests"))):
            markers.setdefault(marker.name, []).append(marker)
    order = list(TOPICS)
    return sorted(map(combine, markers.values()), key=lambda one: (order.index(one.topic), one.name))


def read(source: str, path: str) -> Iterator[Marker]:
    """Yield the markers of a module's functions. Raise BadMarker."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.difference":
                    yield _marker(call, f"{path}::{node.name}")


def _marker(call: ast.Call, test: str) -> Marker:
    try:
        (name,) = (ast.literal_eval(arg) for arg in call.args)
        texts = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except ValueError as exc:
        raise BadMarker(f"{test}: a marker has one name and texts, all of them literals") from exc
    if unknown := texts.keys() - REQUIRED - {"why"}:
        raise BadMarker(f"{test}: {name}: unknown: {', '.join(sorted(unknown))}")
    if texts and (missing := REQUIRED - texts.keys()):
        raise BadMarker(f"{test}: {name}: missing: {', '.join(sorted(missing))}")
    if texts and texts["topic"] not in TOPICS:
        raise BadMarker(f"{test}: {name}: topic {texts['topic']!r} is none of {', '.join(TOPICS)}")
    return Marker(name, test, texts)


def combine(markers: Iterable[Marker]) -> Difference:
    """Return the difference of all markers with one name. Raise BadMarker unless exactly one of them has texts."""
    markers = list(markers)
    full = [marker for marker in markers if marker.texts]
    if len(full) != 1:
        tests = ", ".join(marker.test for marker in markers)
        raise BadMarker(f"{markers[0].name}: {len(full)} of its markers have texts, wanted 1: {tests}")
    name, test, texts = full[0]
    others = sorted(marker.test for marker in markers if marker is not full[0])
    return Difference(name, texts["topic"], texts["theirs"], texts["ours"], texts.get("why", ""), (test, *others))


def page(differences: Iterable[Difference]) -> str:
    """Return the text of docs/differences.md."""
    differences = list(differences)
    parts = [HEAD]
    for topic, (title, introduction) in TOPICS.items():
        rows = "".join(_row(one) for one in differences if one.topic == topic)
        parts += [part for part in (f"## {title}\n", introduction, TABLE + rows) if part]
    return "\n".join(parts)


def _row(one: Difference) -> str:
    theirs = f"{one.theirs}. {one.why}" if one.why else one.theirs
    ours = one.ours[:1].upper() + one.ours[1:]
    cells = (one.name, theirs, ours, "<br>".join(f"`{test}`" for test in one.tests))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> None:
    """Write the page."""
    try:
        PAGE.write_text(page(collect()))
    except BadMarker as exc:
        sys.exit(f"differences: {exc}")


if __name__ == "__main__":
    main()
