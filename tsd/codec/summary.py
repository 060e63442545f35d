"""What one line of a rollup or a histogram says: a whole cell, of a series that is still known by its names."""

from typing import NamedTuple

from tsd.codec.putline import Tags


class Summary(NamedTuple):
    """A cell to be."""

    table: str
    metric: bytes
    tags: Tags
    base: int  # of its row: Unix seconds
    column: bytes  # with the family
    value: bytes
    flag_bits: int = 0  # at the column's end: they tell the number's form, and no other place
