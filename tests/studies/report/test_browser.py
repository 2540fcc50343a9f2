"""The page in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import shutil

import pytest

from torchrl_dceo.studies.report import make_report

sync_api = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser`")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens a file and watches it: whatever goes wrong, or goes out, fails the test."""
    troubles, contexts = [], []

    def opened(path, width=1280, height=900, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(10_000)
        tab.on("console", lambda message: troubles.append(message.text))
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("requestfailed", lambda request: troubles.append(request.url))
        tab.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        tab.on(
            "request",
            lambda request: (
                request.url.startswith(("data:", path.as_uri()))
                or troubles.append(f"asks for {request.url}")
            ),
        )
        tab.goto(path.as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture
def tab(open_page, page):
    return open_page(page)


def curves(tab, chart="curve-chart", kind="curve"):
    """The agents that have a line in a chart, one entry a line."""
    return tab.eval_on_selector_all(
        f"#{chart} .{kind}", "paths => paths.map((path) => path.dataset.name)"
    )


def texts(tab, selector):
    return tab.locator(selector).all_text_contents()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_page(open_page, page, width, scheme):
    tab = open_page(page, width, scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("document.body.getBoundingClientRect().right") <= width
    tab.set_viewport_size({"width": 700, "height": 800})  # charts are drawn again
    tab.wait_for_function(
        "Math.abs(document.querySelector('#curve-chart svg').viewBox.baseVal.width - 700) < 90"
    )
    assert tab.evaluate("document.documentElement.scrollWidth") == 700


def test_agents_are_switched_off_and_on_in_all_charts(tab):
    assert (
        set(curves(tab)) == set(curves(tab, "profile-chart")) == {"dceo", "dceo_two_phase", "ddqn"}
    )
    switch = tab.locator("#curves [data-agents]").get_by_label("ddqn")
    switch.uncheck()
    assert set(curves(tab)) == set(curves(tab, "profile-chart")) == {"dceo", "dceo_two_phase"}
    # By keyboard, from the switch that was used last, and in the other place it is the same switch.
    tab.keyboard.press("Space")
    assert "ddqn" in curves(tab) and switch.is_checked()
    tab.locator("#profiles [data-agents]").get_by_text("Hide all").click()
    assert curves(tab) == [] and not switch.is_checked()
    tab.locator("#curves [data-agents]").get_by_text("Show all").click()
    assert len(curves(tab)) == 3


def test_a_metric_has_its_own_axis(tab):
    assert texts(tab, "#curve-chart .y-label") == ["Greedy return"]
    assert texts(tab, "#curve-chart .y-tick")[-1] == "1"
    tab.get_by_label("Metric").select_option("coverage")
    assert texts(tab, "#curve-chart .y-label") == ["States visited"]
    assert float(texts(tab, "#curve-chart .y-tick")[-1]) >= 10
    tab.get_by_label("Metric").select_option("option_climb")
    assert set(curves(tab)) == {"dceo", "dceo_two_phase"}


def test_interval_spread_and_single_seeds(tab):
    band = "d => d.map((path) => path.getAttribute('d')).join()"
    interval = tab.eval_on_selector_all("#curve-chart .band", band)
    assert len(curves(tab)) == 3 and len(curves(tab, kind="band")) == 3
    tab.get_by_label("mean ± std").check()
    assert len(curves(tab)) == 3
    assert tab.eval_on_selector_all("#curve-chart .band", band) != interval
    assert "standard deviation" in tab.locator("#curve-note").text_content()
    tab.get_by_label("single seeds").check()
    assert sorted(curves(tab)) == sorted(["dceo", "dceo_two_phase", "ddqn"] * 2)
    assert curves(tab, kind="band") == []


def test_environments(tab):
    assert "GoalSwitch" in tab.locator("#curve-chart svg").get_attribute("aria-label")
    assert tab.locator("#curve-chart .mark").count() == 1
    tab.locator("#curve-controls").get_by_label("NineRooms").check()
    assert "NineRooms" in tab.locator("#curve-chart svg").get_attribute("aria-label")
    assert tab.locator("#curve-chart .mark").count() == 0
    assert tab.locator("#curve-chart .tick").count() == 1  # the end of discovery
    tab.keyboard.press("ArrowLeft")  # the switch kept the keyboard
    assert "GoalSwitch" in tab.locator("#curve-chart svg").get_attribute("aria-label")


def test_values_are_read_by_pointer_and_by_keys(tab):
    tab.locator("#curve-controls").get_by_label("NineRooms").check()
    chart, readout = tab.locator("#curve-chart svg"), tab.locator("#curve-chart .readout")
    assert not readout.is_visible()
    box = chart.bounding_box()
    chart.hover(position={"x": box["width"] - 140, "y": 100})  # at its end
    assert "10k frames" in readout.text_content()
    assert "dceo0.95 [0.90, 1.00]" in readout.text_content()
    tab.mouse.move(0, 0)
    assert not readout.is_visible()
    chart.focus()
    tab.keyboard.press("ArrowRight")
    assert "1k frames" in readout.text_content()
    tab.keyboard.press("End")
    assert "10k frames" in readout.text_content()
    tab.keyboard.press("Escape")
    assert not readout.is_visible()


def test_profiles_have_environments_and_scores(tab):
    label = tab.locator("#profile-chart svg")
    assert "all environments" in label.get_attribute("aria-label")
    tab.locator("#profile-controls").get_by_label("NineRooms").check()
    tab.locator("#profile-controls").get_by_label("Score").select_option("final")
    assert label.get_attribute("aria-label").startswith(
        "Performance profiles in NineRooms: Greedy return, at the end"
    )


def test_who_beats_whom(tab):
    cells = "#improvement-table tbody tr:first-child td"
    assert [cell[:4] for cell in texts(tab, cells)] == ["·", "1.00", "1.00"]
    tab.locator("#improvement-controls").get_by_label("NineRooms").check()
    tab.locator("#improvement-controls").get_by_label("Measure").select_option("final_coverage")
    assert [cell[:4] for cell in texts(tab, cells)] == ["·", "0.50", "0.50"]  # all cover the same
    tab.locator("#improvement-controls").get_by_label("all environments").check()
    tab.locator("#improvement-controls").get_by_label("Measure").select_option("frames_to_goal")
    assert "not compared over environments" in tab.locator("#improvement-table").text_content()


def test_pictures_are_there_and_switch(tab):
    sizes = tab.eval_on_selector_all("img", "all => all.map((image) => image.naturalWidth)")
    assert len(sizes) == 4 and min(sizes) > 100
    assert all(tab.eval_on_selector_all("img", "all => all.map((image) => image.alt)"))
    assert texts(tab, ".learned:not([hidden]) h3") == ["dceo in GoalSwitch, seed 0"]
    tab.locator("#learned-controls").get_by_label("ddqn").check()
    tab.locator("#learned-controls").get_by_label("NineRooms").check()
    assert texts(tab, ".learned:not([hidden]) h3") == ["ddqn in NineRooms, seed 0"]
    assert tab.locator(".learned img:visible").count() == 1


def test_scheme_and_copy(open_page, page):
    tab = open_page(page, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = tab.evaluate(ground)
    button = tab.locator("#scheme")
    button.click()
    assert button.text_content() == "Scheme: light" and tab.evaluate(ground) != dark
    button.click()
    assert button.text_content() == "Scheme: dark" and tab.evaluate(ground) == dark
    tab.get_by_role("button", name="Copy").click()
    tab.get_by_role("button", name="Copied").wait_for()


def test_names_cannot_become_markup(open_page, tmp_path):
    name = "<img src=x onerror=alert(1)>"
    for agent in (name, "dceo", "a`${alert(2)}"):
        folder = tmp_path / "<b>Environment" / agent
        folder.mkdir(parents=True)
        for seed in (0, 1):
            (folder / f"seed_{seed}.csv").write_text("frames,eval_return\n100,0.5\n200,1.0\n")
    made = make_report(
        tmp_path, title="</title><script>alert(3)</script>", summary="<i>", commands=["</pre><b>"],
        repetitions=20,
    )  # fmt: skip
    tab = open_page(made)
    assert tab.title() == "</title><script>alert(3)</script>"
    assert tab.locator("img").count() == 0
    assert name in texts(tab, "#improvement-table thead th")
    tab.locator("#curves [data-agents]").get_by_label(name).uncheck()
    assert name not in curves(tab)


def test_a_page_without_logs(open_page, tmp_path):
    (tmp_path / "table.csv").write_text("agent,score\n" + "dceo,1.0\n" * 3)
    made = make_report(
        tmp_path, title="Table", summary="", commands=[], tables=[tmp_path / "table.csv"]
    )
    tab = open_page(made, 390)
    assert tab.locator("table tbody tr").count() == 3
    assert texts(tab, "nav a") == ["Tables"]


def test_a_table_that_is_too_wide_has_a_hint(open_page, page):
    narrow = open_page(page, 390)
    wide = "all => all.filter((box) => box.scrollWidth > box.clientWidth + 1).length"
    boxes = narrow.eval_on_selector_all(".scroll", wide)
    assert boxes > 0 and narrow.locator(".hint").count() == boxes
    assert "Scroll sideways" in texts(narrow, ".hint")[0]
    narrow.set_viewport_size({"width": 3000, "height": 800})
    narrow.wait_for_function("document.querySelectorAll('.hint').length === 0")


def test_only_agents_that_are_in_the_chart_have_a_switch(tab):
    switches = "[data-agents=curves] label"
    assert texts(tab, switches) == ["dceo", "dceo_two_phase", "ddqn"]
    tab.locator("#curve-controls").get_by_label("Metric").select_option("option_climb")
    assert texts(tab, switches) == ["dceo", "dceo_two_phase"]
    assert texts(tab, "[data-agents=profiles] label") == ["dceo", "dceo_two_phase", "ddqn"]
