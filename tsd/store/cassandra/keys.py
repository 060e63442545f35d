"""Row keys, partitions and directories, and the shape of a table, which its comment in Cassandra holds.

Cassandra orders rows within a partition only. A partition has the rows whose keys start with the same bytes, so that
the order of partitions, by these bytes, is the order of rows. Directories list the partitions in order: a root lists
the directories, and each directory lists the partitions whose keys start with its own.
"""

import re
from typing import NamedTuple

MARK = "tsd cells"
ROOT = b""  # the directory of directories
LONGEST_NAME = 48  # of a table in Cassandra


class Prefixes(NamedTuple):
    """Lengths of the prefixes of a row key that name its directory and its partition. Directory 0: only the root."""

    directory: int
    partition: int


class Shape(NamedTuple):
    """A table of the store, as its comment describes it."""

    name: str
    families: tuple[bytes, ...]
    widths: Prefixes

    def partition(self, row: bytes) -> bytes:
        """Return the partition of a row.

        >>> Shape("tsdb", (b"t",), Prefixes(1, 3)).partition(b"abcde"), Shape("x", (), Prefixes(0, 2)).partition(b"a")
        (b'abc', b'a')
        """
        return row[: self.widths.partition]

    def directory(self, row: bytes) -> bytes:
        """Return the directory of a row or a partition."""
        return row[: self.widths.directory]

    def entries(self, partition: bytes) -> list[tuple[bytes, bytes]]:
        """Return the entries that lead to a partition, as (directory, what it lists).

        >>> Shape("tsdb", (b"t",), Prefixes(1, 3)).entries(b"abc")
        [(b'a', b'abc'), (b'', b'a')]
        >>> Shape("tsdb", (b"t",), Prefixes(0, 3)).entries(b"abc")
        [(b'', b'abc')]
        """
        directory = self.directory(partition)
        return [(directory, partition), *([(ROOT, directory)] if directory else [])]


def comment(shape: Shape) -> str:
    """Return the comment of a table.

    >>> comment(Shape("tsdb-uid", (b"id", b"name"), Prefixes(0, 2)))
    'tsd cells: tsdb-uid; families id,name; prefixes 0,2'
    """
    families = ",".join(family.decode("latin-1") for family in shape.families)
    return f"{MARK}: {shape.name}; families {families}; prefixes {shape.widths.directory},{shape.widths.partition}"


_COMMENT = re.compile(rf"{MARK}: (.+); families ([^;]*); prefixes (\d+),(\d+)", re.DOTALL)


def parse_comment(text: str) -> Shape | None:
    """Return the shape of a table by its comment, None if it is not a table of a store.

    >>> parse_comment("tsd cells: tsdb-uid; families id,name; prefixes 0,2")
    Shape(name='tsdb-uid', families=(b'id', b'name'), widths=Prefixes(directory=0, partition=2))
    >>> parse_comment("made by hand")
    """
    match = _COMMENT.fullmatch(text)
    if match is None:
        return None
    families = tuple(word.encode("latin-1") for word in match[2].split(","))
    return Shape(match[1], families, Prefixes(int(match[3]), int(match[4])))


def cassandra_name(name: str) -> str:
    """Return a table's name in Cassandra, which allows letters, digits and underscores only. Not always unique.

    >>> cassandra_name("tsdb-uid")
    'tsdb_uid'
    """
    return re.sub("[^a-zA-Z0-9_]", "_", name)[:LONGEST_NAME]


def bounds(partition: bytes, start: bytes, stop: bytes | None) -> tuple[bytes, bytes | None]:
    """Return the part of a partition from row `start` to before `stop`, as ends of row keys after the partition's.

    >>> bounds(b"ab", b"abc", b"abx"), bounds(b"ab", b"a", b"b"), bounds(b"ab", b"ab", None)
    ((b'c', b'x'), (b'', None), (b'', None))
    """
    low = start[len(partition) :] if start.startswith(partition) else b""
    high = stop[len(partition) :] if stop is not None and stop.startswith(partition) else None
    return low, high
