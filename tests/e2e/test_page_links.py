"""Links to the page, and what its buttons do to them, in a real Chromium on a real daemon."""

from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import unquote

import pytest
from playwright.sync_api import Error, Page, Route, expect

from tests.e2e.command import Served, Tsd, until
from tests.e2e.test_page import address, graph, shown, span_of

pytestmark = [pytest.mark.clients, pytest.mark.slow]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon with a counter that starts again after half an hour."""
    with Tsd(
        tmp_path_factory.mktemp("links") / "state", {"tsd.access.anonymous": "read,write,admin"}
    ).serve() as served:
        points = [b"put packets %d %d host=web01\n" % (1_700_000_000 + 60 * at, 600 * (at % 30)) for at in range(60)]
        served.send_lines(b"".join(points))
        yield served


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
    page.reload()
    [cells] = shown(page).values()
    assert cells[1:4] == ["10", "10", "10"]  # least, mean and largest
    expect(page.get_by_label("Counter")).to_have_value("{dropcounter}")


def test_interval_of_refreshes_is_shown_and_within_bounds(daemon: Served, page: Page) -> None:
    """Without a pause, or with one that no timer takes, the page asked again at once and without end."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/query?" in request.url else None)
    for given, wanted in (("0", ""), ("9999999999", ""), ("7200", "7200")):
        page.goto(address(daemon, f"{graph('sum:packets')}&autoreload={given}"))
        page.reload()
        shown(page)
        assert page.locator("#refresh").input_value() == wanted
    assert len(asked) <= 6  # a reload may end a query before it is sent


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
    """Without an earlier range it went back to the site before."""
    page.goto("about:blank")
    page.goto(address(daemon, graph("sum:packets")))
    shown(page)
    with page.expect_event("console", lambda message: message.text == "double"):
        page.evaluate(
            """document.getElementById("graph").on("plotly_doubleclick", () => {
                setTimeout(() => console.log("double"), 100);
            })"""
        )
        page.locator("#graph .nsewdrag").first.dblclick()
    assert page.url.startswith(address(daemon))


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


def test_long_word_in_a_message_is_wrapped(daemon: Served, page: Page) -> None:
    """The message made the whole page wider than the window."""
    page.goto(address(daemon, graph(f"sum:{'x' * 2000}")))
    page.locator("#message.error").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
