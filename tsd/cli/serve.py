"""`tsd serve`: run the daemon in the foreground."""

import gc
import time

import trio

from tsd.cli.settings import loaded
from tsd.config import log
from tsd.config.loader import Given
from tsd.daemon import lifecycle


def serve(port: str | None, bind: str | None, **_: object) -> None:
    """Run `tsd serve`."""
    named = (("--port", "tsd.network.port", port), ("--bind", "tsd.network.bind", bind))
    given = [Given(option, key, value) for option, key, value in named if value is not None]
    settings = loaded(given)
    log.configure(settings.config.log_level, settings.config.log_format, time.monotonic)

    with settings.placed_problems():
        trio.run(lifecycle.serve, settings, trio.Event(), tune_collector, lambda: loaded(given))


def tune_collector(*_: object) -> None:
    """Run Python's cycle collector less often: it would scan large lists again and again, which never form cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(25_000, 400, 100)  # a young collection of 25,000 objects takes up to 5 ms
