"""Lines by chance, in both ways that they are taken, against the slow reference; and streams cut at every byte."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import reference
from tests.fuzz.against import Contest, rows_by, split_lines
from tsd.ingest import compiled

# OpenTSDB's reading of these is not ours, on purpose: README says so.
DEPARTURES = ("put wire.a 1500000000.5 1 a=b\n", "put wire.a 1500000000.50 1 a=b\n", "put wire.a 9999999999999 1 a=b\n")
LINES = int(os.environ.get("TSD_FUZZ_LINES") or 150_000)  # in each way
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "wire_vectors.json").read_text("utf-8"))


def is_put(vector: dict[str, Any]) -> bool:
    """Whether a vector is one put line that nothing but its words decides about."""
    send, reply = str(vector["send"]), str(vector["reply"])
    return (
        send.startswith("put ")
        and send.count("\n") == 1
        and set(vector["config"]) <= {"tsd.core.auto_create_metrics"}
        and "unknown metric" not in reply
        and send not in DEPARTURES
    )


def test_the_reference_says_what_opentsdb_says() -> None:
    puts = [vector for vector in VECTORS if is_put(vector)]
    assert len(puts) > 100
    for vector in puts:
        [line] = split_lines(vector["send"].encode(vector.get("send_encoding", "utf-8")))
        try:
            reference.judge(line)
            said = ""
        except reference.Refused as refused:
            said = f"put: {refused}\n"
        assert said == vector["reply"], vector


@pytest.mark.slow
@pytest.mark.parametrize("by_loop", [False, True] if compiled.HAS else [False])
def test_lines_by_chance_are_judged_as_the_reference_judges_them(by_loop: bool) -> None:
    contest = Contest(rows_by(by_loop), random.Random(f"{SEED}/{by_loop}"))
    contest.run(LINES)
    assert set(contest.verdicts) == {"stored", "refused", "command", "too long"}
    assert contest.verdicts["stored"] > LINES // 4
    assert contest.verdicts["refused"] > LINES // 10
