"""Modules that are imported at their first use, or not at all, so that commands start fast."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LazyModule:
    """A module that is imported when one of its names is used first. It is not in `sys.modules` until then: tools that
    look at all modules there would import it, and its driver may not be installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


class LazyLogger:
    """The structlog logger of a module. structlog is imported with the first event: most commands log none.

    Unless a program has configured structlog, events go to standard error: standard output is a command's.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        structlog = importlib.import_module("structlog")
        if not structlog.is_configured():
            structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
        return getattr(structlog.get_logger(self._name), name)


@contextmanager
def without_package(name: str) -> Iterator[None]:
    """Let imports of a package fail meanwhile, unless it is imported already: a library that can use it does
    without."""
    if name in sys.modules:
        yield
        return
    vars(sys)["modules"][name] = None
    try:
        yield
    finally:
        del sys.modules[name]
