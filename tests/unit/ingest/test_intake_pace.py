"""Ingest pace: incoming lines slow down large reads, which leave the event loop to writers."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests import layouts
from tests.unit.ingest.parts import Parts, going, line, make_store
from tsd.store.scheduling import HIGH_BYTES_PER_S, SAMPLE_S, IngestLoad

pytestmark = layouts.on_all


@pytest.mark.parametrize(("share", "wanted"), [(1.1, True), (0.5, False)])
async def test_load_is_measured_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, wanted: bool
) -> None:
    load, clock = IngestLoad(), MockClock()
    monkeypatch.setattr("tsd.store.scheduling.trio.current_time", clock.current_time)
    assert not load.is_high()
    one = line(0, 1)
    block = (one + b"\n") * round(share * HIGH_BYTES_PER_S * 2 * SAMPLE_S / (len(one) + 1))
    async with going(Parts(tmp_path, await make_store(), load=load)) as parts:
        while block:
            taken = await parts.intake.take(block)
            block = taken.rest
        await trio.lowlevel.checkpoint()
    clock.jump(2 * SAMPLE_S)
    assert load.is_high() is wanted
