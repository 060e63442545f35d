"""What every engine refuses, so that none stores what another could not. The bounds are HBase's."""

from tsd.codec.rowkey import LONGEST_KEY
from tsd.errors import StoreError


def check_row(row: bytes) -> None:
    """Raise StoreError for a row key that HBase would not take."""
    if not 0 < len(row) <= LONGEST_KEY:
        raise StoreError(f"a row key has 1 to {LONGEST_KEY} bytes, this one {len(row)}: {row[:32].hex()}")


def check_column(column: bytes) -> None:
    """Raise StoreError for a column that names no family.

    HBase's gateway drops a put to such a column without a word, and takes a delete of one for its whole family.
    """
    if b":" not in column:
        raise StoreError(f"a column is family:qualifier, not {column.hex()}")
