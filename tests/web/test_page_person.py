"""The served page in a browser: keyboard, pointer, phone, dark theme, and a thousand ranks and runs."""

from __future__ import annotations

import json
import re
import time
from itertools import pairwise

import pytest
from support.aggregator.page_server import (
    SECOND,
    RankProcess,
    aggregator,
    attempt_reports,
    changed,
    document,
    finished_run,
    get,
    msgspec,
    push,
    serving,
)
from support.browser import drag, needs_chromium, press, text_of, until

from goodput import web
from goodput.account.states import STATES

HOSTILE = "<img src=x onerror=document.documentElement.dataset.ran=1>"
READY = "!document.querySelector('#timeline-body').hidden && document.querySelector('#heat-canvas').width > 0"
NODES_MAX = 4000
WIDTH, HEIGHT = 1400, 1000


def thousand_ranks(run: str, start_ns: int, ranks: int = 1000, steps: int = 12, slow: int = 613):
    """Ranks in lock step; from half of it on, one of them takes three times as long in its loader."""
    found = []
    for rank in range(ranks):
        one = RankProcess(run, rank, 1, ranks, start_ns, flops_per_step=4e14, peak_flops_per_second=9.89e14)
        one.spend("none", 2.0, outside=True)
        for step in range(steps):
            late = 0.5 if step >= steps // 2 else 0.0
            mine = late if rank == slow else 0.0
            one.step(step, {"loader": 0.1 + mine, "forward": 0.5, "communication": 0.05 + late - mine})
        found.append(one.report("finished"))
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    now_ns = time.time_ns()
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        push(url, finished_run("team/one", now_ns - 1000 * SECOND))
        big = thousand_ranks("big", now_ns - 300 * SECOND)
        for at in range(0, len(big), 250):
            push(url, big[at : at + 250])
        hostile = attempt_reports(HOSTILE, 1, now_ns - 90 * SECOND, range(20), ended="finished")
        push(url, [msgspec.structs.replace(one, identity=msgspec.structs.replace(one.identity, host=HOSTILE))
                   for one in hostile])  # fmt: skip
        yield url


@pytest.fixture
def one(tab, served):
    """The page of one run, drawn."""
    page = tab(f"{served}/#run=team%2Fone")
    until(page, READY)
    return page


def cells(page, rows: str) -> list[list[str]]:
    return page.evaluate(
        f"[...document.querySelectorAll('#{rows} tr')].map((row) => "
        "[...row.children].map((cell) => cell.textContent.replace(/\\s+/g, ' ').trim()))"
    )


def account_of_part(url: str, start: float, end: float) -> dict:
    return msgspec.json.decode(get(url, f"/api/v1/runs/team%2Fone/account?start={start}&end={end}")[2])


# ---- One run -------------------------------------------------------------------------------------------------


@needs_chromium
def test_first_screen_has_cause_and_advice(one, served):
    run = document(served, "team/one")
    cause = run["causes"][0]
    shown = text_of(one, "#cause")
    assert shown.startswith(
        f"{100 * (1 - run['factors']['goodput']):.1f} % of the GPU time was not productive"
    )
    assert f"{100 * cause['share']:.1f} % of all, went to {cause['state']}:" in shown
    assert f"What to do: {cause['advice']}" in shown
    assert one.evaluate("document.querySelector('#cause').getBoundingClientRect().bottom") < HEIGHT / 2


@needs_chromium
def test_timeline_equals_the_api_and_fills_each_bucket(one, served):
    found = msgspec.json.decode(get(served, "/api/v1/runs/team%2Fone/timeline")[2])
    there = {state for bucket in found["buckets"] for state in bucket["states"]}
    areas = "[...document.querySelectorAll('#timeline-picture [data-area]')].map((path) => path.dataset.area)"
    assert one.evaluate(areas) == [state for state in STATES if state in there]
    stacked = one.evaluate(
        "import('./scripts/charts/areas.js').then(({ stacked }) => fetch('api/v1/runs/team%2Fone/timeline').then((a) => a.json())"
        ".then((data) => stacked(data.buckets).map((area) => [area.low, area.high])))"
    )
    assert stacked[0][0] == [0] * 120 and stacked[-1][1] == [1] * 120
    assert all(low == under for (_, under), (low, _) in pairwise(stacked))
    assert one.evaluate("document.querySelectorAll('#timeline-picture .mark.restart').length") == 1
    lost = one.evaluate("document.querySelector('[data-area=lost]').getAttribute('fill')")
    assert lost == "url(#hatch-lost)", "colour is not the only sign"
    one.evaluate("document.querySelector('#timeline-details').open = true")
    until(one, "document.querySelectorAll('#timeline-rows tr').length === 120")
    assert "restart, attempt 2, goes on after step 99" in text_of(one, "#timeline-marks")


@needs_chromium
def test_keyboard_selection_survives_a_refresh(one, served):
    run = document(served, "team/one")
    one.evaluate("document.querySelector('#timeline-picture').focus()")
    press(one, "Home")
    assert one.evaluate("document.activeElement.ariaValueNow") == "0"
    press(one, "ArrowRight", 6)
    press(one, "ArrowLeft")
    press(one, "Shift+ArrowRight", 14)
    selected = one.evaluate("document.activeElement.ariaValueText")
    assert selected.startswith("Selected ") and "startup" not in selected
    requests = (
        "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/runs/team%2Fone')).length"
    )
    before = one.evaluate(requests)
    until(one, f"{requests} > {before}")
    assert one.evaluate("document.activeElement.id") == "timeline-picture"
    assert one.evaluate("document.activeElement.ariaValueText") == selected
    press(one, "Enter")
    start, end = (
        float(at) for at in until(one, "location.hash.match(/&from=([\\d.]+)&to=([\\d.]+)$/)?.slice(1)")
    )
    length = (run["end"] - run["start"]) / 120
    assert (start - run["start"], end - start) == pytest.approx((5 * length, 15 * length), abs=2e-3)
    until(one, "document.querySelector('#selection-text').textContent.startsWith('Only ')")
    part = account_of_part(served, start, end)
    assert text_of(one, "#account-total").split()[1] == f"{part['gpu_seconds']:,.2f}"
    assert text_of(one, "#cause").startswith(
        f"{100 * (1 - part['factors']['goodput']):.1f} % of the GPU time"
    )
    assert one.evaluate("document.activeElement.id") == "timeline-picture", "no focus was lost on the way"
    press(one, "Escape")
    until(one, "!location.hash.includes('from')")
    until(one, "document.querySelector('#selection').hidden")
    assert text_of(one, "#account-total").split()[1] == f"{run['gpu_seconds']:,.2f}"


@needs_chromium
def test_pointer_selects_a_part_with_its_address(one, tab):
    one.evaluate("document.querySelector('#timeline-picture').scrollIntoView({ block: 'center' })")
    box = one.evaluate("(({ x, y, width, height }) => [x, y, width, height])"
                  "(document.querySelector('#timeline-picture').getBoundingClientRect())")  # fmt: skip
    x, y, wide, high = box
    drag(one, (x + wide * 0.3, y + high / 2), (x + wide * 0.6, y + high / 2))
    until(one, "document.querySelector('#selection-text').textContent.startsWith('Only ')")
    other = tab(one.evaluate("location.href"))
    until(other, "document.querySelector('#selection-text').textContent.startsWith('Only ')")
    assert text_of(other, "#account-total") == text_of(one, "#account-total")
    one.bring_to_front()  # A page that nobody looks at asks for nothing.
    one.click("#selection-whole")
    until(one, "document.querySelector('#selection').hidden")


# ---- By keyboard alone ---------------------------------------------------------------------------------------

FOCUSABLE = """[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')].filter((node) =>
  node.checkVisibility() && !node.disabled && node.closest('dialog:not([open])') === null)"""


@needs_chromium
def test_tab_reaches_everything_and_shows_where_it_is(one):
    wanted = one.evaluate(f"{FOCUSABLE}.map((node, i) => {{ node.dataset.place = i; return i; }})")
    one.evaluate("document.activeElement.blur()")
    seen, unmarked = [], []
    for _ in wanted:
        press(one, "Tab")
        place, marked = one.evaluate(
            "(({ dataset }, { outlineStyle, outlineWidth }) => [Number(dataset.place), outlineStyle !== 'none' && "
            "parseFloat(outlineWidth) >= 2])(document.activeElement, getComputedStyle(document.activeElement))"
        )
        seen.append(place)
        unmarked += [] if marked else [place]
    assert sorted(seen) == wanted and unmarked == []
    assert seen == wanted, "in the order of the page"


@needs_chromium
def test_every_focusable_node_has_an_accessible_name(one):
    tree = one.context.new_cdp_session(one).send("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "link", "searchbox", "combobox", "slider", "DisclosureTriangle", "dialog", "image")
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"] and node.get("role", {}).get("value") in roles
    ]
    assert {"button", "link", "searchbox", "combobox", "slider", "image"} <= {role for role, _ in named}
    assert [role for role, name in named if not name.strip()] == []


@needs_chromium
def test_keys_focus_filter_help_and_content(one):
    press(one, "Tab")
    assert one.evaluate("document.activeElement.id") == "skip"
    press(one, "Enter")
    assert one.evaluate("[document.activeElement.id, location.hash]") == ["main", "#run=team%2Fone"]
    press(one, "/")
    assert one.evaluate("[document.activeElement.id, document.activeElement.value]") == ["ranks-filter", ""]
    for letter in "2?/":
        press(one, letter)
    assert one.evaluate("[document.activeElement.value, document.querySelector('#help').open]") == [
        "2?/",
        False,
    ]
    one.evaluate("document.activeElement.value = ''; document.activeElement.blur()")
    press(one, "?")
    assert one.evaluate("document.querySelector('#help').open") and "to the filter" in text_of(one, "#help")
    press(one, "Escape")
    assert not one.evaluate("document.querySelector('#help').open")


# ---- On a phone and in the dark ------------------------------------------------------------------------------

# Links within a sentence may be as small as its text (WCAG 2.5.8).
SMALL = (
    FOCUSABLE
    + """.filter((node) => !node.matches('a.rank') || node.closest('#rank-rows')).filter((node) => node.id !== 'skip' && !['heat-picture', 'timeline-picture'].includes(node.id))
  .map((node) => [node.outerHTML.slice(0, 90), node.getBoundingClientRect().height])
  .filter(([, height]) => height < 40)"""
)


@needs_chromium
@pytest.mark.parametrize("address", ["#runs", "#run=team%2Fone", f"#run={HOSTILE}"])
def test_phone_has_no_horizontal_scroll_and_large_targets(tab, served, address):
    page = tab(f"{served}/{address}", width=360, height=740)
    until(page, "document.querySelectorAll('#runs-rows tr').length > 0" if address == "#runs" else READY)
    if address != "#runs":
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        until(page, "document.querySelectorAll('#timeline-rows tr').length > 0")
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    beyond = page.evaluate(
        "[...document.querySelectorAll('main *')].filter((n) => n.checkVisibility() && !n.closest('svg, .bar, pre, .sections') && "
        "n.getBoundingClientRect().right > 361).map((n) => n.outerHTML.slice(0, 80))"
    )
    assert beyond == []
    assert page.evaluate(SMALL) == []


@needs_chromium
def test_tables_fit_windows_of_a_laptop(tab, served):
    """Just wide enough for tables instead of cards, and wide enough for all of their decoration."""
    page = tab(f"{served}/#runs", width=1001)
    until(page, "document.querySelectorAll('#runs-rows tr').length > 0")
    for width in (1001, 1100, 1281):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]


@needs_chromium
def test_theme_follows_system_or_the_stored_choice(tab, served):
    def is_dark(page):
        red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        return int(red) < 60

    page = tab(f"{served}/#runs", color_scheme="dark")
    until(page, "document.querySelectorAll('#runs-rows tr').length > 0")
    assert is_dark(page)
    assert text_of(page, "#theme") == "Theme: auto"
    page.click("#theme")
    assert text_of(page, "#theme") == "Theme: light" and not is_dark(page)
    page.reload()
    until(page, "document.querySelectorAll('#runs-rows tr').length > 0")
    assert text_of(page, "#theme") == "Theme: light" and not is_dark(page)
    page.click("#theme")
    assert text_of(page, "#theme") == "Theme: dark" and is_dark(page)
    page.click("#theme")


def colours(theme: str) -> dict[str, str]:
    """The colours of a theme, as the sheet has them."""
    sheet = (web.FOLDER / "page.css").read_text()
    found = re.findall(r"--([\w-]+): (?:light-dark\((#[0-9a-f]{6}), )?(#[0-9a-f]{6})\)?;", sheet)
    return {name: light if light and theme == "light" else dark for name, light, dark in found}


def contrast(one: str, other: str) -> float:
    """WCAG 2.2: (L1 + 0.05) / (L2 + 0.05), L the relative luminance."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_the_contrast_of_wcag_aa(theme):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    found = colours(theme)
    texts = [
        (ink, back) for ink in ("ink", "muted", "link", "good", "bad", "warn") for back in ("back", "card")
    ]
    texts += [("ink", "bad-back"), ("bad", "bad-back"), ("link", "bad-back"), ("ink", "track")]
    low = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in texts}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}
    # What is no text: where the focus is, and meters.
    assert min(contrast(found["focus"], found[back]) for back in ("back", "card")) >= 3
    assert contrast(found["bar"], found["card"]) >= 3


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_names_in_bars_contrast_with_their_colour(tab, served, dark):
    """Of every state, whether or not this run has it, as the browser paints it."""
    page = tab(f"{served}/#runs", color_scheme="dark" if dark else "light")
    until(page, "document.querySelectorAll('#runs-rows tr').length > 0")
    painted = page.evaluate(
        "(() => { const bar = document.createElement('div'); bar.className = 'bar tall'; document.body.append(bar);"
        f"return {json.dumps(list(STATES))}.map((state) => {{ const i = document.createElement('i');"
        "i.className = `s-${state}`; i.append(document.createElement('span')); bar.append(i);"
        "const of = (node, what) => getComputedStyle(node)[what].match(/\\d+/g).slice(0, 3).map(Number);"
        "return [state, of(i.firstChild, 'color'), of(i, 'fill')]; }); })()"
    )
    code = lambda rgb: "#" + "".join(f"{part:02x}" for part in rgb)  # noqa: E731
    ratios = {state: contrast(code(ink), code(back)) for state, ink, back in painted}
    assert {state: ratio for state, ratio in ratios.items() if ratio < 4.5} == {}


# ---- A thousand of each --------------------------------------------------------------------------------------


@needs_chromium
def test_thousand_ranks_are_one_canvas_naming_the_slow_one(tab, served):
    page = tab(f"{served}/#run=big")
    until(page, READY, seconds=60)
    assert page.evaluate("document.querySelectorAll('*').length") < NODES_MAX
    assert page.evaluate("[document.querySelectorAll('canvas').length, document.querySelectorAll('#rank-rows tr').length]") \
        == [1, 64]  # fmt: skip
    assert text_of(page, "#heat-worst li").startswith("rank 613 on gpu-node-306 slow 1.5")
    assert "rank 613 on gpu-node-306" in text_of(page, "#cause")
    label = page.evaluate("document.querySelector('#heat-canvas').getAttribute('aria-label')")
    assert label.startswith("Own time per step of 64 ranks, and 936 others as quantiles")
    page.evaluate("document.querySelector('#heat-picture').focus()")
    press(page, "Home")
    assert "rank 613 on gpu-node-306 · " in text_of(page, "#heat-words")
    press(page, "End")
    assert text_of(page, "#heat-words").endswith("1.10 s of its own per step, 1.83× the median")
    for _ in range(59):
        press(page, "ArrowLeft")
        if "1.00× the median" in (shown := text_of(page, "#heat-words")):
            break
    assert "· 600.0 ms of its own per step" in shown, "before it was slow"
    assert page.evaluate("document.activeElement.id") == "heat-picture"
    press(page, "PageDown")
    assert "10th percentile of 936 other ranks" in text_of(page, "#heat-words")
    # The canvas is painted: the row of the slow rank has the colours of both its halves.
    painted = page.evaluate(
        "(() => { const c = document.querySelector('#heat-canvas'); const row = c.getContext('2d')"
        ".getImageData(80, 4, c.width - 90, 1).data; const found = new Set(); for (let i = 0; i < row.length; i += 4)"
        " if (row[i + 3]) found.add(row.slice(i, i + 3).join()); return [...found]; })()"
    )
    assert {"238,241,244", "111,29,16"} <= set(painted)
    press(page, "PageUp")
    press(page, "Enter")
    until(page, "document.querySelector('#rank h1').checkVisibility()")
    assert text_of(page, "#rank h1") == "Rank 613" and page.evaluate("location.hash") == "#run=big&rank=613"


def thousand_runs(total: int):
    """What the API would say of so many runs, made of one real row."""

    def answer(status: int, body: bytes) -> tuple[int, bytes]:
        found = msgspec.json.decode(body)
        if "runs" not in found:
            return status, body
        row = next(row for row in found["runs"] if row["run"] == "team/one")
        many = [
            {
                **row,
                "run": f"run {i:04d}",
                "start": row["start"] - i,
                "waste_gpu_seconds": 100.0 + (i * 37) % 1009,
            }
            for i in range(total)
        ]
        offset = found["total"] if found["runs"] == [] else 0
        listed = many[:1000] if not offset else many[1000:]
        return status, msgspec.json.encode(
            {"runs": listed, "total": total, "truncated": not offset and total > 1000}
        )

    return answer


@needs_chromium
def test_a_thousand_runs_are_sorted_filtered_and_addressed(tab, tmp_path):
    with serving(changed(aggregator(tmp_path), "/api/v1/runs", thousand_runs(1000))) as url:
        push(url, finished_run("team/one", time.time_ns() - 1000 * SECOND))
        page = tab(f"{url}/#runs")
        until(page, "document.querySelectorAll('#runs-rows tr').length === 64")
        assert page.evaluate("document.querySelectorAll('*').length") < NODES_MAX
        page.evaluate("document.querySelector('[data-sort=waste]').focus()")
        press(page, "Enter")
        most = max((100 + (i * 37) % 1009, i) for i in range(1000))[1]
        first = cells(page, "runs-rows")[0]
        assert (
            first[0].startswith(f"run {most:04d}") and page.evaluate("location.hash") == "#runs&sort=-waste"
        )
        assert (
            page.evaluate("document.querySelector('[data-sort=waste]').closest('th').ariaSort")
            == "descending"
        )
        press(page, "/")
        for letter in "RUN 099":
            press(page, letter if letter != " " else "Space")
        assert text_of(page, "#runs-count") == "10 of 1,000 runs"
        assert "lost $" in text_of(page, "#fleet-tiles")
        until(
            page,
            "performance.getEntriesByType('resource').filter((e) => e.name.includes('api/v1/runs')).length > 1",
        )
        assert page.evaluate("document.activeElement.id") == "runs-filter", (
            "a refresh leaves the focus where it is"
        )
        other = tab(page.evaluate("location.href"))
        until(other, "document.querySelectorAll('#runs-rows tr').length === 10")
        assert cells(other, "runs-rows") == cells(page, "runs-rows")
        label = page.evaluate("document.querySelector('#runs-rows .bar').getAttribute('aria-label')")
        assert sum(round(10 * float(share)) for share in re.findall(r"([\d.]+) %", label)) == 1000
        press(page, "x", 3)
        assert "No run has “RUN 099xxx”" in text_of(page, "#runs-none")
        page.bring_to_front()
        page.click("#runs-clear")
        assert text_of(page, "#runs-count") == "1,000 runs"


@needs_chromium
def test_unlisted_runs_are_counted_and_can_be_loaded(tab, tmp_path):
    with serving(changed(aggregator(tmp_path), "/api/v1/runs", thousand_runs(1500))) as url:
        push(url, finished_run("team/one", time.time_ns() - 1000 * SECOND))
        page = tab(f"{url}/#runs")
        until(page, "document.querySelectorAll('#runs-rows tr').length === 64")
        assert text_of(page, "#runs-count") == "1,000 runs listed of 1,500"
        assert "newest 1,000 of 1,500" in text_of(page, "#runs-cut")
        assert text_of(page, "#all") == "All runs (1,500)"


# ---- When it does not go well --------------------------------------------------------------------------------


@needs_chromium
def test_unauthenticated_page_offers_sign_in(tab, tmp_path):
    app = changed(aggregator(tmp_path), "/api/v1/", lambda _status, _body: (401, b"{}"))
    with serving(app) as url:
        page = tab(f"{url}/#runs")
        until(page, "!document.querySelector('#signin').hidden")
        assert page.evaluate("document.querySelector('#signin a').href") == f"{url}/login"
        assert "sign in" in text_of(page, "#silent-what")


@needs_chromium
def test_a_busy_aggregator_costs_the_timeline_alone(tab, tmp_path):
    app = changed(aggregator(tmp_path), "/api/v1/runs/one/timeline", lambda _status, _body: (503, b"{}"))
    with serving(app) as url:
        push(url, attempt_reports("one", 1, time.time_ns() - 90 * SECOND, range(10), ended="finished"))
        page = tab(f"{url}/#run=one")
        until(page, "document.querySelector('#timeline-wait').textContent.includes('busy')")
        assert text_of(page, "#timeline-wait") == "The aggregator is busy; retrying."
        assert page.evaluate("document.querySelector('#timeline-body').hidden")
        assert page.evaluate("document.querySelector('#silent').hidden") and cells(page, "rank-rows")


@needs_chromium
def test_names_with_markup_are_text_in_every_chart(tab, served):
    page = tab(f"{served}/#run={HOSTILE}")
    until(page, READY)
    page.evaluate("document.querySelector('#timeline-details').open = true")
    assert (
        HOSTILE in text_of(page, "#heat-words")
        or HOSTILE in text_of(page, "#heat-worst")
        or HOSTILE in text_of(page, "h1")
    )
    assert HOSTILE in text_of(page, "#straggler")
    assert page.evaluate(
        "[document.querySelectorAll('main img').length, document.documentElement.dataset.ran ?? '']"
    ) == [0, ""]
