"""Ready to publish: what packaging, citation, container and workflow say agrees with the package."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import codeward

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_package_citation_and_changelog_name_one_version_and_day():
    cited = yaml.safe_load(read("CITATION.cff"))
    changed = re.search(r"^## (\S+) \((.*)\)$", read("CHANGELOG.md"), re.M)
    assert changed.groups() == (codeward.__version__, str(cited["date-released"]))
    assert cited["version"] == codeward.__version__


def test_all_has_every_extra_but_those_for_developers_and_weights():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(re.search(r"\[(.*)\]", everything).group(1).split(","))
    assert named == set(extras) - {"all", "docs", "dev", "backbones", "minilm"}


def test_every_extra_is_tried_alone():
    tried = re.search(r"set -- (.*)\n", read(".ci/check-dist")).group(1).split()
    assert set(tried) == (set(PROJECT["optional-dependencies"]) | {"core"}) - {"docs", "dev"}


def test_the_workflow_runs_what_a_person_runs_on_every_python():
    jobs = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]
    steps = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert "bash .ci/run" in steps["test"]
    assert "make docs" in steps["docs"]
    assert steps["dist"] == ["make dist"]
    minor = [name.rsplit(" ", 1)[1] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == minor
    badge = read("docs/figures/badge-python.svg")
    assert all(version in badge for version in minor)


def test_the_workflow_takes_actions_by_commit_and_says_which_version():
    used = re.findall(r"uses: (.*)", read(".github/workflows/test.yml"))
    assert [line for line in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_the_container_serves_as_a_user_without_rights_and_says_how_it_is():
    lines = read("Dockerfile").splitlines()
    user = next(line for line in lines if line.startswith("USER "))
    assert user.split()[1].isdigit()
    assert user != "USER 0"
    assert lines.index(user) < next(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    sent = {line.removeprefix("!") for line in read(".dockerignore").splitlines() if line.startswith("!")}
    assert sent == set(copied)


@pytest.mark.parametrize("file", ["Makefile", ".pre-commit-config.yaml"])
def test_lint_and_hooks_are_the_same(file):
    text = read(file)
    assert [
        tool for tool in ("ruff check", "ruff format", "mypy", "lint-imports", "codespell") if tool not in text
    ] == []
