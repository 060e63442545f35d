"""The page's inventory of hosts in a real Chromium, on a daemon that keeps entities."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import tab
from tests.e2e.command import Served, Tsd, until
from tests.e2e.test_page import address, listed, without_library
from tsd.daemon.settings import now_ms

pytestmark = [pytest.mark.clients, pytest.mark.slow]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon that keeps entities: 150 hosts that report, one that fell silent, and metadata of web001."""
    settings = {"tsd.access.anonymous": "read,write", "tsd.entity.enabled": "true"}
    with Tsd(tmp_path_factory.mktemp("hosts") / "state", settings).serve() as served:
        now = now_ms() // 1000
        lines = [
            b"put %s %d %d host=web%03d%s\n" % (metric, now, value, host, tags)
            for host in range(150)
            for metric, value, tags in ((b"load", host, b""), (b"cpu", 1, b" cpu=0"), (b"cpu", 2, b" cpu=1"))
        ]
        served.send_lines(b"".join(lines) + b"put load %d 7 host=db001\n" % (now - 7200))
        served.flush()  # else the page shows db001 at its next refresh
        yield served


def names(page: Page, heading: str) -> list[str]:
    """Return the names in the inventory's table under a heading."""
    part = page.locator("#inventory-content section").filter(has=page.get_by_role("heading", name=heading))
    part.locator("tbody tr").first.wait_for()
    page.locator("#inventory-content:not(.busy)").wait_for()
    return part.locator("tbody td:first-child").all_inner_texts()


def test_silent_host_comes_first_and_leads_to_its_page(hosts: Served, page: Page) -> None:
    without_library(page).goto(address(hosts))
    page.get_by_role("link", name="Inventory").click()
    assert names(page, "Silent") == ["db001"]
    assert names(page, "Reporting") == [f"web{host:03}" for host in range(100)]
    expect(page.get_by_role("row", name="web007")).to_contain_text("1 … 2")
    page.get_by_role("link", name="db001").press("Enter")
    view = page.locator("#entity-content")
    expect(view.locator(".bad")).to_contain_text("Silent")
    expect(view.get_by_role("row").filter(has_text="load")).to_contain_text("7")
    page.get_by_role("link", name="load").click()
    assert listed(page)["load host=db001"][0] == "7"


def test_inventory_is_paged_ordered_and_shared(hosts: Served, page: Page, browser: Browser) -> None:
    page.goto(address(hosts, "#view=inventory"))
    page.get_by_role("button", name="Next page").click()
    until(lambda: names(page, "Reporting") == [f"web{host:03}" for host in range(100, 150)], "the second page")
    page.get_by_role("button", name="load").press("Enter")
    until(lambda: names(page, "Reporting")[:1] == ["web149"], "the largest first")
    page.locator("#inventory-view [data-field=prefix]").fill("web01")
    page.keyboard.press("Enter")
    until(lambda: names(page, "Reporting") == [f"web{host:03}" for host in range(19, 9, -1)], "a prefix")
    page.get_by_role("heading", name="Silent for more than 10m: 0").wait_for()
    with tab(browser, width=360, height=740) as phone:
        phone.goto(page.url)
        assert names(phone, "Reporting") == names(page, "Reporting")
        assert phone.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_inventory_of_ten_thousand_hosts_stays_usable(page: Page, tmp_path: Path) -> None:
    settings = {"tsd.access.anonymous": "read,write", "tsd.entity.enabled": "true"}
    with Tsd(tmp_path / "state", settings).serve() as served:
        now = now_ms() // 1000
        served.send_lines(
            b"".join(
                b"put load %d %d host=web%05d\n" % (now - 7200 * (host % 5000 == 7), host, host)
                for host in range(10_000)
            )
        )
        served.flush()
        page.goto(address(served, "#view=inventory&silent=1h"))
        assert names(page, "Silent") == ["web00007", "web05007"]
        assert names(page, "Reporting")[6:9] == ["web00006", "web00008", "web00009"]
        page.get_by_role("button", name="load").click()
        until(lambda: names(page, "Reporting")[:1] == ["web09999"], "the largest first")
        page.locator("#inventory-view [data-field=prefix]").fill("web0500")
        page.keyboard.press("Enter")
        until(lambda: names(page, "Silent") == ["web05007"], "a prefix")


def test_metadata_of_a_host_is_added_and_deleted(hosts: Served, page: Page) -> None:
    page.goto(address(hosts, "#view=entity&entity=web001"))
    page.get_by_role("button", name="Add metadata").click()
    page.locator("#metadata-key").fill("rack")
    page.locator("#metadata-value").fill("r12")
    page.keyboard.press("Enter")
    row = page.get_by_role("row").filter(has_text="rack")
    expect(row).to_contain_text("r12")
    row.get_by_role("button", name="Delete rack").click()
    expect(row).to_have_count(0)


def test_unknown_host_is_named_in_the_error(hosts: Served, page: Page) -> None:
    page.goto(address(hosts, "#view=entity&entity=no-such-host"))
    expect(page.locator("#message.error")).to_contain_text("no-such-host")
