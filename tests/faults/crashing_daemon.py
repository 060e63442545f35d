"""A daemon or another command that kills itself at a write to a table of entities, or at a deletion from one.

Run as a module with the words of the command:

python -m tests.faults.crashing_daemon TABLE before|after put|delete serve …
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from tsd.cli import main
from tsd.tables.entity.form import FormedRows

CALLS = {"put": "put_columns", "delete": "delete"}


def run(table: str, moment: str, name: str) -> None:
    """Run the command. Kill this process before or after the first call of a kind for `table`."""
    call: Callable[..., Awaitable[None]] = getattr(FormedRows, name)

    async def killing(rows: FormedRows, called: str, *words: Any, **options: Any) -> None:
        if called != table or moment == "after":
            await call(rows, called, *words, **options)
        if called == table:
            os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(FormedRows, name, killing):
        main()


if __name__ == "__main__":
    run(sys.argv.pop(1), sys.argv.pop(1), CALLS[sys.argv.pop(1)])
