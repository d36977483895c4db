"""The dashboard as a reader meets it: the real server and a real headless Chromium. Skipped, loudly, where there is
none."""

import json
import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from kvcast import text
from kvcast.pages.ask_folds import FOLDS, SOURCES
from tests.conftest import require_browser
from tests.ui.browser import Reader, browser, dashboard

require_browser(__name__)

WHILE_IT_RUNS = re.compile(r"of simulated time|loading the workload|starting|waiting for a free processor")
LONG_S = 200_000
"""A run that nobody sees the end of: its Cancel is pressed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    runs = tmp_path_factory.mktemp("browser") / "runs"
    with dashboard(runs) as address:
        yield address, runs


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture
def another_reader(chromium, server):
    """Opens the dashboard in a browser of its own, as often as it is called; in the end none of them asked for
    anything outside, and no script failed."""
    readers = []

    def open_(path="plan"):
        context = chromium.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
        readers.append(Reader(context.new_page(), server[0]))
        return readers[-1].open(path)

    yield open_
    for reader in readers:
        assert reader.outside() == []
        assert reader.faults == []
        assert len(reader.requests) > 10, "the log of requests is one"
        reader.page.context.close()


@pytest.fixture
def reader(another_reader):
    return another_reader()


def summaries(server):
    """Every finished run of the server, by its replicas."""
    found = [
        json.loads(path.read_text()) for path in server[1].glob("*/summary.json") if (path.parent / "run.json").exists()
    ]
    return {s["replicas"]: s for s in found if s["name"].startswith("demo")}


def expected(s):
    """The big numbers of a run's page, from its summary.json."""
    return {
        "Within limits": text.percent(s["attainment"]),
        "TTFT, p99": text.milliseconds(s["p99_ttft_ms"]),
        "TPOT, p99": text.milliseconds(s["p99_tpot_ms"]),
        "Cost / M tokens": text.usd(s["cost"]["usd_per_million_output_tokens"]),
    }


def alerts(reader):
    return [
        words.removeprefix("error").strip()
        for words in reader.page.get_by_test_id("stAlertContentError").all_inner_texts()
    ]  # the icon's name goes first


def test_the_plan_page_is_a_finished_answer(reader, server):
    words = reader.words()
    assert "Meets the target." in words
    assert alerts(reader) == []
    reader.until(reader.metrics, expected(summaries(server)[2]))  # the page's numbers are the run folder's
    assert reader.page.locator(".stPlotlyChart").count() >= 6
    assert reader.page.title() == "kvcast"
    opened = server[1].parent / "opened"
    reader.until(lambda: opened.exists() and opened.read_text().split(), [server[0]])  # by us, once
    assert "streamlit" not in reader.page.locator("body").inner_text().lower(), "nobody's advertisement on the page"


ASKED = (
    "?use=chat&users=60&model=llama-3.1-8b&weights=bf16&gpu=l4&tp=1&price=0.8&ttft=3s&tpot=100ms&for=95%25&seeds=2"
    "&no-recover=yes&set=run.warmup_s%3D120%0Arun.duration_s%3D420%0Aworkload.duration_s%3D420"
)


def answered(reader):
    """The page with the answer to its question, asked for where nobody has yet."""
    if not reader.metrics():
        reader.press("How many GPUs?")
    return reader.see("Where the numbers come from").rest()


def test_a_question_is_asked_answered_and_gone_back_to(another_reader):
    reader = another_reader(ASKED)
    assert reader.page.locator("[data-testid=stSidebar]").count() == 0
    answered(reader.see("First bound"))
    fleet, asked = reader.metrics()["Fleet"], reader.page.url
    assert fleet.endswith("× L4")
    reader.enter("Users at once", "61").see("The question has changed since this answer")
    assert "users=61" in reader.page.url
    reader.page.reload()
    reader.see("The question has changed since this answer")
    assert reader.page.get_by_label("Users at once", exact=True).input_value() == "61"
    reader.page.wait_for_timeout(2_000)  # nobody goes back quicker than a request may be late
    reader.page.go_back()
    reader.gone("The question has changed since this answer")
    assert reader.page.url == asked
    reader.until(lambda: reader.metrics()["Fleet"], fleet)
    reader.click(reader.page.get_by_text("All settings")).press("Open them all").see("ask: chat, several turns")
    assert "/plan" in reader.page.url


FOCUSED = (
    """(e => e.ariaLabel || (/BUTTON|SUMMARY/.test(e.tagName) ? e.innerText.trim() : ''))(document.activeElement)"""
)


def test_the_answer_is_reached_by_keyboard(another_reader):
    reader = another_reader(ASKED.replace("users=60", "users=59"))
    keys = reader.page.keyboard

    def tab_to(label):
        for _ in range(40):
            keys.press("Tab")
            if reader.page.evaluate(FOCUSED).split("\n")[-1] == label:  # an icon's name goes first
                return
        raise AssertionError(f"Tab does not reach {label}")

    tab_to("Users at once")
    keys.type("60")
    tab_to("How many GPUs?")
    keys.press("Enter")
    reader.see("Where the numbers come from").see("How many GPUs do 60 users need?").rest()
    assert "users=60" in reader.page.url
    tab_to("Where the numbers come from")
    keys.press("Enter")
    reader.see("kvcast ask --use=chat --users=60")


def test_the_estimate_moves_when_a_class_is_edited(reader):
    reader.go("Workload").see("Goodput")
    before = reader.metrics()
    reader.edit(0, 1, "1.8")
    reader.see(re.compile(r"last run: .*/s"))
    after = reader.metrics()
    assert float(after["Goodput"].split("/")[0]) > 1.2 * float(before["Goodput"].split("/")[0]), (
        "half as many chats again"
    )
    reader.see("The settings have changed since this run")
    # what cannot be is one line, and the mix stays
    reader.rest()  # the page is drawn once more when its estimate has ended
    reader.edit(0, 2, "many")
    reader.see("turns = 'many'")
    reader.until(lambda: len(alerts(reader)), 1)


def test_layers_are_reordered(reader):
    reader.go("Workload").pick("coding-agent")
    reader.see("An unlimited cache reuses")
    best = reader.page.get_by_text("An unlimited cache reuses").inner_text()
    reader.click(
        reader.page.get_by_role("button", name="↑").last
    )  # the task, new in every session, before the repository
    reader.see("This order costs up to")
    reader.press("Widest first").gone("This order costs up to")
    reader.until(reader.page.get_by_text("An unlimited cache reuses").inner_text, best)


def test_a_run_survives_a_reload_and_its_link_is_for_everybody(reader, another_reader, server):
    reader.enter("Replicas", "3").see("The settings have changed since this run")
    assert "2 × H200-SXM" in reader.words(), "the old answer stays until there is a new one"
    reader.press("Run").see(re.compile(f"{WHILE_IT_RUNS.pattern}|3 × H200-SXM"))
    reader.page.reload()
    reader.see("3 × H200-SXM").rest()
    reader.until(reader.metrics, expected(summaries(server)[3]))
    reader.press("Share or load")
    link = reader.page.get_by_test_id("stCode").get_by_text("cluster.replicas=3").first.inner_text()
    assert link == reader.page.url, "the browser's address is the link"
    other = another_reader(link.removeprefix(f"{server[0]}/"))
    other.see("3 × H200-SXM").rest()
    other.until(other.metrics, reader.metrics())
    assert other.page.get_by_label("Replicas", exact=True).input_value() == "3"
    other.page.reload()
    other.see("3 × H200-SXM")
    assert alerts(other) == []


def test_a_run_is_followed_and_cancelled(another_reader):
    reader = another_reader(f"?workload.duration_s={LONG_S}")
    reader.see(WHILE_IT_RUNS)
    reader.page.reload()  # the address names the run in progress, whatever else it says
    reader.see(WHILE_IT_RUNS)
    reader.press("Cancel").see("Cancelled")
    reader.until(lambda: alerts(reader), ["Cancelled. There is no finished run to show yet."])


def test_after_a_cancel_the_page_says_whose_its_results_are(reader):
    reader.enter("Replicas", "7").press("Run").see(WHILE_IT_RUNS).press("Cancel")
    told = "Cancelled. The results below are of the last finished run. Changed: cluster.replicas 2 → 7."
    reader.until(lambda: alerts(reader), [told])
    assert "2 × H200-SXM" in reader.words()


def test_a_plan_in_progress_survives_a_reload_with_its_cancel(another_reader):
    reader = another_reader("?plan.seeds=10")
    main = reader.page.get_by_test_id("stMain")
    reader.click(main.get_by_role("button", name="Find the fewest GPUs"))
    cancel = main.get_by_role("button", name="Cancel")
    cancel.wait_for()
    assert "plan.seeds=10" in reader.page.url
    reader.page.reload()
    cancel.wait_for()
    cancel.click()
    reader.see("Cancelled: “Find the fewest GPUs” has no answer yet.")


def test_back_and_forward_bring_the_settings(reader):
    field = reader.page.get_by_label("Replicas", exact=True).first
    target = reader.page.get_by_label("Target (%)", exact=True).first
    reader.enter("Replicas", "3").enter("Target (%)", "99.99").see("Not shown.")
    reader.page.wait_for_timeout(2_000)  # nobody goes back quicker than a request may be late
    reader.page.go_back()
    reader.until(target.input_value, "95.00").see("Meets the target.")
    assert field.input_value() == "3"
    reader.page.wait_for_timeout(2_000)  # the page is drawn to its end
    reader.page.go_back()
    reader.until(field.input_value, "2")
    reader.page.go_forward()
    reader.until(field.input_value, "3")


def test_another_page_keeps_the_settings(reader):
    reader.enter("Replicas", "3").enter("Target (%)", "90").see("The settings have changed since this run")
    reader.page.wait_for_timeout(2_000)  # its address is none that a request may be late with
    for name in ("Workload", "Timeline", "Plan"):
        reader.go(name)
        assert reader.page.get_by_label("Replicas", exact=True).first.input_value() == "3", name
        assert "cluster.replicas=3" in reader.page.url


def test_another_limit_is_another_verdict_at_once(reader):
    reader.see("Meets the target.").enter("TTFT ms, chat", "40").see("Misses the target.")
    assert "slo.classes.chat.ttft_s=0.04" in reader.page.url
    assert not reader.page.get_by_test_id("stMain").get_by_text("settings have changed").count()
    reader.page.reload()
    reader.see("Misses the target.")


def test_variants_are_compared(reader):
    reader.go("Compare")
    reader.enter("Replicas: beside 2", "1").press("Compare (2 simulations)")
    reader.page.get_by_role("heading", name="Values").wait_for()
    reader.rest()
    reader.see("Against replicas 2")
    reader.page.locator(".stPlotlyChart .main-svg").first.wait_for()
    with reader.page.expect_download() as download:
        reader.press("comparison.csv")
    rows = download.value.path().read_text().splitlines()
    assert rows[0].startswith("cluster.replicas,attainment,")
    assert len(rows) == 3


TRACE = [
    {"timestamp": 100 * i, "input_length": 900 + i, "output_length": 20, "hash_ids": [i % 3, 10 + i]} for i in range(60)
]


def upload(reader, name, rows):
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    reader.page.locator("[data-testid=stSidebar] input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/x-ndjson", "buffer": content}
    )
    return reader


def test_a_bad_trace_is_one_line_and_a_good_one_is_read_and_run(reader):
    reader.choose("Workload", "a trace").see("upload a trace in the sidebar")
    upload(reader, "bad.jsonl", [*TRACE[:5], {**TRACE[5], "input_length": -5}, *TRACE[6:]])
    reader.see("row 6: input_length = -5, expected a whole number of at least 1")
    reader.until(lambda: len(alerts(reader)), 1)
    upload(reader, "good.jsonl", TRACE)
    reader.until(lambda: len(alerts(reader)), 0)  # nor does its end wait for anything
    reader.go("Workload").see("rows read 60 = requests 60 + skipped 0")
    reader.press("Run").go("Plan").see("No limits are set.")
    reader.see("uploaded trace")
    assert alerts(reader) == []


CUT = """() => {
  const shown = [...document.querySelectorAll('.stApp [data-testid=stWidgetLabel] p, [data-testid=stMetricValue] div,'
    + ' [data-testid=stMetricLabel] p, [data-testid=stSelectbox] [value], [data-testid=stSelectbox] input')];
  const cut = e => e.scrollWidth > e.clientWidth + 1 && e.getClientRects().length;
  return shown.filter(cut).map(e => e.innerText || e.value);
}"""
"""Labels and values that their place does not show whole."""


def test_no_label_value_or_unit_is_cut(chromium, server):
    context = chromium.new_context(viewport={"width": 1024, "height": 768}, reduced_motion="reduce")
    reader = Reader(context.new_page(), server[0])
    for path in ("", "plan", "workload", "life"):
        reader.open(path).rest()
        assert reader.page.evaluate(CUT) == [], path
    context.close()


PAGES = ("", "plan", "workload", "cache", "compare", "resilience", "calibration", "timeline", "life")
SERIOUS = ("serious", "critical")
FAINT = """() => {
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const read = css => css.match(/[\\d.]+/g).map(Number);
  const ground = light(read(getComputedStyle(document.querySelector('.stApp')).backgroundColor).slice(0, 3));
  const ratio = e => { const [r, g, b] = read(getComputedStyle(e).fill), l = light([r, g, b]);
    return (Math.max(l, ground) + 0.05) / (Math.min(l, ground) + 0.05); };
  return [...document.querySelectorAll('.stPlotlyChart :is(.xtick, .ytick, .xtitle, .ytitle, .annotation-text)')]
    .map(e => e.querySelector('text') || e).filter(e => e.textContent.trim() && ratio(e) < 4.5)
    .map(e => e.textContent + ' ' + ratio(e));
}"""
"""Words of axes that stand out from the page by less than 4.5:1; axe does not look into a plot."""
HEADINGS = "() => [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => Number(h.tagName[1]))"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read_by_everybody(chromium, server, scheme):
    """One h1, no level left out, a sentence for every plot, and where axe is installed nothing that it finds serious:
    contrast, names, order."""
    axe = find_spec("axe_playwright_python")
    script = Path(axe.origin).with_name("axe.min.js").read_text() if axe and axe.origin else ""
    context = chromium.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    reader = Reader(context.new_page(), server[0])
    for path in (*PAGES, ASKED):
        reader.open(path).rest()
        if path == ASKED:
            answered(reader)
            for title in (*FOLDS, SOURCES):
                reader.click(reader.page.get_by_text(title, exact=True))
        levels = reader.page.evaluate(HEADINGS)
        assert levels.count(1) == 1, path
        assert levels[0] == 1, path
        assert all(b - a <= 1 for a, b in pairwise(levels)), (path, levels)
        assert reader.page.evaluate(FAINT) == [], (path, scheme)
        told = reader.page.locator("p[data-plot]").all_inner_texts()
        assert len(told) == reader.page.locator(".stPlotlyChart").count(), path
        assert len(set(told)) == len(told), path
        assert all(one.strip().endswith(".") for one in told)
        if script:
            reader.page.evaluate(script)
            found = reader.page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            serious = [(v["id"], [node["html"][:200] for node in v["nodes"]]) for v in found if v["impact"] in SERIOUS]
            assert serious == [], (path, scheme)
    context.close()
    if not script:
        pytest.skip("contrast was not checked: axe-playwright-python is not installed (pip install -e '.[test]')")
