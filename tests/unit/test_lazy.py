"""Modules that are imported late, or not at all."""

import sys
from importlib import import_module

import pytest

from tsd.lazy import without_package


def test_package_cannot_be_imported_meanwhile() -> None:
    sys.modules.pop("colorsys", None)
    with without_package("colorsys"), pytest.raises(ImportError):
        import_module("colorsys")
    assert import_module("colorsys") is sys.modules["colorsys"]


def test_imported_package_stays() -> None:
    colorsys = import_module("colorsys")
    with without_package("colorsys"):
        assert import_module("colorsys") is colorsys
    assert sys.modules["colorsys"] is colorsys
