"""Curves of the page, their table, links, and what buttons do to them, in a real Chromium on a real daemon."""

import re
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, Error, Locator, Page, Route, expect

from tests.browser import tab
from tests.e2e.command import Served, Tsd, until
from tests.e2e.test_page import (
    BASE,
    CELLS,
    NEW_TAB,
    address,
    curves,
    drag,
    graph,
    shown,
    span_of,
    without_library,
)

pytestmark = [pytest.mark.clients, pytest.mark.slow]

SUMMER_END = 1_761_440_400  # in Berlin: 03:00 became 02:00


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon with an hour of two series, and with a counter that starts again after half an hour."""
    with Tsd(
        tmp_path_factory.mktemp("curves") / "state", {"tsd.access.anonymous": "read,write,admin"}
    ).serve() as served:
        hour = [
            b"put sys.cpu.user %d %d host=%s\n" % (BASE + 10 * step, step + shift, host)
            for step in range(360)
            for shift, host in ((0, b"web01"), (1000, b"web02"))
        ]
        counter = [b"put packets %d %d host=web01\n" % (BASE + 60 * at, 600 * (at % 30)) for at in range(60)]
        served.send_lines(b"".join(hour + counter))
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
    page.get_by_role("button", name="Max").press("Enter")
    page.get_by_role("button", name="Max").press("Enter")
    assert list(curves(page)) == ["sys.cpu.user host=web01", "sys.cpu.user host=web02"]


def test_of_many_curves_the_largest_are_drawn_and_others_on_request(daemon: Served, page: Page) -> None:
    """Regression: the first by name were drawn, so many that the page hung. The table named others, which were not."""
    daemon.send_lines(b"".join(b"put more.series %d %d n=%04d\n" % (BASE + 60, at, at) for at in range(1000)))
    page.goto(address(daemon, graph("sum:more.series{n=*}")))
    found = shown(page)
    assert list(found) == [f"more.series n={999 - at:04}" for at in range(len(found))]
    expect(page.locator("#graph .trace")).to_have_count(len(found))
    expect(page.get_by_role("columnheader", name="Max")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#message")).to_contain_text(f"{len(found)} of 1,000 curves are drawn")
    page.get_by_role("button", name="Max").press("Enter")  # the least of all
    page.get_by_role("button", name="n=0000").press("Enter")
    expect(page.locator("#graph .trace")).to_have_count(len(found) - 1)


def test_curves_without_values_come_last_in_either_order(daemon: Served, page: Page) -> None:
    """Regression: in ascending order they came first. Of many curves, they were drawn in place of those with values."""
    one = b"".join(b"put few.rates %d 1 n=%04d\n" % (BASE, at) for at in range(150))  # without a rate
    daemon.send_lines(one + b"put few.rates %d 61 n=0070\n" % (BASE + 60))
    page.goto(address(daemon, graph("sum:rate:few.rates{n=*}")))
    expect(page.locator("#message")).to_contain_text("of 150 curves are drawn")
    for order in ("descending", "ascending"):
        page.get_by_role("button", name="Min").press("Enter")
        expect(page.get_by_role("columnheader", name="Min")).to_have_attribute("aria-sort", order)
        assert next(iter(curves(page))) == "rate of few.rates n=0070"
    page.get_by_role("button", name="Min").press("Enter")  # no order for the next test


def test_integers_are_shown_with_all_digits(daemon: Served, page: Page) -> None:
    """Regression: hovering rounded 12345678 to seven digits, and the table 1234567890123456, without separators. Those
    that no double holds lost digits everywhere."""
    values = {"exact.mid": "12345678", "exact.big": "1234567890123456", "exact.float": "1234567890.25"}
    values["exact.long"] = "9223372036854775807"
    lines = [f"put {name} {BASE + 60 * at} {value} a=b\n" for name, value in values.items() for at in range(2)]
    daemon.send_lines("".join(lines).encode())
    page.goto(address(daemon, graph(*(f"sum:{name}" for name in values))))
    wanted = {"exact.mid": "12,345,678", "exact.big": "1,234,567,890,123,456", "exact.float": "1,234,567,890"}
    wanted["exact.long"] = "9,223,372,036,854,775,807"
    found = {name.partition(" ")[0]: cells[0] for name, cells in shown(page).items()}
    assert found == wanted
    page.locator("#points").click()
    expect(page.locator("#table tbody tr").first).to_contain_text(wanted["exact.long"])
    with page.expect_download() as saved:
        page.locator("#csv").click()
    assert values["exact.long"] in saved.value.path().read_text()
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
    with tab(browser, zone="Europe/Berlin") as page:
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
    with tab(browser, zone="Asia/Tokyo") as page:
        without_library(page).goto(address(daemon, graph("sum:sys.cpu.user")))
        page.locator("#curves tbody tr").first.wait_for()
        with page.expect_request("**/q?*") as asked:
            page.get_by_role("button", name="PNG").click()
        assert "tz=Asia%2FTokyo" in asked.value.url


def test_days_are_those_of_the_user(daemon: Served, browser: Browser) -> None:
    """Regression: they began at midnight UTC, 9 o'clock in Tokyo."""
    midnight = 1_700_060_400  # 2023-11-16 in Tokyo
    hours = [(at, tags) for at in range(-24, 48) for tags in ("host=web01 dc=lon", "host=web02 dc=par")]
    hours += [(at, "host=web03 dc=par") for at in range(48)]
    lines = [f"put days {midnight + 3600 * at} {at // 24 + 1} {tags}\n" for at, tags in hours]
    daemon.send_lines("".join(lines).encode())
    span = f"start={midnight - 400 * 86_400}&end={midnight + 400 * 86_400}"
    m = "sum:auto-sum:explicit_tags:days{dc=par}{host=regexp(web0[12])}"
    with tab(browser, zone="Asia/Tokyo") as page:
        without_library(page).goto(
            address(daemon, f"{graph(m, 'sum:rate{counter,100,5}:days{host=web01}{dc=l*}', span=span)}&table=1")
        )
        rows = page.locator("#table tbody tr")
        rows.first.wait_for()
        found = [cells for cells in rows.evaluate_all(CELLS) if cells[0].endswith("-00:00:00") and cells[1]]
        assert [cells[:2] for cells in found] == [
            ["2023/11/17-00:00:00", "48"], ["2023/11/16-00:00:00", "24"], ["2023/11/15-00:00:00", "0"]
        ]  # fmt: skip


@NEW_TAB
def test_picture_is_shown_if_the_daemon_does_not_know_the_zone(daemon: Served, page: Page) -> None:
    """Regression: an error replaced the picture. Browsers name zones that some machines lack, such as Etc/Unknown."""
    page.add_init_script("""
        const own = Intl.DateTimeFormat.prototype.resolvedOptions;
        Intl.DateTimeFormat.prototype.resolvedOptions = function () {
            return { ...own.call(this), timeZone: "Etc/Unknown" };
        };
    """)
    without_library(page).goto(address(daemon, graph("sum:sys.cpu.user")))
    page.locator("#curves tbody tr").first.wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    page.goto(address(daemon, graph("sum:1dc-avg:sys.cpu.user", span=f"start={BASE - 200_000}&end={BASE + 200_000}")))
    expect(page.locator("#summary")).to_have_text(re.compile("^1 curve, 1 point"))


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


def test_link_keeps_what_the_form_has_no_field_for(daemon: Served, page: Page) -> None:
    """The limit of a counter was dropped, so that a restart was a peak."""
    expression = "sum:rate{counter,65535,100}:explicit_tags:packets{host=*}"
    page.goto(address(daemon, graph(expression)))
    [cells] = shown(page).values()
    assert float(cells[3].replace(",", "")) == 10
    page.locator("#scale").select_option("[0:]")
    page.wait_for_url(lambda url: "yrange" in url)
    assert f"m={expression}&" in unquote(page.url)


def test_restarts_of_a_counter_are_left_out(daemon: Served, page: Page) -> None:
    """A restart was a peak that hid all other values, and no field could change that."""
    page.goto(address(daemon, graph("sum:rate{counter}:packets{host=*}")))
    [cells] = shown(page).values()
    assert float(cells[3].replace(",", "")) > 1e15
    page.get_by_label("Counter").select_option("drop resets")
    page.wait_for_url(lambda url: "rate{dropcounter}" in unquote(url))
    link = page.url
    page.goto(address(daemon, "#"))
    page.goto(link)
    [cells] = shown(page).values()
    assert cells[1:4] == ["10", "10", "10"]  # least, mean and largest
    expect(page.get_by_label("Counter")).to_have_value("{dropcounter}")


def test_interval_of_refreshes_is_shown_and_within_bounds(daemon: Served, page: Page) -> None:
    """Without a pause, or with one that no timer takes, the page asked again at once and without end."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/query?" in request.url else None)
    for given, wanted in (("0", ""), ("9999999999", ""), ("7200", "7200")):
        page.goto(address(daemon, f"{graph('sum:packets')}&autoreload={given}"))
        shown(page)
        assert page.locator("#refresh").input_value() == wanted
    assert len(asked) == 3


@NEW_TAB
def test_hidden_graph_is_refreshed_once_it_is_visible(daemon: Served, page: Page) -> None:
    """Regression: a tab in the background asked for the points again and again."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/query?" in request.url else None)
    page.clock.install()
    without_library(page).goto(address(daemon, f"{graph('sum:packets')}&autoreload=15"))
    page.locator("#curves tbody tr").first.wait_for()
    page.locator("#graph:not(.busy)").wait_for()
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    page.clock.fast_forward(60_000)
    page.evaluate("fetch('/api/version').then((answer) => answer.text())")  # what the timer causes comes before
    assert len(asked) == 1
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: bool(page.title()) and len(asked) == 2, "the query again")


def test_answer_of_the_graph_does_not_reach_another_view(daemon: Served, page: Page) -> None:
    """The title, and the error of the query, were shown in the view that was chosen meanwhile."""
    held: list[Route] = []
    page.route("**/api/query?*", lambda route: held.append(route))
    page.goto(address(daemon, graph("sum:packets")))
    until(lambda: bool(page.title() and held), "the query")
    page.locator("#view-daemon").click()
    page.locator("#daemon-view h2").first.wait_for()
    with suppress(Error):  # the page may have ended the request
        held[0].fulfill(status=400, body='{"error":{"message":"too late"}}')
    page.locator("#view-graph").click()
    until(lambda: bool(page.title()) and len(held) == 2, "the query again")
    page.locator("#view-daemon").click()
    page.locator("#daemon-view:not([hidden]) h2").first.wait_for()
    with suppress(Error):
        held[1].fulfill(status=200, body="[]", content_type="application/json")
    with page.expect_response("**/api/stats/query"):
        pass  # the view is refreshed once more
    expect(page).to_have_title("Daemon – tsd")
    expect(page.locator("#message")).to_be_hidden()


def test_failed_end_of_a_query_is_told(daemon: Served, page: Page) -> None:
    """The error was only in the browser's console."""
    running = '{"running":[{"id":1,"query":{"queries":[{"aggregator":"sum","metric":"packets"}]}}]}'
    page.route("**/api/stats/query", lambda route: route.fulfill(body=running, content_type="application/json"))
    page.goto(address(daemon, "#view=daemon"))
    page.get_by_role("button", name="End").click()
    expect(page.locator("#message.error")).to_contain_text("query")


def test_button_of_a_view_that_was_left_does_nothing_more(daemon: Served, page: Page) -> None:
    """It refreshed the view that was left, without end, and told its error in the other."""
    running = '{"running":[{"id":1,"query":{"queries":[{"aggregator":"sum","metric":"packets"}]}}]}'
    asked: list[str] = []
    held: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(body=running, content_type="application/json")

    page.route("**/api/stats/query", answer)
    page.route("**/api/stats/query?id=1", lambda route: held.append(route))
    page.goto(address(daemon, "#view=daemon"))
    page.get_by_role("button", name="End").click()
    until(lambda: bool(page.title() and held), "the request to end the query")
    page.locator("#view-graph").click()
    page.locator("#graph").wait_for()
    before = len(asked)
    held[0].fulfill(status=404, body='{"error":{"message":"too late"}}', content_type="application/json")
    for _ in range(2):  # what the answer causes comes before
        page.evaluate("fetch('/api/version').then((answer) => answer.text())")
    assert len(asked) == before
    expect(page.locator("#message")).not_to_contain_text("too late")


@NEW_TAB
def test_answer_that_ends_early_is_told_in_each_view(daemon: Served, page: Page) -> None:
    """A view that refreshes itself stayed dimmed, without a message."""
    page.add_init_script(
        """const send = window.fetch;
        window.fetch = async (path, options) => {
          if (!String(path).includes("/api/stats")) return send(path, options);
          const body = new ReadableStream({ start: (control) => control.error(new TypeError("network error")) });
          return new Response(body);
        };"""
    )
    page.goto(address(daemon, "#view=daemon"))
    expect(page.locator("#message.error")).to_contain_text("ended early")


def test_moved_range_keeps_its_length(daemon: Served, page: Page) -> None:
    """Each step to later times halved a range that ended now."""
    page.goto(address(daemon, graph("sum:packets", span="start=1h-ago")))
    page.locator("#graph:not(.busy)").wait_for()
    for button in ("Later", "Earlier", "Later", "Later"):
        before = page.url
        page.get_by_role("button", name=button).click()
        page.wait_for_url(lambda url, before=before: url != before)
        start, end = map(int, span_of(page))
        assert 3600 <= end - start <= 3610  # ends are rounded to seconds


def test_range_is_widened_and_moved_back_to_1970(daemon: Served, page: Page) -> None:
    """A negative start was refused as no time, and no button left that range."""
    page.goto(address(daemon, graph("sum:packets", span="start=0&end=1700003600")))
    shown(page)
    page.get_by_role("button", name="Earlier").click()
    page.locator("#out").click()
    page.wait_for_url(lambda url: "end=1700003600" not in url)
    start, end = map(int, span_of(page))
    assert start == 0 < 1_700_003_600 < end
    shown(page)
    page.locator("#start").fill("1960/01/01-00:00")
    page.locator("#start").press("Enter")
    page.wait_for_url(lambda url: "1960" in url)
    shown(page)
    expect(page.locator("#message")).to_be_hidden()


def test_double_click_stays_on_the_page(daemon: Served, page: Page) -> None:
    """Without an earlier range it went back to what was shown before, such as another site."""
    page.goto(address(daemon, "#view=daemon"))
    page.goto(address(daemon, graph("sum:packets")))
    shown(page)
    with page.expect_event("console", lambda message: message.text == "double"):
        page.evaluate(
            """document.getElementById("graph").on("plotly_doubleclick", () => {
                setTimeout(() => console.log("double"), 100);
            })"""
        )
        page.locator("#graph .nsewdrag").first.dblclick()
    assert "packets" in page.url


def test_text_of_an_annotation_is_shown_as_it_was_written(daemon: Served, page: Page) -> None:
    """The plotting library took it for HTML: links and styles were shown, and line breaks were not."""
    text = "a &lt; <b>b</b> <a href='http://example.org'>c</a>"
    body = {"startTime": 1_700_001_000, "description": text, "notes": "second line"}
    assert page.request.post(f"{address(daemon)}api/annotation", data=body).ok
    page.goto(address(daemon, graph("sum:packets")))
    shown(page)
    page.locator("#graph .annotation").first.hover()
    label = page.locator("#graph .hovertext text").first
    expect(label).to_contain_text(text)
    assert label.locator("a, [style*=bold]").count() == 0
    expect(label.locator("tspan.line")).to_have_text([text, "second line"])


@NEW_TAB
def test_proxy_may_serve_the_page_below_a_path(daemon: Served, page: Page) -> None:
    """Regression: the page asked for its files and for points at the root of the proxy."""
    root, missed = address(daemon), []

    def forward(route: Route) -> None:
        _, below, rest = route.request.url.partition(f"{root}tsd/")
        if not below:
            missed.append(route.request.url)
            return route.abort()
        return route.fulfill(response=route.fetch(url=root + rest))

    page.route("**/*", forward)
    page.goto(f"{root}tsd/{graph('sum:packets')}")
    shown(page)
    page.locator("#graph .xtick").first.wait_for(state="attached")  # by the library
    page.locator("#view-daemon").click()
    page.locator("#daemon-view h2").first.wait_for()
    assert missed == []


def test_impossible_date_is_refused(daemon: Served, page: Page) -> None:
    """The day after the last one of a month was shown as one of the next month."""
    for wrong in ("2023/11/31", "2023/13/01", "2023/11/14-24:30", "2023/11/14-10:75"):
        page.goto(address(daemon, graph("sum:packets", span=f"start={wrong}&end=1700003600")))
        expect(page.locator("#message.error")).to_contain_text(f"{wrong} is no time")


def test_wrong_parts_of_a_query_are_told_with_what_is_wanted(daemon: Served, page: Page) -> None:
    for wrong, got, wanted in (
        ("summ:packets", "summ", "avg"),
        ("sum:5x-avg:packets", "5x", "5m"),
        ("sum:1m-avg-zeros:packets", "zeros", "zero."),
        ("sum:packets{host=like(x)}", "like", "regexp("),
    ):
        page.goto(address(daemon, graph(wrong)))
        expect(page.locator("#message.error")).to_contain_text(got)
        expect(page.locator("#message.error")).to_contain_text(f" {wanted}")


def test_curves_of_one_name_tell_how_they_were_asked(daemon: Served, page: Page) -> None:
    """Regression: least and largest values had one name. The button of one hid both."""
    page.goto(address(daemon, graph("min:10m-min:packets", "max:10m-max:packets")))
    assert sorted(shown(page)) == [f"packets host=web01 ({each}:10m-{each})" for each in ("max", "min")]


def test_saved_file_is_named_after_what_it_has(daemon: Served, page: Page) -> None:
    """After a failed query the points of the one before were saved under the name of the new metric."""
    page.goto(address(daemon, graph("sum:packets")))
    shown(page)
    page.locator(".metric").fill("no.such.metric")
    page.locator(".metric").press("Tab")
    page.locator("#message.error").wait_for()
    with page.expect_download() as download:
        page.locator("#csv").click()
    assert download.value.suggested_filename == "packets.csv"
    daemon.send_lines(f"put größe {BASE} 1 a=b\n".encode("latin-1"))
    page.goto(address(daemon, graph("sum:größe")))
    expect(page.locator("#curves tbody")).to_contain_text("größe")
    with page.expect_download() as download:
        page.locator("#csv").click()
    assert download.value.suggested_filename == "größe.csv"


def test_long_word_in_a_message_is_wrapped(daemon: Served, page: Page) -> None:
    """The message made the whole page wider than the window."""
    page.goto(address(daemon, graph(f"sum:{'x' * 2000}")))
    page.locator("#message.error").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
