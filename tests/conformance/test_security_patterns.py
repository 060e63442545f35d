"""An expensive pattern must not block the event loop, because Python's matcher cannot be interrupted."""

from pathlib import Path
from urllib.parse import quote

import pytest
import trio

from tests.running import running
from tests.unit.api.http_requests import http_post, http_request

PATTERNS = ("a*a*a*a*a*a*a*a*b", "a?" * 30 + "a" * 30, "(?:a|aa)" * 30 + "b", "a{0,60}" * 9 + "b", "((a+){2})*b")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS, ids=range(len(PATTERNS)))
async def test_expensive_patterns_do_not_block_the_daemon(tmp_path: Path, pattern: str) -> None:
    """By default, any client may write names and query them."""
    wanted = quote(f"{{host=regexp({pattern})}}")
    async with running(tmp_path, access={}) as daemon:
        await daemon.send_lines(b"put a.b 1500000000 1 host=%b\n" % (b"a" * 60))
        with trio.fail_after(30):
            response = await http_request(daemon, f"/api/query?start=1400000000&end=1600000000&m=sum:a.b{wanted}")
            assert response.status in (400, 500), response.body
            assert (await http_post(daemon, "/api/tree", b'{"name":"t"}')).status == 200
            rule = b'{"treeId":1,"type":"METRIC","regex":"%b"}' % pattern.encode()
            assert (await http_post(daemon, "/api/tree/rule", rule)).status == 400
