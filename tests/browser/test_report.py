"""The page of ``rlframe report`` in Chromium: it draws, obeys clicks, says nothing.

Screenshots are written to ``$REPORT_SHOTS`` where that is set.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rlframe.cli.main import main
from tests.unit.report.made import make_run

sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser has playwright")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
EVIL = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [make_run(folder / f"seed{seed}", seed) for seed in (0, 1)]
    runs.append(make_run(folder / "bad", 0, bad=True, lr=1e-3, response=EVIL))
    out = folder / "report.html"
    assert main(["report", *map(str, runs), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def open_page(browser, report):
    said: list[str] = []
    contexts = []

    def opened(width=1280, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(report.as_uri())
        page.wait_for_selector("#curves .plot .main-svg")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def lines(page, metric):
    return page.locator(
        f'#curves [data-metric="{metric}"] .scatterlayer .trace path.js-line'
    ).count()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (400, "light")])
def test_it_draws_and_is_no_wider_than_the_window(open_page, width, scheme):
    page = open_page(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("section").count() == 7
    assert page.evaluate("window.broken") is None
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"
    assert dark == (scheme == "dark")
    if "REPORT_SHOTS" in os.environ:
        page.locator(".sample summary").first.click()
        path = Path(os.environ["REPORT_SHOTS"]) / f"{scheme}-{width}.png"
        page.screenshot(path=path, full_page=True)


def test_seeds_are_a_band_until_the_box_is_cleared(open_page):
    page = open_page()
    # Of the seeds a mean between two edges, and the other run.
    assert page.locator("#curves-legend button").count() == 2
    assert lines(page, "actor/entropy") == 4
    page.locator("#curves-band").uncheck()
    assert page.locator("#curves-legend button").count() == 3
    assert lines(page, "actor/entropy") == 3


def test_a_click_on_a_name_hides_its_line(open_page):
    page = open_page()
    page.locator("#curves-legend button").last.click()
    assert page.locator("#curves-legend button").last.get_attribute("aria-pressed") == "false"
    assert lines(page, "actor/entropy") == 3
    page.locator("#curves-legend button").last.click()
    assert lines(page, "actor/entropy") == 4


def test_smoothing_changes_the_curve(open_page):
    page = open_page()
    path = page.locator('#curves [data-metric="critic/rewards/mean"] path.js-line').last
    before = path.get_attribute("d")
    page.locator("#curves-smooth").fill("0.9")
    assert path.get_attribute("d") != before


def test_a_fold_draws_its_charts_when_it_is_opened(open_page):
    page = open_page()
    assert page.locator('#curves [data-metric="some/other"]').count() == 0
    page.get_by_text("Everything else").click()
    page.wait_for_selector('#curves [data-metric="some/other"] .main-svg')


def test_samples_are_filtered_ordered_and_coloured(open_page):
    page = open_page()
    shown = page.locator(".sample:visible")
    everything = shown.count()
    page.locator("#sample-run").select_option(label="bad")
    assert shown.count() == everything // 3
    page.locator("#sample-step").select_option(label="step 11")
    assert shown.count() == 2
    page.locator("#sample-order").select_option("high")
    assert [shown.nth(n).get_attribute("data-reward") for n in (0, 1)] == ["0.75", "0.25"]
    shown.nth(1).locator("summary").click()
    tokens = shown.nth(1).locator(".tokens span")
    assert "".join(tokens.all_text_contents()) == EVIL
    colour = (
        "getComputedStyle(document.querySelector('.sample[open] .tokens span')).backgroundColor"
    )
    seen = set()
    for way in ("a", "l", "m", ""):
        page.locator("#sample-colour").select_option(way)
        seen.add(page.evaluate(colour))
    assert len(seen) == 3
    assert "advantage 1.2" in tokens.first.get_attribute("title")


def test_the_button_changes_the_theme_and_the_charts(open_page):
    page = open_page()
    ink = "getComputedStyle(document.querySelector('#curves .xtick text')).fill"
    before = page.evaluate(ink)
    page.locator("#theme").click()
    assert page.evaluate(ink) == before
    page.locator("#theme").click()
    assert page.locator("#theme").text_content() == "theme: dark"
    assert page.evaluate(ink) != before


def test_the_menu_leads_to_every_section(open_page):
    page = open_page()
    for link in page.locator("nav a").all():
        link.click()
        assert page.locator(link.get_attribute("href")).count() == 1
