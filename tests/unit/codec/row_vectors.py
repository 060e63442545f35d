"""Vectors of fsck, and where it departs from OpenTSDB's."""

from collections.abc import Iterable

from tests.unit.codec.codec_rows import show
from tests.unit.codec.codec_vectors import Departure, Vector, unhex
from tsd.codec.opentsdb.merge import StoredCell

NOTE_JSON = "7b6f6f7073"
HEALED = "readers mend the point, so it is not deleted"
KEPT = "an integer on 8 bytes is a point like others"
FSCK_DEPARTURES = {
    f"{options}: {before}": departure
    for options in ("--fix-all", "--fix-all --last-write-wins")
    for before, departure in {
        "000f=42280000": Departure("", "000b=42280000", HEALED),
        "0007=2a": Departure("", "0000=2a", HEALED),
        "0000=000000000000002a": Departure("", "0000=2a", HEALED),
        "0000=2a00": Departure("", "0001=2a00", HEALED),
        "00000010=2a00": Departure("", "00000010=2a0000", "readers need no last byte, so the points are not deleted"),
        f"010000={NOTE_JSON} 0000=2a 0010=2b": Departure(
            f"00000010=2a2b00 010000={NOTE_JSON}",
            "00000010=2a2b00",
            "OpenTSDB itself cannot read a row with such a note",
        ),
        "060000=00010000 0000=2a 0010=2b": Departure(
            "00000010=2a2b00 060000=00010000", "00000010=2a2b00", "OpenTSDB itself cannot read such a histogram"
        ),
    }.items()
} | {
    "--fix-all: 0000=01 0017=7fffffffffffffff": Departure("0000=01", "00000017=017fffffffffffffff00", KEPT),
    "--fix: 00000017=017fffffffffffffff00": Departure("0000=01", "00000017=017fffffffffffffff00", KEPT),
    "--fix-all: 00000017=017fffffffffffffff00 0020=05": Departure(
        "00000020=010500", "000000170020=017fffffffffffffff0500", KEPT
    ),
}


def cells_of(found: Iterable[Vector]) -> list[StoredCell]:
    return [StoredCell(unhex(c["qualifier_hex"]), unhex(c["value_hex"]), c.get("cell_ts", 0)) for c in found]


def fsck_of(vector: Vector) -> str:
    """Flags and cells, those that are not the oldest with their age."""
    before = cells_of(vector["before"])
    oldest = min(cell.time_ms for cell in before)
    ages = [f"{show([cell])}@{cell.time_ms - oldest}".removesuffix("@0") for cell in before]
    return f"{' '.join(vector['options'])}: {' '.join(ages)}"
