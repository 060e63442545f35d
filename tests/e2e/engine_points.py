"""Points that tests of remote engines import, and the course of commands that must keep them all."""

from collections.abc import Iterable

from tests.e2e.command import Tsd

T = 1356998400
METRICS = ("a.b", "c.d")
LINES = [
    f"{metric} {T + offset} {host} host=h{host}" for metric in METRICS for host in range(4)
    for offset in (0, 10, 3600, 90_000)
]  # fmt: skip


def text(lines: Iterable[str]) -> bytes:
    """Return lines as input of a command or a connection."""
    return "".join(line + "\n" for line in lines).encode()


def import_points(tsd: Tsd) -> Tsd:
    """Create the tables and import the points, so that rows have several cells."""
    made = tsd.run("create-tables")
    assert (made.status, made.err) == (0, ""), made
    assert "tsdb: created" in made.out
    assert "tsdb: exists" in tsd.run("create-tables").out
    for part in (LINES[::2], LINES[1::2]):
        assert tsd.run("import", "-", stdin=text(part)).status == 0
    return tsd


def check_all_are_kept(tsd: Tsd, home: Tsd, back: Tsd, to_back: list[str]) -> None:
    """Compact, check, copy the points to the embedded store `home`, and from there with `to_back` to `back`."""
    assert sorted(tsd.lines(*METRICS)) == sorted(LINES)
    compacted = tsd.run("compact", "--since", "1")
    assert (compacted.status, compacted.err) == (0, ""), compacted
    assert "rows: 24, compacted 8" in compacted.out
    checked = tsd.run("fsck", "--full-scan")
    assert checked.status == 0, checked
    assert sorted(tsd.lines(*METRICS)) == sorted(LINES)
    assert tsd.run("copy", "--to", f"embedded:{home.folder}").status == 0
    assert sorted(home.lines(*METRICS)) == sorted(LINES)
    done = home.run("copy", *to_back)
    assert done.status == 0, done
    assert sorted(back.lines(*METRICS)) == sorted(LINES)
    assert back.run("mkmetric", "new").out == "metrics new: [0, 0, 3]\n"


def check_delete(tsd: Tsd) -> None:
    """Delete points of one metric; all others stay."""
    assert tsd.run("delete", "a.b", "--since", str(T), "--until", str(T + 20), "--yes").status == 0
    left = [line for line in LINES if not line.startswith("a.b") or int(line.split()[1]) > T + 20]
    assert sorted(tsd.lines(*METRICS)) == sorted(left)
