"""What `scripts/bench all` makes of lines and of figures; a run of the systems themselves is no test's."""

import re
import struct
from pathlib import Path

import pytest

from bench.comparison.carbon import points_of
from bench.comparison.loads import SIZES, expected, loads, questions
from bench.comparison.mixes import Mix, Sums, apart, as_paths, churn, growing, late, steady, sums_of, write
from bench.comparison.publish import BEGIN, END, show
from bench.comparison.records import Figures, Record, Run, load, save
from bench.comparison.run import systems
from bench.comparison.sender import Pace, bodies, tick_text
from bench.comparison.systems import EMBEDDED, NAMES, OPENTSDB, VICTORIA
from bench.comparison.tables import report, summary

NOW_S = 1_700_000_000
MIX = Mix("m", "mix", 20, 6, 2, 2, steady, 60)


def series_of(text: bytes) -> set[bytes]:
    return {line.split(b" ", 3)[1] + line.split(b" ", 4)[4] for line in text.splitlines()}


def texts(mix: Mix) -> list[bytes]:
    """Each piece, of all connections."""
    return [b"".join(parts) for parts in zip(*(mix.make(mix, 0, at) for at in range(mix.connections)), strict=True)]


def test_written_pieces_have_the_made_points_and_sums(tmp_path: Path) -> None:
    written = write(MIX, tmp_path, NOW_S)
    assert written.total(0, 6) == Sums(120, pytest.approx(written.total(0, 2).values + written.total(2, 6).values))
    pieces = b"".join(Path(path).read_bytes()[begin:end] for path, begin, end in written.parts(2, 4))
    assert sums_of(pieces).like(written.total(2, 4))
    assert written.end_s <= NOW_S


def test_carbon_gets_equal_points_in_its_format(tmp_path: Path) -> None:
    written = write(MIX, tmp_path, NOW_S)
    own = as_paths(written, 4)
    put, path = (Path(w.paths[1]).read_text().splitlines()[7].split() for w in (written, own))
    assert path == [".".join([put[1], *(tag.split("=")[1] for tag in put[4:])]), put[3], put[2]]
    assert [len(ends) for ends in own.ends] == [4, 4]
    assert own.ends[0][-1] == own.paths[0].stat().st_size


def test_churn_replaces_a_tenth_of_hosts_per_round() -> None:
    mix = MIX._replace(series=400, make=churn, pieces=4)
    before, after = (series_of(texts(mix)[at]) for at in (2, 3))
    assert len(before) == len(after) == 400
    assert len(after - before) == 40


def test_late_points_are_complete_and_unordered() -> None:
    ordered, mixed = texts(MIX), texts(MIX._replace(make=late))
    assert mixed[:2] == ordered[:2]
    assert sorted(b"".join(mixed).splitlines()) == sorted(b"".join(ordered).splitlines())
    assert mixed[2:] != ordered[2:]


def test_sparse_mix_has_one_line_per_row() -> None:
    lines = b"".join(texts(MIX._replace(make=apart))).splitlines()
    rows = {(line.split()[1], int(line.split()[2]) // 3600, *line.split()[4:]) for line in lines}
    assert len(rows) == len(lines) == 120


def test_growing_mix_has_all_series_up_to_its_number() -> None:
    found = texts(MIX._replace(make=growing((10, 30)), pieces=2))
    assert [len(series_of(text)) for text in found] == [10, 20]
    assert not series_of(found[0]) & series_of(found[1])


def test_agent_sends_its_series_every_ten_seconds() -> None:
    pace = Pace(2, 10, 5, 1.0, 4.0)
    lines = b"".join(tick_text(pace, 1, tick, 1000) for tick in range(pace.ticks)).decode().splitlines()
    assert [line.split()[2] for line in lines] == ["1000"] * 10 + ["1010"] * 10
    assert len(series_of("\n".join(lines).encode())) == 10


def test_bodies_have_the_configured_number_of_points() -> None:
    assert [body.count(b'"metric"') for body in bodies(b"put m 1 2 a=b\n" * 5, 2)] == [2, 2, 1]


def test_expected_answers_follow_from_the_lines(tmp_path: Path) -> None:
    day = next(one for one in loads(SIZES["small"]) if one.name == "day")
    written = write(day.mix._replace(series=4, pieces=2, span_s=2 * 3600), tmp_path, NOW_S)
    one, all_of_an_hour, day_s = (expected(written, question) for question in questions(written))
    assert one[:2] == (1, 360)
    assert all_of_an_hour[:2] == (1, 360)
    assert day_s[:2] == (4, 4 * 120)  # a mean for each of two hours' minutes


def test_unwritten_slots_of_a_whisper_file_are_not_points(tmp_path: Path) -> None:
    head = struct.pack(">2LfL", 1, 60, 0.5, 1) + struct.pack(">3L", 28, 10, 3)
    (tmp_path / "w").write_bytes(head + struct.pack(">Ld", 20, 2.5) + bytes(12) + struct.pack(">Ld", 10, 1.0))
    found = points_of(tmp_path / "w")
    assert sorted(found["time"].tolist()) == [10, 20]
    assert found["value"].sum() == 3.5


def small_run() -> Run:
    records = [
        Record("steady", name, number, 1.0, Figures(1000, speed * (number + 1), cpu, store, 100.0))
        for name, speed, cpu, store in (
            (EMBEDDED, 1000.0, 0.5, None),
            (VICTORIA, 500.0, 1.0, None),
            (OPENTSDB, 50.0, 9.0, 11.0),
        )
        for number in range(3 if name != OPENTSDB else 1)
    ]
    records += [
        Record("grow", EMBEDDED, 0, 1.0, Figures(n, 10.0, 1.0, None, 50.0, series=n, held_bytes=400.0))
        for n in (10, 100)
    ]
    latencies = {"one": [5.0, 1.0, 3.0]}
    records.append(Record("day", EMBEDDED, 0, 1.0, Figures(10, 10.0, 1.0, disk_bytes=1.75, queries_ms=latencies)))
    records.append(Record("half", EMBEDDED, 0, 1.0, Figures(10, sent_per_s=500.0, cores=0.25, sync_p50_ms=99.0)))
    records.append(Record("late", VICTORIA, 0, 1.0, Figures(failed="Wrong: 9 are stored")))
    titles = {one.name: one.mix.title for one in loads(SIZES["small"])}
    return Run("small", "a machine", {VICTORIA: "1.79"}, titles, records)


def test_summary_compares_medians() -> None:
    lines = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:]]
        for line in summary(small_run()).splitlines()
    }
    assert lines[EMBEDDED][:4] == ["2,000 (1,000–3,000)", "40.00", "0.50 (0.50–0.50)", "0.50"]
    assert lines[EMBEDDED][-3:-1] == ["1.75", "400"]
    assert lines[OPENTSDB][:5] == ["50", "1.00", "9.00", "20.00", "11.00"]


def test_report_has_all_results_and_failures() -> None:
    text = report(small_run())
    for part in ("5.0 / 2.0", "25.0", "Wrong: 9 are stored", "failed", "VictoriaMetrics 1.79"):
        assert part in text, part


def test_figures_are_stored_and_read_back(tmp_path: Path) -> None:
    run = small_run()
    save(run, tmp_path / "all.json")
    again = load(tmp_path / "all.json")
    assert again == run
    assert again.has("steady", EMBEDDED, 2)
    assert not again.without("steady", EMBEDDED, 2).has("steady", EMBEDDED, 2)


@pytest.mark.slow
def test_figures_are_inserted_between_the_marks(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for file in (tmp_path / "README.md", tmp_path / "docs" / "benchmarks.md"):
        file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    show(small_run(), tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert re.fullmatch(r"before\n.*2,000.*\nafter\n", text, re.DOTALL)
    assert "old" not in text
    pictures = {path.name: path.read_text() for path in (tmp_path / "docs" / "figures").iterdir()}
    assert sorted(pictures) == ["cpu.svg", "disk.svg", "growth.svg", "loads.svg"]
    assert "VictoriaMetrics" in pictures["cpu.svg"]


def test_every_system_has_a_column_in_the_tables() -> None:
    names = [system.name for system in systems(lambda: pytest.fail("no HBase is started"))]
    assert sorted(names) == sorted(NAMES)
