"""The certificate's files, looked at again and again: what is taken up, what is not, and what is said."""

import os
from pathlib import Path

import pytest
import trio
import trustme
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked, wait_all_threads_completed

from tsd.access_settings import AccessSettings
from tsd.doors.tls import LOOK_S, Tls
from tsd.errors import TsdError

AUTHORITY = trustme.CA(key_type=trustme.KeyType.ECDSA)


def issue(folder: Path, name: str, *files: str) -> None:
    """Put a pair, or one file of it, in the place of the old one."""
    leaf = AUTHORITY.issue_cert(name, key_type=trustme.KeyType.ECDSA)
    for file, blob in (("cert", leaf.cert_chain_pems[0]), ("key", leaf.private_key_pem)):
        if file in files:
            blob.write_to_path(folder / "new")
            os.replace(folder / "new", folder / file)


def made(folder: Path) -> Tls:
    settings = AccessSettings(tls_certificate=str(folder / "cert"), tls_key=str(folder / "key"))
    return Tls(settings, lambda: 1_800_000_000_000)


async def test_files_that_change_are_read_again(tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    issue(tmp_path, "one.test", "cert", "key")
    tls = made(tmp_path)
    nursery.start_soon(tls.watch)

    async def look() -> list[str]:
        """What is said at the next look."""
        with capture_logs() as logs:
            await wait_all_tasks_blocked()
            mock_clock.jump(LOOK_S)
            for _ in range(4):  # threads look, look again, and read
                await wait_all_tasks_blocked()
                await wait_all_threads_completed()
            await wait_all_tasks_blocked()
        return [str(line.get("names") or line["because"]) for line in logs]

    assert await look() == []
    issue(tmp_path, "two.test", "cert", "key")
    assert await look() == ["two.test"]
    issue(tmp_path, "three.test", "key")
    (because,) = await look()
    assert because.startswith(f"{tmp_path}/cert and {tmp_path}/key: ")
    assert tls.statistics().seconds_left > 0  # of the old one
    os.unlink(tmp_path / "key")
    assert await look() == [f"{tmp_path}/key: No such file or directory"]  # it was said of the certificate
    assert await look() == []
    issue(tmp_path, "four.test", "cert", "key")
    assert await look() == ["four.test"]


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    issue(tmp_path, "one.test", "cert", "key")
    (tmp_path / "key").unlink()
    with pytest.raises(TsdError, match="/key: No such file"):
        made(tmp_path)
