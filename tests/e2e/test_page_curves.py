"""Curves of the page, their table and their fields, in a real Chromium on a real daemon."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.command import Served, Tsd, until
from tests.e2e.test_page import BASE, address, curves, drag, graph, shown, span_of

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


def test_refresh_keeps_the_order_of_curves_the_focus_and_scroll_positions(daemon: Served, page: Page) -> None:
    """Regression: each refresh ended the chosen order, scrolled both tables back, and took the focus away."""
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=*}") + "&table=1"))
    shown(page)
    page.get_by_role("button", name="Max").press("Enter")
    page.locator("#table .wide").evaluate("box => { box.scrollTop = 100; }")
    old = page.locator("#curves table").element_handle()
    with page.expect_response("**/api/query?*"):
        page.evaluate("document.getElementById('run').click()")  # as a refresh, it moves no focus
    page.wait_for_function("table => !table.isConnected", arg=old)
    assert list(curves(page)) == ["sys.cpu.user host=web02", "sys.cpu.user host=web01"]
    expect(page.get_by_role("columnheader", name="Max")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("button", name="Max")).to_be_focused()
    assert page.locator("#table .wide").evaluate("box => box.scrollTop") == 100


def test_order_is_that_of_all_curves_not_of_the_drawn_ones(daemon: Served, page: Page) -> None:
    """Regression: the largest of the first 300 curves was shown as the largest of all."""
    daemon.send_lines(b"".join(b"put more.series %d %d n=%03d\n" % (BASE + 60, at, at) for at in range(310)))
    page.goto(address(daemon, graph("sum:more.series{n=*}")))
    expect(page.locator("#curves tbody tr")).to_have_count(300)
    page.get_by_role("button", name="Max").press("Enter")
    expect(page.locator("#curves tbody tr").first).to_contain_text("n=309")
    page.get_by_role("button", name="n=299").press("Enter")  # the 299th is drawn, so its name is a button
    expect(page.get_by_role("button", name="n=299")).to_have_attribute("aria-pressed", "false")


def test_integers_are_shown_with_all_digits(daemon: Served, page: Page) -> None:
    """Regression: hovering rounded 12345678 to seven digits, and the table 1234567890123456, without separators."""
    values = {"exact.mid": "12345678", "exact.big": "1234567890123456", "exact.float": "1234567890.25"}
    lines = [f"put {name} {BASE + 60 * at} {value} a=b\n" for name, value in values.items() for at in range(2)]
    daemon.send_lines("".join(lines).encode())
    page.goto(address(daemon, graph(*(f"sum:{name}" for name in values))))
    wanted = {"exact.mid": "12,345,678", "exact.big": "1,234,567,890,123,456", "exact.float": "1,234,567,890"}
    found = {name.partition(" ")[0]: cells[0] for name, cells in shown(page).items()}
    assert found == wanted
    box = page.locator("#graph .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 50)
    for value in wanted.values():
        expect(page.locator("#graph .hoverlayer")).to_contain_text(value)


def test_hour_that_the_end_of_summer_time_repeats_is_drawn_and_chosen(daemon: Served, browser: Browser) -> None:
    """Regression: curves ran back an hour, and a range in the second of the two hours was that of the first."""
    lines = [b"put clock %d %d a=b\n" % (SUMMER_END + 60 * minute, minute) for minute in range(-360, 360)]
    daemon.send_lines(b"".join(lines))
    span = f"start={SUMMER_END - 21_600}&end={SUMMER_END + 21_600}"
    with browser.new_context(timezone_id="Europe/Berlin", viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.goto(address(daemon, graph("sum:clock", span=span)))
        shown(page)
        path = page.locator("#graph .trace path.js-line").get_attribute("d") or ""
        across = [float(x) for x in re.findall(r"[ML]([\d.]+),", path)]
        assert len(across) > 1
        assert across == sorted(across)
        labels = page.locator("#graph .xtick text").all_text_contents()
        assert [text[:5] for text in labels] == ["22:00", "00:00", "02:00", "03:00", "05:00", "07:00"]

        before = page.url
        drag(page)
        page.wait_for_url(lambda url: url != before)
        start, end = map(int, span_of(page))
        assert (start, end) == pytest.approx((SUMMER_END - 10_800, SUMMER_END), abs=120)  # a pixel is 37 s
        page.goto(address(daemon, graph("sum:clock", span=f"start={SUMMER_END + 1800}&end={SUMMER_END + 7200}")))
        page.locator("#end").fill("2025/10/26-05:00")
        page.locator("#end").press("Enter")
        page.wait_for_url(f"**/#start={SUMMER_END + 1800}&end={SUMMER_END + 10_800}&*")


def test_picture_of_the_daemon_has_the_times_of_the_user(daemon: Served, browser: Browser) -> None:
    """Regression: its times were in UTC, where the page names the user's time zone."""
    with browser.new_context(timezone_id="Asia/Tokyo") as context:
        page = context.new_page()
        page.route("**/plotly.js", lambda route: route.abort())
        page.goto(address(daemon, graph("sum:sys.cpu.user")))
        page.locator("#curves tbody tr").first.wait_for()
        with page.expect_request("**/q?*") as asked:
            page.get_by_role("button", name="PNG").click()
        assert "tz=Asia%2FTokyo" in asked.value.url


def test_picture_is_shown_if_the_daemon_does_not_know_the_zone(daemon: Served, page: Page) -> None:
    """Regression: an error replaced the picture. Browsers name zones that some machines lack, such as Etc/Unknown."""
    page.add_init_script("""
        const own = Intl.DateTimeFormat.prototype.resolvedOptions;
        Intl.DateTimeFormat.prototype.resolvedOptions = function () {
            return { ...own.call(this), timeZone: "Etc/Unknown" };
        };
    """)
    page.route("**/plotly.js", lambda route: route.abort())
    page.goto(address(daemon, graph("sum:sys.cpu.user")))
    page.locator("#curves tbody tr").first.wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")


def test_rates_of_rare_points_are_exact(daemon: Served, page: Page) -> None:
    """Regression: points every 300 s got times 240 and 360 s apart, so that rates were up to a quarter too large."""
    lines = [b"put steady %d %d a=b\n" % (BASE + 300 * at, 30_000 * at) for at in range(288)]
    daemon.send_lines(b"".join(lines))
    page.goto(address(daemon, graph("sum:auto-avg:rate:steady", span=f"start={BASE}&end={BASE + 86_400}")))
    [cells] = shown(page).values()
    assert cells[1:4] == ["100", "100", "100"]  # least, mean and largest
    assert page.locator(".interval").input_value() == "auto"


def test_rates_of_frequent_points_stay_downsampled_with_rare_ones(daemon: Served, page: Page) -> None:
    """Regression: one rare series let the page ask for all points of all series, which may be more than it takes."""
    rare = [b"put mixed %d %d host=rare\n" % (BASE + 300 * at, at) for at in range(288)]
    daemon.send_lines(b"".join([*rare, *(b"put mixed %d %d host=web\n" % (BASE + 10 * at, at) for at in range(8640))]))
    page.goto(address(daemon, graph("sum:auto-avg:rate:mixed{host=*}", span=f"start={BASE}&end={BASE + 86_400}")))
    points = [int(cells[-1].replace(",", "")) for cells in shown(page).values()]
    assert len(points) == 2
    assert max(points) <= 1500
