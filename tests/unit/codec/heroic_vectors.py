"""What Heroic was observed to store: its own classes wrote these rows."""

import json
import struct
from pathlib import Path
from typing import Any

import tests

Vector = dict[str, Any]

VECTORS: list[Vector] = json.loads((Path(tests.__file__).parent / "vectors" / "heroic_vectors.json").read_text("utf-8"))
ROWS = [one for one in VECTORS if one["kind"] == "heroic_row"]
TABLE = next(one for one in VECTORS if one["kind"] == "heroic_table" and "cells" in one)
READS = [one for one in VECTORS if one["kind"] == "heroic_read"]
DIGEST = next(one for one in VECTORS if one["kind"] == "heroic_distribution")


def text_of(value: Any) -> str:
    return value["repeat"] * value["times"] if isinstance(value, dict) else str(value)


def pairs_of(pairs: list[Any]) -> dict[str, str]:
    return {text_of(name): text_of(value) for name, value in pairs}


def double_of(text: str) -> float:
    if text.startswith("0xNaN:"):
        [number] = struct.unpack(">d", bytes.fromhex(text.removeprefix("0xNaN:")))
        return float(number)
    return float(text)
