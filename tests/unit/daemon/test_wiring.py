"""How the store of a configuration is opened."""

import sys

import pytest

from tsd.config.settings import Backend, Config
from tsd.daemon.wiring import opened_store
from tsd.errors import BadConfig


@pytest.mark.parametrize(("backend", "module"), [(Backend.CASSANDRA, "cassandra"), (Backend.BIGTABLE, "grpc")])
async def test_engine_without_its_library_is_a_mistake_of_the_operator(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, module: str
) -> None:
    """Regression: it counted as an outage. The daemon waited for it, and put all lines into the journal."""
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(BadConfig, match=f"pip install 'tsd-daemon.{backend.value}.'"):
        async with opened_store(Config(backend=backend)):
            pass
