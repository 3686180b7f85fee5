"""Reports in a real browser: nothing is cut, nothing is loaded, and what the buttons copy is what the files hold."""

import re
import shutil

import pytest

from codeward.report import write_card, write_report
from codeward.runs import make_card

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium; apt-get install chromium runs these tests")
#: Tables that go past their box where it does not scroll, or past the page.
CUT = """() => [...document.querySelectorAll("table, pre, svg, .tiles > div")].filter((part) => {
  const box = part.closest(".scroll") || document.documentElement;
  const scrolls = getComputedStyle(box).overflowX === "auto";
  return !scrolls && part.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
}).map((part) => part.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page_file(folder, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(folder, file)
    return file


def visit(browser, file, **options):
    context = browser.new_context(**options)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda entry: complaints.append(entry.text))
    page.on(
        "request", lambda sent: None if sent.url.startswith((file.as_uri(), "data:")) else complaints.append(sent.url)
    )
    page.goto(file.as_uri())
    return page, complaints


def test_nothing_is_cut_on_phones_screens_and_paper(browser, page_file):
    for width, scheme in ((390, "light"), (1000, "dark"), (1400, "light")):
        page, complaints = visit(browser, page_file, viewport={"width": width, "height": 900}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        assert page.evaluate(CUT) == []
        assert complaints == []
        page.context.close()
    page, complaints = visit(browser, page_file, viewport={"width": 718, "height": 1000})  # A4 with margins of 10 mm
    page.emulate_media(media="print")
    assert page.evaluate(CUT) == []
    page.context.close()


def test_a_card_is_one_page_of_paper_and_nothing_is_cut(browser, tmp_path, report):
    cell = next(cell for cell in report.cells if not cell.n_attackers)
    write_card(
        make_card(cell, {"validation": "trusted: " + "some samples of the operator, " * 5}), tmp_path / "card.html"
    )
    for width in (390, 1400):
        page, complaints = visit(browser, tmp_path / "card.html", viewport={"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        assert page.evaluate(CUT) == []
        assert complaints == []
        page.context.close()
    page, complaints = visit(browser, tmp_path / "card.html", viewport={"width": 718, "height": 1000})
    page.emulate_media(media="print")
    assert page.evaluate(CUT) == []
    printed = page.pdf(format="A4", margin=dict.fromkeys(("top", "bottom", "left", "right"), "10mm"))
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    page.context.close()


def test_the_buttons_copy_what_the_files_hold(browser, page_file, report):
    page, complaints = visit(browser, page_file)
    for table in report.tables:
        box = f'document.querySelector("#{table.name} .scroll")'
        assert page.evaluate(f"writeCsv({box})") == table.to_csv()
        assert page.evaluate(f"writeLatex({box})") == table.to_latex()
    page.get_by_role("button", name="Copy Clean inputs as CSV").click()
    page.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == next(table.to_csv() for table in report.tables if table.name == "run-clean")
    assert complaints == []
    page.context.close()
