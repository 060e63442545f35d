"""KairosDB's metadata of services on layouts without a place for it, and who may do what."""

from pathlib import Path

from tests import layouts
from tests.running import running
from tests.unit.api.http_requests import http_post, http_request

pytestmark = layouts.on_all
SETTINGS = {"tsd.kairosdb.enabled": "true"}
PATH = "/api/v1/metadata/svc/key/a"


async def test_layout_without_metadata_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        for response in (await http_request(daemon, PATH), await http_post(daemon, PATH, b"text")):
            assert response.status == 501
            assert any("tsd.storage.layout" in error for error in response.json["errors"])
        assert (await http_request(daemon, "/api/v1/metadata/_Hosts/Active")).status == 401


async def test_writing_metadata_needs_the_role(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS, access={"tsd.access.anonymous": "read"}) as daemon:
        assert (await http_request(daemon, PATH)).status == 501
        assert (await http_post(daemon, PATH, b"text")).status == 403
        assert (await http_request(daemon, PATH, method="DELETE")).status == 403


async def test_encoded_slash_before_metadata_is_no_endpoint(tmp_path: Path) -> None:
    """Regression: the status was 500."""
    async with running(tmp_path, SETTINGS) as daemon:
        assert (await http_request(daemon, "/api%2Fv1%2Fmetadata/svc/key/a")).status == 404
