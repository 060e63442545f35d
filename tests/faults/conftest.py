"""Mark fault tests as slow, except a few short ones."""

from pathlib import Path

import pytest

FAST = {
    "test_torture_kills_embedded",
    "test_torture_refuses_unsupported_fault",
    "test_truncated_segment",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called with all collected tests, not only those of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.name not in FAST:
            item.add_marker("slow")
