"""`tsd query --url` with a daemon of tsd, and the forms of `tsd query` without it."""

import json
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trustme

from tests.e2e.command import HOST, Done, Served, Tsd

pytestmark = pytest.mark.slow
START_S = 1356998400
LINES = b"put url.cpu 1356998400 1 host=web01\nput url.cpu 1356998460 2.5 host=web01\n"
WORDS = ("1356998400", "1356998460", "sum:url.cpu{host=*}")
CSV = "time,metric,host,value\n1356998400000,url.cpu,web01,1.0\n1356998460000,url.cpu,web01,2.5\n"


@pytest.fixture
def tsd(tmp_path: Path) -> Tsd:
    return Tsd(
        tmp_path / "state", {"tsd.auth.file": str(tmp_path / "accounts"), "tsd.core.authentication.enable": "true"}
    )


@pytest.fixture
def served(tsd: Tsd, tmp_path: Path) -> Iterator[Served]:
    """A daemon with points, in which only accounts may read."""
    added = tsd.run("token", "add", "reader", "--role", "read")
    assert added.status == 0, added
    (tmp_path / "token").write_text(added.out.split()[0])
    with tsd.serve("--port", "0", "--set", "tsd.access.anonymous=write") as daemon:
        daemon.send_lines(LINES)
        yield daemon


def ask(tsd: Tsd, url: str, *words: str, token: str = "") -> Done:
    return tsd.run("query", "--url", url, *words, env={"TSD_TOKEN": token} if token else None)


def test_token_and_password_of_url_are_sent(tsd: Tsd, served: Served, tmp_path: Path) -> None:
    token, words = (tmp_path / "token").read_text(), ("--format", "csv", *WORDS)
    assert ask(tsd, f"http://{HOST}:{served.port}", *words, token=token) == Done(0, CSV, "")
    assert ask(tsd, f"http://reader:{token}@{HOST}:{served.port}", *words) == Done(0, CSV, "")
    refused = ask(tsd, f"http://reader:wrong@{HOST}:{served.port}", *words)
    assert refused.status == 1
    assert "wrong" not in refused.err
    assert "401" in refused.err


@pytest.mark.parametrize("token", ["a\nb", "a\r\nX-B: c", "é", "€"])
def test_token_of_other_characters_is_refused_and_not_shown(tsd: Tsd, token: str) -> None:
    """Regression: it ended with a traceback that showed it."""
    done = ask(tsd, f"http://{HOST}:1", *WORDS, token=token)
    assert (done.status, done.err.startswith("tsd: "), token in done.err) == (1, True, False)


def test_certificate_of_an_own_authority_is_trusted_if_named(tmp_path: Path) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    leaf = authority.issue_cert(HOST, key_type=trustme.KeyType.ECDSA)
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    files = {"tsd.tls.certificate": str(tmp_path / "cert.pem"), "tsd.tls.key": str(tmp_path / "key.pem")}
    tsd = Tsd(tmp_path / "state", files)
    with tsd.serve() as daemon:
        daemon.send_lines(LINES)
        words = ("query", "--url", f"https://{HOST}:{daemon.port}", "--format", "csv", *WORDS)
        assert tsd.run(*words, env={"SSL_CERT_FILE": str(tmp_path / "authority.pem")}) == Done(0, CSV, "")
        refused = tsd.run(*words)
        assert (refused.status, refused.out) == (1, "")
        assert f"the certificate of https://{HOST}:{daemon.port} is refused" in refused.err
        assert "SSL_CERT_FILE" in refused.err


def test_table_fits_80_columns(tsd: Tsd, served: Served, tmp_path: Path) -> None:
    done = ask(tsd, f"http://{HOST}:{served.port}", *WORDS, token=(tmp_path / "token").read_text())
    name, *rows = done.out.splitlines()
    assert name == "url.cpu{host=web01}"
    assert [row.split()[-1] for row in rows] == ["1.0", "2.5"]
    assert max(map(len, rows)) <= 80


@pytest.mark.parametrize("form", ["csv", "table", "json"])
def test_store_answers_as_its_daemon_over_http(tsd: Tsd, served: Served, tmp_path: Path, form: str) -> None:
    token = (tmp_path / "token").read_text()
    remote = ask(tsd, f"http://{HOST}:{served.port}", "--format", form, *WORDS, token=token)
    local = tsd.run("query", "--format", form, *WORDS)
    assert local.status == 0
    if form == "json":
        assert json.loads(local.out) == json.loads(remote.out)
    else:
        assert local == remote


def test_picture_has_the_given_size(tsd: Tsd, served: Served, tmp_path: Path) -> None:
    url, token = f"http://{HOST}:{served.port}", (tmp_path / "token").read_text()
    options = ("--size", "300x200", "--title", "Load", "--yrange", "[0:10]", "--graph")
    remote = ask(tsd, url, *options, str(tmp_path / "a.svg"), *WORDS, token=token)
    local = tsd.run("query", *options, str(tmp_path / "b.svg"), *WORDS)
    assert remote == local == Done(0, "", "")
    for name in ("a.svg", "b.svg"):
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', (tmp_path / name).read_text())
        assert box is not None
        assert float(box[1]) * 2 == float(box[2]) * 3


def test_closed_port_and_wrong_url_are_reported(tsd: Tsd) -> None:
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        url = f"http://{HOST}:{closed.getsockname()[1]}"
        done = ask(tsd, url, *WORDS)
    assert done.status == 1
    assert url in done.err
    for unknown in ("http://web01..example:4242", f"http://{HOST}:1/é", f"http://{HOST}:1/a b", f"http://{'x' * 64}:1"):
        done = ask(tsd, unknown, *WORDS)  # some ended with tracebacks
        assert (done.status, done.err.startswith("tsd: "), unknown in done.err) == (1, True, True)
    for wrong in ("web01:4242", "ftp://web01", "http://", "http://web01:x", "http://web01/?a=b"):
        assert ask(tsd, wrong, *WORDS).status == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--title", "x", *WORDS],
        ["--json", "--format", "csv", *WORDS],
        ["--graph", "x.png", "--size", "1x1", *WORDS],
        ["1h-ago"],
        ["1h-ago", "now"],
        ["1h-ago", "sum", "downsample", "1m"],
    ],
)
def test_wrong_words_query_nothing(tsd: Tsd, words: Sequence[str]) -> None:
    done = ask(tsd, f"http://{HOST}:1", *words)
    assert done.status in (1, 2)
    assert f"{HOST}:1" not in done.err
    assert done.out == ""
