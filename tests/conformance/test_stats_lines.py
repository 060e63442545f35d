"""`stats` has the same series under the same names as that of a real OpenTSDB."""

from collections.abc import Callable
from pathlib import Path

from tests.peers.opentsdb import Opentsdb
from tests.running import running

OURS = (
    "ledger.",
    "telnet.",
    "ingest.",
    "journal.",
    "writer.",
    "series.",
    "process.",
    "store.",
    "compactor.",
    "canary.",
    "query.cache.",
    "query.warnings",
    "clients.",
    "rejected.",
    "authentication.",
    "auth.",
    "tls.",
    "http.client-disconnects",
    "http.errors",
    "http.body-bytes",
)


def series(reply: bytes) -> list[str]:
    """Return names and tags of a reply, without the host."""
    words = [line.split(" ") for line in reply.decode().splitlines()]
    return [" ".join([name, *(tag for tag in tags if not tag.startswith("host="))]) for name, _, _, *tags in words]


async def test_stats_lines_are_those_of_opentsdb_in_order(
    opentsdb_shared: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    theirs = series(opentsdb_shared().send(b"stats\n"))
    async with running(tmp_path) as daemon, daemon.client() as client:
        await client.send(b"stats\nexit\n")
        ours = [
            line for line in series(await client.read_to_end()) if not line.startswith(tuple(f"tsd.{o}" for o in OURS))
        ]
    assert len(ours) > 30
    rest = iter(theirs)
    assert [line for line in ours if line not in rest] == []  # `in` consumes `rest`, so this checks the order


async def test_class_tag_follows_the_host(opentsdb_shared: Callable[..., Opentsdb], tmp_path: Path) -> None:
    def tags(reply: bytes) -> list[str]:
        [line] = [line for line in reply.decode().splitlines() if line.startswith("tsd.datapoints.added ")]
        return [tag.partition("=")[0] for tag in line.split(" ")[3:]]

    theirs = tags(opentsdb_shared().send(b"stats\n"))
    async with running(tmp_path) as daemon, daemon.client() as client:
        await client.send(b"stats\nexit\n")
        assert tags(await client.read_to_end()) == theirs == ["type", "host", "class"]
