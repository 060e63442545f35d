"""A daemon that kills itself at a write to a table of entities. Run as a module with the words of the command:

python -m tests.faults.crashing_daemon TABLE before|after serve …
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from tsd.cli import main
from tsd.store.rocksdb.versions import EmbeddedVersions
from tsd.store.versions import CellwiseColumns, VersionColumns, VersionedCells

Write = Callable[[Any, str, VersionColumns], Awaitable[None]]


def serve(table: str, moment: str) -> None:
    """Run the command. Kill this process before or after the first write to `table`."""

    def killing(write: Write) -> Write:
        async def put(versions: VersionedCells, written: str, columns: VersionColumns) -> None:
            if written != table or moment == "after":
                await write(versions, written, columns)
            if written == table:
                os.kill(os.getpid(), signal.SIGKILL)

        return put

    with ExitStack() as stack:
        for engine in (EmbeddedVersions, CellwiseColumns):  # HBase and Bigtable inherit from the latter
            stack.enter_context(patch.object(engine, "put_columns", killing(engine.put_columns)))
        main()


if __name__ == "__main__":
    serve(sys.argv.pop(1), sys.argv.pop(1))
