"""The recipes of the site run as they are written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"
RECIPES = sorted(page for page in HOW_TO.glob("*.md") if page.stem != "index")


def find_blocks(page, kind):
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def list_commands(page):
    return [line[2:] for block in find_blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]


def execute(command, folder):
    # Commands of the environment that runs the tests.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_every_recipe_is_in_the_list():
    assert [page for page in RECIPES if f"({page.name})" not in (HOW_TO / "index.md").read_text(encoding="utf-8")] == []
    assert len(RECIPES) >= 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The recipes' data, and the folder that several recipes begin with."""
    place = tmp_path_factory.mktemp("recipes")
    (data,) = find_blocks(HOW_TO / "index.md", "python")
    execute([sys.executable, "-c", data], place)
    for command in list_commands(HOW_TO / "csv.md"):
        execute(["bash", "-c", command], place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RECIPES if page.stem != "csv"], ids=lambda page: page.stem)
def test_a_recipe_runs(page, folder):
    code = "\n".join(find_blocks(page, "python"))
    if page.stem == "pytorch":
        (folder / "mynet.py").write_text(code)
    elif code:
        execute([sys.executable, "-c", code], folder)
    for command in list_commands(page):
        execute(["bash", "-c", command], folder)
