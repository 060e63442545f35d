"""A flush that is not patient ends where the journal cannot be written, although the store takes everything."""

from pathlib import Path

import trio

from tests import layouts
from tests.unit.ingest.parts import Parts, going, line, make_store

pytestmark = layouts.on_all

PATIENCE_S = 60  # bounds a failure


async def test_flush_does_not_wait_for_a_failing_journal_disk(tmp_path: Path) -> None:
    """Regression: `tsd scan` waited without end."""
    async with going(Parts(tmp_path, await make_store())) as parts:
        in_the_way = tmp_path / "journal" / "0000000000000000.journal"
        in_the_way.touch()
        await parts.take(line(0, 1))
        with trio.fail_after(PATIENCE_S):
            assert not await parts.writer.flush(patient=False)
        assert parts.writer.trouble is None
        in_the_way.unlink()
        assert await parts.writer.flush()
        assert parts.journal.trouble is None
    assert parts.ledger.stored == 1
