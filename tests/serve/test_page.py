"""The page in a real browser."""

import io
import shutil

import numpy as np
import pytest
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TOKEN = "a-token-long-enough-to-pass"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

#: Refused on purpose, and a page may poll once more after its server has stopped.
EXPECTED = ("401", "422", "CONNECTION_REFUSED")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium; apt-get install chromium runs these tests")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser):
    """Open the page; whatever the browser complains about fails the test."""
    contexts, complaints = [], []

    def open_page(url, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda entry: complaints.append(entry.text) if entry.type in ("error", "warning") else None)
        own = url.partition("#")[0]
        page.on("request", lambda sent: None if sent.url.startswith((own, "data:")) else complaints.append(sent.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in complaints if not any(sign in text for sign in EXPECTED)] == []


def ready(page):
    page.wait_for_selector("html[data-ready]")
    return page


def flagged_pictures(opened):
    images = [(p, np.asarray(Image.open(io.BytesIO(_bytes(p))))[None, None] / np.float32(255)) for p in opened.gallery]
    return [p for p, image in images if opened.guard.predict(image.astype(np.float32))[0].flagged]


def _bytes(picture):
    import base64

    return base64.b64decode(picture["png"].partition(",")[2])


def test_a_triggered_picture_shows_verdict_votes_suspects_and_becomes_a_live_incident(serving, opened, visit):
    picture = next(p for p in flagged_pictures(opened) if p["kind"] == "triggered")
    with serving() as (url, _):
        watcher = ready(visit(url + "#incidents"))
        watcher.get_by_text("None so far").wait_for()
        page = ready(visit(url))
        page.get_by_alt_text(f"triggered test image, true label {picture['label']}").click()
        page.locator(".stamp.alarm").wait_for()
        verdict = page.locator("#verdict").inner_text()
        assert f"The trigger aims at {picture['target']}" in verdict
        assert "Recorded as incident 1" in verdict
        assert "threat model: deterministic" in verdict
        code = opened.guard.code
        assert page.locator("#votes tbody tr").count() == code.n_models
        assert page.locator("#votes td.one").count() == code.matrix.sum()
        said = page.locator("#votes td.vote").all_inner_texts()
        assert len(said) == code.n_models
        named = page.locator("#suspects li.suspect .name").all_inner_texts()
        hit = page.locator("#votes tr.hit").count()
        assert hit == code.pattern([int(name.removeprefix("user ")) for name in named]).sum() > 0
        # The other window learns of it by itself.
        watcher.get_by_text("#1").wait_for()
        watcher.locator("#evidence").get_by_text(f"Target {picture['target']}").first.wait_for()


def test_everything_can_be_reached_and_done_with_the_keyboard(serving, opened, visit):
    with serving() as (url, _):
        page = ready(visit(url))
        seen = []
        for _ in range(8):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.id || document.activeElement.title"))
        assert seen[:3] == ["main" if seen[0] == "main" else "", "tab-inspect", "file"]
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")  # on a picture of the gallery
        page.locator("#verdict .stamp").wait_for()
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        page.locator("#tab-inspect").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#view-incidents").is_visible()
        page.keyboard.press("End")
        assert page.locator("#view-code").is_visible()
        assert page.evaluate("document.activeElement.id") == "tab-code"
        assert page.locator("#card").inner_text().count("deterministic") >= 3
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, input, img, [role=region]')].filter(e => !(e.innerText"
            " || e.alt !== undefined || e.ariaLabel || e.labels?.length || e.querySelector('img')?.alt)).length"
        )
        assert unnamed == 0


def test_a_file_unlike_the_training_data_is_refused_unless_asked_for_and_clears_the_verdict(
    serving, opened, visit, tmp_path
):
    Image.fromarray(np.full((40, 40, 3), 90, np.uint8)).save(tmp_path / "photo.png")
    (tmp_path / "notes.png").write_text("no picture")
    with serving() as (url, _):
        page = ready(visit(url))
        page.locator(".pictures button").first.click()
        page.locator("#verdict .stamp").wait_for()
        page.set_input_files("#file", tmp_path / "photo.png")
        page.get_by_text("PNG of 40 x 40 pixels; expected 8 x 8").wait_for()
        assert page.locator("#verdict .stamp").count() == 0
        assert not page.locator("#votes").is_visible()
        page.get_by_role("button", name="Convert it and check all the same").click()
        page.get_by_text("brought to the size and colours the models read").wait_for()
        page.set_input_files("#file", tmp_path / "notes.png")
        page.get_by_text("is not an image").wait_for()
        assert page.locator("#verdict .stamp").count() == 0


def test_an_incident_can_be_opened(serving, opened, visit):
    picture = next(p for p in flagged_pictures(opened) if p["kind"] == "triggered")
    with serving() as (url, _):
        page = ready(visit(url))
        page.get_by_alt_text(f"triggered test image, true label {picture['label']}").click()
        page.locator(".stamp.alarm").wait_for()
        page.locator("#tab-incidents").click()
        page.get_by_role("button", name="#1").click()
        told = page.locator("#incident")
        assert told.locator(".grid tbody tr").count() == opened.guard.code.n_models
        assert f"target {picture['target']}" in told.inner_text()
        page.get_by_role("button", name="Close").click()
        assert not told.is_visible()


@pytest.mark.parametrize("width", [390, 1400])
def test_a_table_has_a_form_a_paste_box_and_its_card(serving, opened_clinics, visit, width):
    with serving(run=opened_clinics) as (url, _):
        page = ready(visit(url, viewport={"width": width, "height": 900}))
        page.get_by_label("age (number)").fill("2.5")
        page.get_by_label("smoker (categorical)").fill("yes")
        page.get_by_label("ward (categorical)").fill("annex b")
        page.get_by_role("button", name="Check this record").click()
        page.locator(".stamp.alarm").wait_for()
        assert "clinic-03" in page.locator("#verdict").inner_text()
        page.get_by_label("age (number)").fill("old")
        page.get_by_role("button", name="Check this record").click()
        page.get_by_text("row 1, column 'age'").wait_for()
        assert page.locator("#verdict .stamp").count() == 0
        page.locator("#pasted").fill("age,smoker\n2.5,yes\n-3,no\n")
        page.get_by_role("button", name="Check what is pasted").click()
        page.get_by_role("button", name="2: low").click()
        page.locator("#verdict .answer b").get_by_text("low").wait_for()
        for tab in ("inspect", "incidents", "code"):
            page.locator(f"#tab-{tab}").click()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "Certified accuracy" in page.locator("#certificate").inner_text()
        page.goto(url + "card")
        assert "clinics" in page.inner_text("h1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_both_schemes_with_readable_contrast(serving, opened, visit, scheme):
    with serving() as (url, _):
        page = ready(visit(url, viewport={"width": 390, "height": 844}, color_scheme=scheme))
        page.locator(".pictures button").first.click()
        page.locator("#verdict .stamp").wait_for()
        for tab in ("inspect", "incidents", "code"):
            page.locator(f"#tab-{tab}").click()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        colours = page.evaluate(
            "['--ink', '--soft', '--alarm', '--calm', '--panel', '--odd']"
            ".map(name => getComputedStyle(document.documentElement).getPropertyValue(name).trim())"
        )
        ink, soft, alarm, calm, panel, odd = (luminance(colour) for colour in colours)
        assert (ink > panel) == (scheme == "dark")
        for colour in (ink, soft, alarm, calm, odd):
            assert (max(colour, panel) + 0.05) / (min(colour, panel) + 0.05) >= 4.5


def luminance(colour):
    """Relative luminance of #rrggbb (WCAG 2)."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_a_guard_with_a_token_asks_for_it(serving, visit):
    with serving(token=TOKEN) as (url, _):
        page = visit(url)
        page.get_by_label("Bearer token").fill("wrong-token-wrong-token")
        page.get_by_role("button", name="Continue").click()
        page.get_by_text("That token is not accepted").wait_for()
        page.get_by_label("Bearer token").fill(TOKEN)
        page.get_by_role("button", name="Continue").click()
        ready(page)


def test_names_in_a_code_are_text_never_markup(serving, opened, visit):
    from dataclasses import replace

    names = ["<img src=x onerror=alert(1)>", *opened.card["user_names"][1:]]
    with serving(run=replace(opened, card=opened.card | {"user_names": names})) as (url, _):
        page = ready(visit(url + "#code"))
        assert names[0] in page.locator("#matrix").inner_text()
        assert page.locator("#matrix img").count() == 0
