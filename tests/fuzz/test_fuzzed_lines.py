"""Compare both parsers with the slow reference on random lines."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import reference
from tests.fuzz.comparison import Comparison, split_lines, window_by
from tsd.ingest import series

# Intentional differences from OpenTSDB: docs/differences.md lists them.
DEPARTURES = ("put wire.a 1500000000.5 1 a=b\n", "put wire.a 1500000000.50 1 a=b\n", "put wire.a 9999999999999 1 a=b\n")
LINES = int(os.environ.get("TSD_FUZZ_LINES") or 50_000)  # per parser
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "wire_vectors.json").read_text("utf-8"))


def is_put(vector: dict[str, Any]) -> bool:
    """Whether a vector is one put line whose result depends only on its words."""
    send, reply = str(vector["send"]), str(vector["reply"])
    return (
        send.startswith("put ")
        and send.count("\n") == 1
        and set(vector["config"]) <= {"tsd.core.auto_create_metrics"}
        and "unknown metric" not in reply
        and send not in DEPARTURES
    )


def test_reference_agrees_with_recorded_vectors() -> None:
    puts = [vector for vector in VECTORS if is_put(vector)]
    assert len(puts) > 100
    for vector in puts:
        [line] = split_lines(vector["send"].encode(vector.get("send_encoding", "utf-8")))
        try:
            reference.judge(line)
            refusal_line = ""
        except reference.Refused as refused:
            refusal_line = f"put: {refused}\n"
        assert refusal_line == vector["reply"], vector


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True] if series.HAS_LOOP else [False])
def test_random_lines_agree_with_reference(compiled: bool) -> None:
    comparison = Comparison(window_by(compiled), random.Random(f"{SEED}/{compiled}"))
    comparison.run(LINES)
    assert set(comparison.verdicts) == {"stored", "refused", "command", "too long"}
    assert comparison.verdicts["stored"] > LINES // 4
    assert comparison.verdicts["refused"] > LINES // 10
