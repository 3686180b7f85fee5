"""The site builds without a warning, tutorials included; links between files of the repository lead somewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT = {"_build", "tutorials"}
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for page in (ROOT / "docs").rglob("*.md") if not BUILT & set(page.parts)),
        *(ROOT / "results").glob("*.md"),
    ]
)

#: Pages for people who use codeward; proofs, and what only a maintainer needs, may be denser.
READERS = [ROOT / "README.md", *(page for page in PAGES if page.parent == ROOT / "docs" and page.stem != "theory")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\(([^)#\s]+)", text)
    near = [link for link in links if not re.match(r"[a-z]+:", link) and "tutorials/" not in link]
    assert [link for link in near if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", READERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_paragraphs_are_short(page):
    text = re.sub(r"(?s:```.*?```)|^    .*$|^\|.*$", "", page.read_text(encoding="utf-8"), flags=re.M)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*>]|\d+\.) )", text)
    assert [part for part in parts if len(part.split()) > 100] == []


def build_site(place, *options):
    """Build the site in a copy, as `make docs` does; nothing is written beside the sources."""
    shutil.copytree(ROOT / "docs", place / "docs", ignore=lambda folder, names: BUILT & set(names))
    for name in ("examples", "NOTATION.md", "results"):
        (place / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", *options]
    built = subprocess.run([*command, place / "docs", place / "site"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    return place / "site"


def test_the_site_builds_without_a_warning(tmp_path):
    site = build_site(tmp_path, "-D", r"sphinx_gallery_conf.filename_pattern=/plot_idea")
    assert (site / "tutorials" / "plot_idea.html").is_file()


@pytest.mark.slow
def test_every_tutorial_runs(tmp_path):
    site = build_site(tmp_path)
    for tutorial in (ROOT / "examples").glob("plot_*.py"):
        assert "sphx-glr-script-out" in (site / "tutorials" / f"{tutorial.stem}.html").read_text(), tutorial
