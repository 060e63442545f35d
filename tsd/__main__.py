"""The command `tsd`, and `python -m tsd`. Ctrl-C during the imports ends it without a traceback."""

import signal
from typing import TYPE_CHECKING

from tsd.lazy import LazyModule

if TYPE_CHECKING:
    from tsd import cli
else:
    cli = LazyModule("tsd.cli")  # `main` imports it


def main() -> None:
    """Run a command."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as in the background
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = cli.main
    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
