"""The page in a real Chromium, on a real daemon."""

import csv
import io
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from scripts.peers.ports import pick
from tests.browser import tab
from tests.e2e.command import PATIENCE_S, Served, Tsd, until
from tests.e2e.test_authentication import Accounts
from tests.e2e.test_collectd import collectd, node
from tests.peers.needs import need_program
from tsd.auth.roles import Role

pytestmark = [pytest.mark.clients, pytest.mark.slow]

BASE = 1_700_000_000
SPAN = "start=1700000000&end=1700003600"
MANY = 60_000  # the answer is larger than what sockets hold
NEW_TAB = pytest.mark.parametrize("page", ["new"], indirect=True)  # the plotting library has not started in it
PNG = b"\x89PNG\r\n\x1a\n"
FIRST_COLOR = 0x1F, 0x77, 0xB4  # of the first curve
SECOND_COLOR = 0xE6, 0x55, 0x0D
CELLS = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.innerText))"
KEEP_TEXTS = """
    window.texts = []; // that canvases show
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (...given) {
        texts.push(given[0]);
        return fillText.apply(this, given);
    };
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon with an hour of two series, and with one metric of many series."""
    with Tsd(tmp_path_factory.mktemp("page") / "state", {"tsd.access.anonymous": "read,write,admin"}).serve() as served:
        hour = [
            b"put sys.cpu.user %d %d host=%s\n" % (BASE + 10 * step, step + shift, host)
            for step in range(360)
            for shift, host in ((0, b"web01"), (1000, b"web02"))
        ]
        served.send_lines(b"".join(hour))
        served.send_lines(b"".join(b"put many.series %d 1 host=h%06d\n" % (BASE + 60, host) for host in range(MANY)))
        yield served


def address(daemon: Served, fragment: str = "") -> str:
    """Return the URL of the page."""
    return f"http://127.0.0.1:{daemon.port}/{fragment}"


def graph(*expressions: str, span: str = SPAN) -> str:
    """Return a fragment that shows expressions."""
    return "#" + "&".join([span, *(f"m={quote(one)}" for one in expressions)])


def curves(page: Page) -> dict[str, list[str]]:
    """Return the rows of the table of curves: last, min, mean, max and number of points, by name."""
    page.locator("#graph:not(.busy)").wait_for()
    page.locator("#below").wait_for()
    rows = page.locator("#curves tbody tr").evaluate_all(CELLS)  # in one step: the page may replace the rows
    return {cells[0]: cells[1:] for cells in rows}


def listed(page: Page) -> dict[str, list[str]]:
    """Return the table of curves once one is there."""
    page.locator("#curves tbody tr").first.wait_for()
    return curves(page)


def shown(page: Page) -> dict[str, list[str]]:
    """Return the table of curves once one is there, and the library has drawn it."""
    page.locator("#graph .trace").first.wait_for(state="attached")
    return listed(page)


def without_library(page: Page) -> Page:
    """Let a new tab do without the plotting library, whose start takes seconds."""
    page.context.route("**/plotly.js", lambda route: route.abort())
    return page


def drag(page: Page) -> None:
    """Drag over the middle of the graph."""
    box = page.locator("#graph .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=5)
    page.mouse.up()


def span_of(page: Page) -> tuple[str, str]:
    """Return the range that the URL has."""
    found = re.search(r"start=([^&]*)&end=([^&]*)", page.url)
    assert found is not None, page.url
    return found[1], found[2]


def test_typed_query_is_completed_and_drawn(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, f"#{SPAN}"))
    page.locator(".metric").fill("sys.c")
    expect(page.locator(".query datalist option").first).to_have_attribute("value", "sys.cpu.user")
    page.locator(".metric").fill("sys.cpu.user")
    page.locator(".metric").press("Enter")
    page.get_by_role("button", name="Add a tag").click()
    page.keyboard.type("h")
    names = page.locator(".tag .name + datalist option")
    names.first.wait_for(state="attached")
    assert names.first.get_attribute("value") == "host"
    page.keyboard.type("ost")
    page.keyboard.press("Tab")
    values = page.locator(".tag .value + datalist option")
    values.nth(1).wait_for(state="attached")
    assert [values.nth(at).get_attribute("value") for at in range(2)] == ["web01", "web02"]
    page.keyboard.type("*")
    page.keyboard.press("Enter")
    page.locator("#last").select_option("1y-ago")
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=*}")))
    assert {name: cells[-2:] for name, cells in shown(page).items()} == {
        "sys.cpu.user host=web01": ["359", "360"],
        "sys.cpu.user host=web02": ["1,359", "360"],
    }


def test_dragged_range_is_zoomed_and_back_restores_it(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=web01}")))
    assert [cells[-1] for cells in shown(page).values()] == ["360"]
    before = page.url
    drag(page)
    page.wait_for_url(lambda url: url != before)
    page.locator("#curves td").last.wait_for()
    until(lambda: [cells[-1] for cells in curves(page).values()] != ["360"], "fewer points")
    points = int(next(iter(curves(page).values()))[-1])
    assert 80 <= points <= 100  # a quarter of 360
    page.go_back()
    until(lambda: [cells[-1] for cells in curves(page).values()] == ["360"], "all points again")
    assert page.url == before


def test_link_shows_the_same_in_another_time_zone(daemon: Served, page: Page, browser: Browser) -> None:
    page.goto(address(daemon, graph("sum:1m-avg:rate:sys.cpu.user{host=*}", "max:sys.cpu.user")))
    shown(page)
    before = page.url
    drag(page)
    page.wait_for_url(lambda url: url != before)
    page.locator("#scale").select_option("log")
    page.locator(".axis").nth(1).select_option("right")
    page.locator(".interval").nth(1).select_option("5m")
    page.locator("#points").click()
    until(
        lambda: "ylog" in page.url and "table=1" in page.url and "x1y2" in page.url and "5m-avg" in page.url,
        "the URL has all changes",
    )
    wanted, points = shown(page), page.locator("#table tbody tr").count()
    assert sorted(wanted) == ["rate of sys.cpu.user host=web01", "rate of sys.cpu.user host=web02", "sys.cpu.user"]
    assert int(wanted["rate of sys.cpu.user host=web01"][-1]) < 20  # of 60
    with tab(browser, zone="Asia/Tokyo") as other:
        without_library(other).goto(page.url)
        assert listed(other) == wanted
        expect(other.locator("#zone")).to_contain_text("Asia/Tokyo")
        assert other.locator(".axis").nth(1).input_value() == "right"
        assert other.locator("#scale").input_value() == "log"
        assert other.locator("#table tbody tr").count() == points


def test_curve_is_hidden_and_shown_by_keyboard(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=*}")))
    shown(page)
    key = page.get_by_role("button", name="host=web02")
    key.press("Enter")
    expect(page.locator("#graph .trace")).to_have_count(1)
    key.press("Enter")
    expect(page.locator("#graph .trace")).to_have_count(2)


def test_curves_are_sorted_by_a_column(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=*}")))
    assert list(shown(page)) == ["sys.cpu.user host=web01", "sys.cpu.user host=web02"]
    page.get_by_role("button", name="Max").press("Enter")
    assert list(curves(page)) == ["sys.cpu.user host=web02", "sys.cpu.user host=web01"]


def test_wildcard_in_a_list_of_names_is_explained(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=web01*|web02}")))
    expect(page.locator("#message")).to_contain_text("regexp(^(web01.*|web02)$)")


def test_removed_last_query_leaves_no_old_graph(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:sys.cpu.user")))
    shown(page)
    page.get_by_role("button", name="Remove this query").click()
    expect(page.locator("#graph .trace")).to_have_count(0)
    expect(page.locator("#curves tbody tr")).to_have_count(0)
    expect(page.locator("#csv")).to_be_hidden()


def test_old_opentsdb_link_is_understood(daemon: Served, page: Page) -> None:
    span = "start=2023/11/14-22:13:20&end=2023/11/14-23:13:20"
    page.goto(address(daemon, f"#{span}&m=sum:10m-avg:sys.cpu.user%7Bhost=web01%7D&o=&yrange=%5B0:%5D"))
    assert [int(cells[-1]) for cells in shown(page).values()] in ([6], [7])
    assert page.locator("#scale").input_value() == "[0:]"


def test_points_are_saved_as_csv_and_png(daemon: Served, page: Page, tmp_path: Path) -> None:
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=*}")))
    shown(page)
    with page.expect_download() as download:
        page.locator("#csv").click()
    rows = list(csv.reader(io.StringIO(Path(download.value.path()).read_text())))
    assert rows[0] == ["time", "sys.cpu.user host=web01", "sys.cpu.user host=web02"]
    assert [row[1:] for row in rows[1:]] == [[str(step), str(step + 1000)] for step in range(360)]
    assert rows[1][0] == "2023-11-14T22:13:20.000Z"
    with page.expect_download() as download:
        page.locator("#png").click()
    assert Path(download.value.path()).read_bytes().startswith(PNG)


def test_annotation_is_saved_and_shown(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=web01}")))
    shown(page)
    page.locator("#annotate").click()
    page.locator("#annotation-time").fill("1700001000")
    page.locator("#annotation-text").fill("release 7")
    page.locator("#annotation-text").press("Enter")
    page.locator("#graph .annotation").wait_for(state="attached")


@NEW_TAB
def test_without_library_the_daemons_svg_is_shown(daemon: Served, page: Page) -> None:
    def without(route) -> None:  # type: ignore[no-untyped-def]
        answer = route.fetch()
        route.fulfill(response=answer, body=re.sub(r'(name="tsd-plotly" content=)"[^"]*"', r'\1""', answer.text()))

    page.route("**/", without)
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=*}")))
    image = page.locator("#graph img")
    image.wait_for()
    page.wait_for_function("() => document.querySelector('#graph img').naturalWidth > 400")
    assert len(curves(page)) == 2


@NEW_TAB
def test_curves_are_seen_before_the_library_runs(daemon: Served, page: Page) -> None:
    run_library = _hold(page, "**/plotly.js")
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=*}")))
    picture = page.get_by_role("img", name="Graph of sys.cpu.user")
    expect(picture).to_be_visible()
    expect(page.locator("#curves tbody tr")).to_have_count(2)
    assert _count_pixels(picture, FIRST_COLOR) > 100
    page.get_by_role("button", name="host=web02").click()
    assert _count_pixels(picture, SECOND_COLOR) == 0
    run_library()
    page.locator("#graph .trace").first.wait_for(state="attached")
    expect(page.locator("#graph .trace")).to_have_count(1)
    expect(picture).to_have_count(0)


@NEW_TAB
def test_changed_query_is_seen_before_the_library_runs(daemon: Served, page: Page) -> None:
    daemon.send_lines(b"put later.metric %d 5 host=web01\n" % BASE)
    run_library = _hold(page, "**/plotly.js")
    page.goto(address(daemon, graph("sum:sys.cpu.user")))
    expect(page.get_by_role("img", name="Graph of sys.cpu.user")).to_be_visible()
    page.locator(".metric").fill("later.metric")
    page.locator(".metric").press("Enter")
    expect(page.get_by_role("img", name="Graph of later.metric")).to_be_visible()
    expect(page.locator("#curves tbody tr")).to_contain_text("later.metric")
    expect(page.locator("#graph")).to_have_css("opacity", "1")

    answer = _hold(page, "**/api/query?*")
    page.locator(".metric").fill("sys.cpu.user")
    page.locator(".metric").press("Enter")
    expect(page.locator("#graph")).to_have_css("opacity", "0.55")  # it shows the answer before
    run_library()
    page.wait_for_function("() => window.Plotly")
    answer()
    expect(page.locator("#graph .ytitle")).to_have_text("sys.cpu.user")
    expect(page.locator("#graph .trace")).to_have_count(1)
    expect(page.locator("#graph canvas")).to_have_count(0)


@NEW_TAB
def test_curves_stay_when_the_library_cannot_be_loaded(daemon: Served, page: Page) -> None:
    without_library(page).goto(address(daemon, graph("sum:sys.cpu.user{host=*}")))
    expect(page.locator("#message")).to_have_text("The plotting library could not be loaded.")
    picture = page.get_by_role("img", name="Graph of sys.cpu.user")
    expect(picture).to_be_visible()
    expect(page.locator("#graph")).to_have_css("opacity", "1")
    assert _count_pixels(picture, SECOND_COLOR) > 100
    page.get_by_role("button", name="host=web02").click()
    assert _count_pixels(picture, SECOND_COLOR) == 0
    drawn = picture.element_handle()
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_function("canvas => !canvas.isConnected", arg=drawn)  # the answer is drawn anew
    assert _count_pixels(picture, SECOND_COLOR) == 0
    assert _count_pixels(picture, FIRST_COLOR) > 100
    with page.expect_download() as saved:
        page.get_by_role("button", name="PNG").click()
    assert Path(saved.value.path()).read_bytes().startswith(PNG)


def test_failed_query_is_told_with_the_time_of_the_drawn_one(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:sys.cpu.user")))
    shown(page)
    page.locator(".metric").fill("no.such.metric")
    page.locator(".metric").press("Enter")
    expect(page.locator("#message")).to_contain_text(re.compile(r"no\.such\.metric.* Below is the answer of 20\d\d/"))
    expect(page.locator("#graph")).to_have_css("opacity", "0.55")


@NEW_TAB
def test_axes_of_the_first_drawing_have_labels(daemon: Served, page: Page) -> None:
    points = {"log.wide": (500, 7000), "log.low": (3, 40), "same.huge": (1e17, 1e17), "same.five": (5, 5)}
    points["too.large"] = (5e3, 1e308, 7e3, 5e3, 7e3)
    lines = [b"put %b %d %b a=b\n" % (metric.encode(), BASE + 60 * at, str(value).encode())
             for metric, values in points.items() for at, value in enumerate(values)]  # fmt: skip
    daemon.send_lines(b"".join(lines))
    page.add_init_script(KEEP_TEXTS)
    without_library(page).goto(address(daemon))
    for metric, scale, labels in [
        ("log.wide", "ylog", {"500", "1k", "2k", "5k"}),
        ("log.low", "ylog", {"5", "10", "20"}),
        ("too.large", "", {"5k", "5.5k", "6k", "6.5k", "7k"}),
        ("same.huge", "", {"90P", "95P", "100P", "105P", "110P"}),
        ("same.five", "yrange=[5:5]", {"4.6", "4.8", "5", "5.2", "5.4"}),
        ("log.low", "yrange=[10:0]", {"0", "2", "4", "6", "8", "10"}),
    ]:
        script = "fragment => { texts.length = 0; location.hash = fragment; }"
        page.evaluate(script, f"{graph(f'sum:{metric}')}&{scale}")
        page.wait_for_function("metric => texts.includes(metric)", arg=metric)  # the axis's title follows its labels
        found = [text for text in page.evaluate("texts") if re.fullmatch(r"[\d.]+[nµmkMGTP]?", text)]
        assert sorted(found) == sorted(labels), (metric, scale)
        assert _count_pixels(page.locator("#graph canvas"), FIRST_COLOR) > 10, (metric, scale)


def _hold(page: Page, pattern: str) -> Callable[[], None]:
    """Hold requests back. Return the function that lets them and later ones pass."""
    held: list[Route] | None = []

    def take(route: Route) -> None:
        if held is None:
            route.continue_()
        else:
            held.append(route)

    def release() -> None:
        nonlocal held
        routes, held = held or [], None
        for route in routes:
            route.continue_()

    page.route(pattern, take)
    return release


def _count_pixels(canvas: Locator, color: Sequence[int]) -> int:
    """Return how many pixels of a canvas have a color."""
    script = """(canvas, wanted) => {
        const found = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0;
        for (let at = 0; at < found.length; at += 4) count += wanted.every((one, part) => found[at + part] === one);
        return count;
    }"""
    return int(canvas.evaluate(script, color))


def test_values_that_have_no_place_on_an_axis_leave_the_others_drawn(daemon: Served, page: Page) -> None:
    """Regression: no value was drawn, on an axis from -1 to 4."""
    values = ("5e3", "1e308", "-1e308", "7e3")
    daemon.send_lines("".join(f"put large {BASE + 60 * at} {one} host=a\n" for at, one in enumerate(values)).encode())
    page.goto(address(daemon, graph("none:large")))
    assert [cells[-1] for cells in shown(page).values()] == ["4"]
    expect(page.locator("#graph .ytick text").filter(has_text=re.compile("^[5-7]")).first).to_be_attached()
    expect(page.get_by_text("1e300")).to_be_visible()


def test_values_that_a_logarithmic_axis_lacks_are_told(daemon: Served, page: Page) -> None:
    """Regression: a curve of zeros was an empty graph without a reason."""
    daemon.send_lines(b"".join(b"put idle %d 0 host=a\n" % (BASE + 60 * at) for at in range(3)))
    told = page.get_by_text("logarithmic axis")
    page.goto(address(daemon, graph("sum:idle") + "&ylog"))
    expect(told).to_be_visible()
    page.locator("#scale").select_option("")
    expect(told).to_have_count(0)
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=web02}") + "&ylog"))
    shown(page)
    expect(told).to_have_count(0)
    page.goto(address(daemon, graph("sum:idle") + "&o=axis%20x1y2&ylog"))  # the right axis is linear
    shown(page)
    expect(told).to_have_count(0)


def test_unknown_metric_is_named_in_the_error(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:no.such.metric")))
    message = page.locator("#message.error")
    message.wait_for()
    assert "no.such.metric" in message.inner_text()
    page.locator(".metric").fill("sys.cpu.user")
    page.locator(".metric").press("Enter")
    shown(page)
    expect(message).to_have_count(0)


@NEW_TAB
def test_stopped_daemon_is_told_and_refresh_recovers(page: Page, tmp_path: Path) -> None:
    tsd, view = Tsd(tmp_path / "state"), without_library(page).context.new_page()
    port = str(pick(0))  # no connection of the browser takes it while the daemon is away
    with tsd.serve("--port", port) as first:
        first.send_lines(b"put m %d 1 a=b\n" % BASE)
        page.goto(address(first, graph("sum:m") + "&autoreload=1"))
        expect(page.locator("#curves tbody tr")).to_have_count(1)
        view.clock.install()
        view.goto(address(first, "#view=daemon"))
        view.locator("#daemon-view h2").first.wait_for()
    told = page.get_by_text("does not answer")
    expect(told).to_be_visible()
    view.clock.fast_forward(60_000)
    view.locator("#message.error").wait_for()
    expect(view.locator("#daemon-content")).to_have_class("stale")
    with tsd.serve("--port", port):
        expect(told).to_have_count(0)
        expect(page.locator("#curves tbody tr")).to_have_count(1)
        view.clock.fast_forward(60_000)
        expect(view.locator("#message.error")).to_have_count(0)


@NEW_TAB
def test_user_is_asked_for_until_the_daemon_answers(daemon: Served, page: Page) -> None:
    """Regression: after one request that failed the page was empty, without a way to sign in, until it was reloaded."""
    without_library(page).route("**/ui/access", lambda route: route.abort(), times=1)
    page.clock.install()
    page.goto(address(daemon, graph("sum:sys.cpu.user")))
    page.locator("#message.error").wait_for()
    page.clock.fast_forward(60_000)
    expect(page.locator("#curves tbody tr")).to_have_count(1)
    page.route("**/api/query?*", lambda route: route.fulfill(status=401, body="{}"))  # accounts are required since then
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#sign-in")).to_be_visible()


@NEW_TAB
@pytest.mark.parametrize(
    ("view", "path"), [("#m=sum:sys.cpu.user&autoreload=15", "**/api/query?*"), ("#view=daemon", "**/api/stats")]
)
def test_refreshes_end_once_the_user_does_not_sign_in(daemon: Served, page: Page, view: str, path: str) -> None:
    """Regression: each refresh opened the dialog again."""
    asked: list[Route] = []

    def refuse(route: Route) -> None:
        asked.append(route)
        route.fulfill(status=401, body="{}")

    without_library(page).clock.install()
    page.route(path, refuse)
    page.goto(address(daemon, view))
    page.locator("#sign-in .cancel").click()
    page.clock.fast_forward(60_000)
    page.reload()  # asks again
    expect(page.locator("#sign-in")).to_be_visible()
    assert len(asked) == 2


def test_many_series_leave_the_page_usable(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, graph("sum:many.series")))
    assert shown(page)["many.series"][0] == f"{MANY:,}"
    page.goto(address(daemon, graph("sum:many.series{host=*}")))
    expect(page.locator("#message")).to_contain_text(f"{MANY:,}", timeout=3 * PATIENCE_S * 1000)
    page.locator(".tag .value").fill("h00001")
    page.locator(".tag .value + datalist option[value=h000010]").wait_for(state="attached")
    page.locator(".tag .value").fill("h000010")
    page.locator(".tag .value").press("Enter")
    until(lambda: list(curves(page)) == ["many.series host=h000010"], "one curve")


def test_daemon_view_shows_and_ends_queries(daemon: Served, page: Page) -> None:
    daemon.send_lines(b"put sys.cpu.user 1700000000 not-a-number host=web01\n")
    with daemon.connect() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(
            b"GET /api/query?start=1700000000&m=sum:many.series%7Bhost=*%7D HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        page.goto(address(daemon, "#view=daemon"))
        row = page.get_by_role("row").filter(has_text="many.series")
        row.get_by_role("button", name="End").click()
        expect(row).to_have_count(0)
    view = page.locator("#daemon-view")
    expect(view).to_contain_text("invalid_values")
    expect(view).to_contain_text("tsd rejected --reason invalid_values --replay")
    expect(view).to_contain_text("127.0.0.1")


@NEW_TAB
def test_sign_in_with_a_token(browser: Browser, page: Page, tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, reader=Role.READ)
    with Tsd(tmp_path / "state", accounts.access | {"tsd.access.anonymous": "write"}).serve() as served:
        served.send_lines(b"put m %d 1 a=b\n" % BASE)
        without_library(page).goto(address(served, graph("sum:m")))
        dialog = page.locator("#sign-in")
        dialog.wait_for()
        expect(page.locator("#sign-in-reason")).to_be_hidden()
        page.locator("#credential").fill("wrong")
        page.keyboard.press("Enter")
        page.locator("#sign-in-reason").wait_for()
        page.locator("#credential").fill(accounts.tokens["reader"])
        page.keyboard.press("Enter")
        assert list(listed(page)) == ["m a=b"]
        expect(page.locator("#who")).to_have_text("reader")
        expect(page.locator("#annotate")).to_be_hidden()
        assert accounts.tokens["reader"] not in page.url
        assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
        page.reload()
        assert list(listed(page)) == ["m a=b"]
        with tab(browser) as other:
            other.goto(page.url)
            other.locator("#sign-in").wait_for()
        page.locator("#sign").click()
        dialog.wait_for()
        assert page.evaluate("sessionStorage.length") == 0


def test_phone_needs_no_sideways_scrolling(daemon: Served, page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(address(daemon, graph("sum:sys.cpu.user{host=*}")))
    shown(page)
    root = "document.documentElement"  # the graph of a wider window, if any, follows the window a moment later
    until(lambda: page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"), "the page is as narrow as the window")


@NEW_TAB
def test_dark_theme_follows_the_system_and_the_button(daemon: Served, page: Page) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address(daemon))
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(back)
    assert dark != light
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()
    assert page.evaluate(back) == dark
    page.reload()
    assert page.evaluate(back) == dark


def test_graph_follows_the_theme_of_the_system(daemon: Served, page: Page) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address(daemon, graph("sum:sys.cpu.user")))
    shown(page)
    back = "getComputedStyle(document.querySelector('#graph .main-svg')).backgroundColor"
    light = page.evaluate(back)
    page.emulate_media(color_scheme="dark")
    until(lambda: page.evaluate(back) != light, "the graph is dark")


@NEW_TAB
def test_collectd_values_appear(page: Page, tmp_path: Path) -> None:
    program = need_program("collectd")
    with Tsd(tmp_path / "state").serve() as served, collectd(program, tmp_path, node(served.port)):
        until(lambda: served.stats()["ledger.received"] > 100, "collectd has sent")
        without_library(page).goto(address(served, "#start=15m-ago"))
        page.locator(".metric").fill("load")
        option = page.locator(".query datalist option").first
        option.wait_for(state="attached")
        metric = option.get_attribute("value")
        assert metric is not None
        page.goto(address(served, graph(f"sum:{metric}", span="start=15m-ago")))
        assert [name.split()[0] for name in listed(page)] == [metric]


def test_inventory_of_a_daemon_without_entities_names_the_setting(daemon: Served, page: Page) -> None:
    page.goto(address(daemon, "#"))
    page.locator("#message").wait_for()
    expect(page.get_by_role("link", name="Inventory")).to_have_count(0)
    page.goto(address(daemon, "#view=inventory"))
    expect(page.locator("#message.error")).to_contain_text("tsd.entity.enabled")
