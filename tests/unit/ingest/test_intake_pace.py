"""Lines that come in are told to those who read very much: they leave the event loop to writers."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.unit.ingest.parts import Parts, going, line, make_store
from tsd.store.turns import MUCH_BYTES_S, SPAN_S, Pace


@pytest.mark.parametrize(("share", "wanted"), [(1.1, True), (0.5, False)])
async def test_whether_much_came_in_is_seen_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, wanted: bool
) -> None:
    pace, clock = Pace(), MockClock()
    monkeypatch.setattr("tsd.ingest.intake.PACE", pace)
    monkeypatch.setattr("tsd.store.turns.trio.current_time", clock.current_time)
    assert not pace.wanted()
    one = line(0, 1)
    block = (one + b"\n") * round(share * MUCH_BYTES_S * 2 * SPAN_S / (len(one) + 1))
    async with going(Parts(tmp_path, await make_store())) as parts:
        while block:
            taken = await parts.intake.take_in(block)
            block = taken.rest
        await trio.lowlevel.checkpoint()
    clock.jump(2 * SPAN_S)
    assert pace.wanted() is wanted
