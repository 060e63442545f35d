"""Stores of the tests of repeated queries."""

import pytest

from tests.unit.api.short_queries import on_hbase


@pytest.fixture(params=["embedded", pytest.param("hbase", marks=[pytest.mark.slow, pytest.mark.hbase])])
def place(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of a store."""
    return on_hbase(request.getfixturevalue("hbase")) if request.param == "hbase" else {}
