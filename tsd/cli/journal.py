"""`tsd journal`: print the lines of the journal's files, also of damaged ones."""

import sys
from pathlib import Path

import click

from tsd.config.files import exists, is_file
from tsd.errors import TsdError
from tsd.ingest.journal.segment import write_readable


class _PrintError(Exception):
    """Standard output cannot be written, or has no reader."""

    def __init__(self, cause: OSError) -> None:
        super().__init__()
        self.cause = cause


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def journal(files: tuple[Path, ...]) -> None:
    """Print the lines of segments of the journal, or of files in its quarantine.

    `tsd send` stores them through the running daemon. `tsd import` is faster, but takes put lines only, not those of
    rollups and histograms.

    Of all files what can be read is printed. Exit status 1 if some are damaged or missing: lines may be missing or
    changed.
    """
    damaged, unread = [], []
    for path in files:
        try:
            if exists(path) and not is_file(path):
                unread.append(f"{path}: not a regular file")
            elif not write_readable(path, _print):
                damaged.append(path)
        except OSError as exc:
            unread.append(f"{path}: {exc.strerror or exc}")
        except _PrintError as exc:
            raise exc.cause from exc
    if damaged:
        unread.append(f"damaged, lines may be missing or changed: {', '.join(map(str, damaged))}")
    if unread:
        sys.stdout.flush()
        raise TsdError("; ".join(unread))


def _print(text: bytes) -> None:
    """Write text to standard output. Raise _PrintError."""
    try:
        sys.stdout.buffer.write(text)
    except OSError as exc:
        raise _PrintError(exc) from exc
