"""Settings that are read again on SIGHUP: those that may change in a daemon that runs do, the others are named."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from tsd.config import Config, Loaded, keys

log = structlog.get_logger(__name__)

Apply = Callable[[Config], None]


def reread(running: Config, again: Callable[[], Loaded], live: Mapping[str, Apply]) -> Config:
    """The settings that hold from now on: `live` are the keys that may change, and what makes each one act. Raises
    BadConfig, and then nothing has changed."""
    wanted = again().config
    taken: dict[str, Any] = {}
    waiting = []
    for key, field in keys().items():
        value = getattr(wanted, field.name)
        if value == getattr(running, field.name):
            continue
        if key in live:
            live[key](wanted)
            taken[field.name] = value
            log.info("a setting has changed", key=key, value=str(value))
        else:
            waiting.append(key)
    if waiting:
        log.warning("settings have changed that only a restart can make act", keys=" ".join(waiting))
    return replace(running, **taken)
