"""How test files are distributed to the workers of pytest-xdist."""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
CASSANDRA = re.compile(r"\bcassandra\b")  # the fixture, or a parameter of that name


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Runs each file in one worker, and the files that use Cassandra in the same one.

    A Cassandra takes half a minute of CPU to start, and half a GiB of memory.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the group of a test. A worker gets whole groups, in the order of their first tests."""
    file = nodeid.partition("::")[0]
    return "cassandra" if uses_cassandra(file) else file


@cache
def uses_cassandra(file: str) -> bool:
    """Return whether a test file, relative to the root of the tree, names Cassandra."""
    path = TESTS.parent / file
    return path.is_relative_to(TESTS) and CASSANDRA.search(path.read_text()) is not None
