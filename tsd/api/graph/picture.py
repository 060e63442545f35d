"""The description of a picture for the process that draws it: numbers, texts and colours, no code."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from tsd.codec.dates import JAVA_ZONES
from tsd.codec.points import Float64, Int64
from tsd.errors import BadQuery

MAX_SIDE, MIN_SIDE = 4096, 64
MAX_TEXT = 200
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\[\s*({_NUMBER})?\s*:\s*({_NUMBER})?\s*\]")
_COLOR = re.compile(r"[x#]?([0-9a-fA-F]{6})")
_FORMAT = re.compile(r"[^%]*(?:%[-+ 0]?\d{0,2}(?:\.\d{1,2})?[efgsd](?:[^%]*%c)?)?(?:%%|[^%])*")
_TIME_FORMAT = re.compile(r"(?:%[aAbBdDeFHIjklmMpRSTyYZz%n]|[^%])*")
_KEY_WORDS = frozenset("out outside left right center top bottom horiz horizontal vertical box nobox inside".split())

Style = Literal["line", "linespoint", "points", "circles", "dots", "filled"]
Smooth = Literal["", "unique", "frequency", "csplines", "acsplines", "bezier", "sbezier"]
Kind = Literal["png", "svg"]


class Curve(msgspec.Struct, frozen=True):
    """One series: times in seconds and values, both as the bytes of doubles."""

    label: str
    times: bytes
    values: bytes
    second: bool = False  # on the axis at the right


class Axis(msgspec.Struct, frozen=True):
    """One of the two value axes."""

    label: str = ""
    low: float | None = None
    high: float | None = None
    format: str = ""
    is_log: bool = False


class Picture(msgspec.Struct, frozen=True):
    """A whole picture."""

    start_s: int
    end_s: int
    curves: Sequence[Curve] = ()
    kind: Kind = "png"
    width: int = 1024
    height: int = 768
    zone: str = ""  # of the times below the graph; "" for the zone of the process, in which dates are read
    title: str = ""
    left: Axis = Axis()
    right: Axis = Axis()
    time_format: str = ""
    key: Sequence[str] = ()
    has_key: bool = True
    background: str = "#ffffff"
    foreground: str = "#000000"
    smooth: Smooth = ""
    style: Style = "linespoint"


def read_picture(params: Mapping[str, Sequence[str]], start_ms: int, end_ms: int) -> Picture:
    """Return the picture of a request's parameters, without curves. Raise BadQuery.

    >>> read_picture({"wxh": ["800x400"], "yrange": ["[0:]"]}, 0, 60000).left.low
    0.0
    """

    def last(name: str) -> str:
        values = params.get(name)
        return values[-1] if values else ""

    width, height = _size(last("wxh"))
    return Picture(
        start_s=start_ms // 1000,
        end_s=max(end_ms, start_ms + 1000) // 1000,
        kind="svg" if "svg" in params else "png",
        width=width,
        height=height,
        zone=JAVA_ZONES.get(last("tz"), last("tz")),
        title=_text(last("title"), "title"),
        left=_axis("y", params),
        right=_axis("y2", params),
        time_format=_matching(_TIME_FORMAT, last("xformat"), "xformat"),
        key=_key(last("key")),
        has_key="nokey" not in params,
        background=_color(last("bgcolor"), "bgcolor") or "#ffffff",
        foreground=_color(last("fgcolor"), "fgcolor") or "#000000",
        smooth=_one_of(last("smooth"), Smooth, "smooth", ""),
        style=_one_of(last("style"), Style, "style", "linespoint"),
    )


def curve(label: str, times: Int64, values: Float64, picture: Picture, *, second: bool = False) -> Curve:
    """Return the curve of a series within a picture. Of the points in one column of pixels only the first, last, lowest
    and highest are kept, which draws the same."""
    within = (times >= picture.start_s * 1000) & (times <= picture.end_s * 1000) & np.isfinite(values)
    seconds, values = times[within] / 1000, values[within]
    kept = thinned(seconds, values, picture.width * 2)
    return Curve(label[:MAX_TEXT], seconds[kept].tobytes(), values[kept].tobytes(), second)


def thinned(times: Float64, values: Float64, columns: int) -> Int64:
    """Return the indexes of the points that are visible in a picture `columns` pixels wide."""
    count = len(times)
    if count <= 4 * columns:
        return np.arange(count)
    span = max(float(times[-1] - times[0]), 1e-9)
    column = np.minimum(((times - times[0]) / span * columns).astype(np.int64), columns - 1)
    order = np.lexsort((values, column))  # within a column from the lowest to the highest
    first = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(first[1:], count) - 1
    return np.unique(np.concatenate([first, last, order[first], order[last]]))


def axis_options(options: Sequence[str]) -> list[bool]:
    """Return for each `o` whether its sub query uses the right axis. Raise BadQuery for any other option."""
    found = []
    for option in options:
        if option.strip() not in ("", "axis x1y1", "axis x1y2"):
            raise BadQuery(f"Invalid option o={option[:50]}: wanted axis x1y1 or axis x1y2")
        found.append(option.strip() == "axis x1y2")
    return found


def _axis(name: str, params: Mapping[str, Sequence[str]]) -> Axis:
    def last(what: str) -> str:
        values = params.get(name + what)
        return values[-1] if values else ""

    low = high = None
    if bounds := last("range"):
        found = _RANGE.fullmatch(bounds)
        if found is None:
            raise BadQuery(f"{name}range={bounds[:50]}: wanted [LOW:HIGH], of which either may be left out")
        low, high = (float(bound) if bound else None for bound in found.groups())
    return Axis(
        _text(last("label"), name + "label"),
        low,
        high,
        _matching(_FORMAT, last("format"), name + "format"),
        f"{name}log" in params,
    )


def _size(text: str) -> tuple[int, int]:
    if not text:
        return 1024, 768
    found = _SIZE.fullmatch(text)
    sides = tuple(map(int, found.groups())) if found else (0, 0)
    if not all(MIN_SIDE <= side <= MAX_SIDE for side in sides):
        raise BadQuery(f"Invalid wxh={text[:50]}: wanted WIDTHxHEIGHT, each from {MIN_SIDE} to {MAX_SIDE}")
    return sides[0], sides[1]


def _text(text: str, name: str) -> str:
    if len(text) > MAX_TEXT:
        raise BadQuery(f"{name}: {len(text)} characters, wanted at most {MAX_TEXT}")
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _matching(pattern: re.Pattern[str], text: str, name: str) -> str:
    text = _text(text, name)
    if not pattern.fullmatch(text):
        raise BadQuery(f"Invalid {name}={text[:50]}")
    return text


def _color(text: str, name: str) -> str:
    if not text:
        return ""
    found = _COLOR.fullmatch(text)
    if found is None:
        raise BadQuery(f"Invalid {name}={text[:50]}: wanted xRRGGBB")
    return f"#{found[1]}"


def _key(text: str) -> list[str]:
    words = text.lower().split()
    if wrong := [word for word in words if word not in _KEY_WORDS]:
        raise BadQuery(f"Invalid key={text[:50]}: {wrong[0][:50]} is none of {', '.join(sorted(_KEY_WORDS))}")
    return words


def _one_of(text: str, names: Any, what: str, default: str) -> Any:
    """Return a word of a Literal, in singular: gnuplot accepts the plural too."""
    known = get_args(names)
    word = text if text in known else text.rstrip("s") if text.rstrip("s") in known else None
    if text and word is None:
        raise BadQuery(f"Invalid {what}={text[:50]}: wanted one of {', '.join(filter(None, known))}")
    return word or default
