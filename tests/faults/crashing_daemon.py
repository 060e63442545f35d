"""A daemon that kills itself at a write to a table of entities. Run as a module with the words of the command:

python -m tests.faults.crashing_daemon TABLE before|after serve …
"""

import os
import signal
import sys
from unittest.mock import patch

from tsd.cli import main
from tsd.store.rocksdb.versions import EmbeddedVersions
from tsd.store.versions import VersionColumns

WRITE = EmbeddedVersions.put_columns


def serve(table: str, moment: str) -> None:
    """Run the command. Kill this process before or after the first write to `table`."""

    async def put(versions: EmbeddedVersions, written: str, columns: VersionColumns) -> None:
        if written != table or moment == "after":
            await WRITE(versions, written, columns)
        if written == table:
            os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(EmbeddedVersions, "put_columns", put):
        main()


if __name__ == "__main__":
    serve(sys.argv.pop(1), sys.argv.pop(1))
