"""Curves of the page, their table and their fields, in a real Chromium on a real daemon."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page

from tests.e2e.command import Served, Tsd, until
from tests.e2e.test_page import BASE, address, graph

pytestmark = [pytest.mark.clients, pytest.mark.slow]

SUMMER_END = 1_761_440_400  # in Berlin: 03:00 became 02:00


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon with an hour of two series."""
    with Tsd(
        tmp_path_factory.mktemp("curves") / "state", {"tsd.access.anonymous": "read,write,admin"}
    ).serve() as served:
        hour = [
            b"put sys.cpu.user %d %d host=%s\n" % (BASE + 10 * step, step + shift, host)
            for step in range(360)
            for shift, host in ((0, b"web01"), (1000, b"web02"))
        ]
        served.send_lines(b"".join(hour))
        yield served


def test_completion_follows_the_metric_and_the_tag(daemon: Served, page: Page) -> None:
    """Regression: an empty field kept the names of the metric, and the values of the tag, that were chosen before."""
    hosts = "".join(f"put two.tags {BASE} 1 host=web07 dc={dc}\n" for dc in ("lon", "par"))
    daemon.send_lines(hosts.encode())
    values = page.locator(".tag .value + datalist option")
    names = page.locator(".tag .name + datalist option")

    def completed(options: Locator) -> list[str]:
        return list(options.evaluate_all("options => options.map(option => option.value)"))

    page.goto(address(daemon, graph("sum:two.tags")))
    page.get_by_role("button", name="Add a tag").click()
    until(lambda: completed(names) == ["dc", "host"], "names of tags")
    page.keyboard.type("dc")
    page.keyboard.press("Tab")
    until(lambda: completed(values) == ["lon", "par"], "values of dc")
    page.locator(".tag .name").fill("host")
    page.keyboard.press("Tab")
    until(lambda: completed(values) == ["web07"], "values of host")
    page.locator(".tag .name").fill("")
    page.locator(".metric").fill("sys.cpu.user")
    page.locator(".tag .name").focus()
    until(lambda: completed(names) == ["host"], "names of tags of the other metric")
