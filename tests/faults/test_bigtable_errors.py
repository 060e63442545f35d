"""Calls to Bigtable that fail with UNAVAILABLE, DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED: no acknowledged point is lost.

TSD_KILLS sets the number of rounds, as in tests/faults/test_torture.py: a tenth of it.
"""

import os
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_bigtable
from tests.faults.bigtable_relay import relaying
from tests.peers.bigtable import RunningBigtable

ROUNDS = max(int(os.environ.get("TSD_KILLS") or 100) // 10, 1)
SHARE = 0.3  # of calls that fail
T = 1356998400

pytestmark = [pytest.mark.slow]


def test_no_acknowledged_point_is_lost_in_errors(bigtable: RunningBigtable, tmp_path: Path) -> None:
    settings = {"tsd.storage.flush_interval": "20", "tsd.storage.bigtable.timeout": "1000"}
    direct = Tsd(tmp_path / "state", on_bigtable(bigtable, settings))
    assert direct.run("create-tables").status == 0
    sent: list[str] = []
    with relaying(bigtable.address, seed=7) as relay:
        tsd = direct.but({"tsd.storage.bigtable.emulator": f"127.0.0.1:{relay.port}"})
        with tsd.serve() as served:
            for number in range(ROUNDS):
                relay.share = SHARE
                lines = [f"round.r{number} {T + at} {at} host=h{number}-{at % 7}" for at in range(60)]
                said = served.send_lines("".join(f"put {line}\n" for line in lines).encode())
                assert said == b"synced 60\n"
                sent += lines
                served.request("flush")  # may fail
                relay.share = 0.0
                while served.request("flush") is not True:
                    pass
        codes = {code for code, _ in relay.failed}
    assert codes == {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"} or ROUNDS < 10
    metrics = [f"round.r{number}" for number in range(ROUNDS)]
    assert sorted(direct.lines(*metrics)) == sorted(sent)
    checked = direct.run("fsck", "--full-scan")
    assert checked.status == 0, checked
