"""Telnet lines with names that are not ASCII, in both charsets."""

from pathlib import Path

import pytest

from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tests.unit.server.telnet_parts import T

UTF_8 = {"tsd.network.telnet_charset": "utf-8"}
NAMES = ["m.ü", "e.ÿ", "m.µ/x"]
REFUSED_NAMES = ["m.日", "m.€", "m.😀"]


def put(name: str, *, charset: str = "utf-8") -> bytes:
    return f"put {name} {T} 1 a=b\n".encode(charset)


async def metrics(daemon: Running) -> list[str]:
    found: list[str] = (await http_request(daemon, "/api/suggest?type=metrics")).json
    return found


@pytest.mark.parametrize("name", NAMES)
async def test_utf8_names_are_those_of_http(name: str, tmp_path: Path) -> None:
    async with running(tmp_path, UTF_8) as daemon:
        assert await daemon.send_lines(put(name)) == b"synced 1\n"
        assert await metrics(daemon) == [name]


@pytest.mark.slow
async def test_lines_torn_within_a_character_are_read(tmp_path: Path) -> None:
    line = put("m.ü")
    async with running(tmp_path, UTF_8) as daemon:
        async with daemon.client() as client:
            for at in range(1, len(line)):
                await client.send_whole(line[:at])
                assert await client.send_lines(line[at:]) == b"synced %d\n" % at
        assert await metrics(daemon) == ["m.ü"]


@pytest.mark.parametrize("name", REFUSED_NAMES)
async def test_names_beyond_latin_1_are_refused_with_their_character(name: str, tmp_path: Path) -> None:
    async with running(tmp_path, UTF_8) as daemon:
        reply = (await daemon.send_lines(put("ok") + put(name) + put("p.ü"))).decode()
        assert name[-1] in reply
        assert reply.endswith("synced 2\n")
        assert await metrics(daemon) == ["ok", "p.ü"]
        assert daemon.daemon.ingest.ledger.refused.total() == 1


async def test_invalid_utf8_is_refused_with_its_byte(tmp_path: Path) -> None:
    async with running(tmp_path, UTF_8) as daemon:
        reply = await daemon.send_lines(put("m.ü") + put("n.ü", charset="latin-1") + put("o.ü"))
        assert b"0xfc" in reply
        assert await metrics(daemon) == ["m.ü", "o.ü"]


async def test_errors_of_utf8_lines_have_their_names(tmp_path: Path) -> None:
    async with running(tmp_path, UTF_8) as daemon:
        reply = await daemon.send_lines(put("m.ü:x"))
        assert '"m.ü:x"' in reply.decode()


async def test_negotiation_before_a_utf8_line_is_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path, UTF_8) as daemon:
        assert await daemon.send_lines(b"\xff\xfb\x1f" + put("m.ü")) == b"synced 1\n"
        assert await metrics(daemon) == ["m.ü"]


async def test_small_utf8_senders_are_read_together(tmp_path: Path) -> None:
    """A name in UTF-8 is never taken for another series whose ISO-8859-1 text has the same bytes."""
    async with running(tmp_path, UTF_8) as daemon:
        assert await daemon.send_lines(put("n.Ãª")) == b"synced 1\n"  # its bytes are those of ê in UTF-8
        async with daemon.client() as one, daemon.client() as other:
            for turn in range(1, 10):
                for client in (one, other):
                    await client.send_whole(put("n.ê"))
                    await client.send_whole(put("ok"))
                assert await one.send_lines(b"") == b"synced %d\n" % (2 * turn)
                assert await other.send_lines(b"") == b"synced %d\n" % (2 * turn)
        assert daemon.daemon.ingest.ledger.received == 37
        counts = (await http_request(daemon, f"/api/query?start={T - 1}&end={T + 1}&m=count:n.%C3%83%C2%AA")).json
        assert len(counts[0]["dps"]) == 1
        assert sorted(await metrics(daemon)) == ["n.Ãª", "n.ê", "ok"]


async def test_latin_1_is_the_default(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        assert await daemon.send_lines(put("m.ü", charset="latin-1")) == b"synced 1\n"
        assert await metrics(daemon) == ["m.ü"]


@pytest.mark.difference(
    "utf-8-names-over-telnet",
    topic="points",
    theirs='A refused line in UTF-8 is shown as other characters: `"wire.Ã©"): illegal character: ©`',
    ours="The reason shows what was sent, and names `tsd.network.telnet_charset`, which can be `utf-8`",
)
async def test_refused_utf8_lines_are_shown_as_sent(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        reply = (await daemon.send_lines(put("m.ü"))).decode()
        assert '"m.ü"' in reply
        assert "tsd.network.telnet_charset" in reply
        [client] = [one for one in daemon.daemon.access.clients if one.example]
        assert client.example is not None
        assert '"m.ü"' in client.example.message
