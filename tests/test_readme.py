"""The README's Python lines run as they stand, and what their comments say is so."""

import re
import warnings
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def after():
    """The names that the README's Python blocks define, run one after the other."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S):
        with warnings.catch_warnings():
            # Logistic regression stops early on purpose.
            warnings.simplefilter("ignore")
            exec(compile(block, str(README), "exec"), names)
    return names


def test_the_code_is_as_the_comments_say(after):
    found, code = after["found"], after["code"]
    assert (code.n_models, found.models_lower_bound) == (13, 11)
    assert after["codeward"].inspect(code).margin == (5, 3, 2)


def test_labels_are_recovered_and_attackers_named(after):
    verdict, labels = after["verdict"], after["labels"]
    assert (verdict.labels == labels[500:]).mean() == 1.0
    assert verdict.suspects[0] == (4, 7)
    assert verdict.attack_probability[0] > 0.999
    assert round(float((after["radius"] >= 2).mean()), 3) == 0.97


def test_the_estimator_answers(after):
    assert after["guarded"].predict(after["X"][:5]).tolist() == after["y"][:5].tolist()


def test_the_output_shown_is_that_of_the_command():
    """docs/figures/run.txt is written by the command itself (`python -m benchmarks.readme`)."""
    shown = (README.parent / "docs" / "figures" / "run.txt").read_text(encoding="utf-8")
    assert f"```\n{shown}```" in README.read_text(encoding="utf-8")


def test_pages_quote_the_output_shown():
    docs = README.parent / "docs"
    row = next(
        line
        for line in (docs / "figures" / "run.txt").read_text(encoding="utf-8").splitlines()
        if " within " in line and line.split()[0] == "2"
    )
    _, _, vote, decoder, _, alarms, false_alarms, *_ = row.split()
    start, report = (
        (docs / page).read_text(encoding="utf-8").replace("\n> ", " ") for page in ("start.md", "report.md")
    )
    assert f"**vote right {vote}**" in start
    assert f"**decoder right {decoder}**" in start
    assert f"**alarms {alarms}, false alarms {false_alarms}**" in start
    assert f"{decoder} of 270 triggered inputs got the right label (a plain vote: {vote}), {alarms} raised" in report
    assert f"raised an alarm (clean inputs: {false_alarms})" in report
    assert f"right on {vote} of the triggered inputs, codeward on {decoder}" in README.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_command_prints_today_what_is_shown(tmp_path, monkeypatch):
    from benchmarks.readme import show

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    shown = (README.parent / "docs" / "figures" / "run.txt").read_text(encoding="utf-8")
    assert show("run", "-o", "runs/digits", "--quiet") == shown
