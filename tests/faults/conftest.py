"""Faults take their time: of a fast run only a few crashes on the embedded store are part, and a few bad requests."""

from pathlib import Path

import pytest

FAST = {
    "test_kills_on_the_embedded_store",
    "test_faults_that_an_engine_has_not",
    "test_requests_that_nobody_should_send",
    "test_the_end_is_gone",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called with all items there are, not only with those of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.name not in FAST:
            item.add_marker("slow")
