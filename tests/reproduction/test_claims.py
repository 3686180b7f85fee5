"""Figures that pages quote are those of the records."""

import json
import shutil
from pathlib import Path

import pytest

from codeward.cli import main
from codeward.reproduction import check_claims, fill_claims

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "results" / "claims.json").is_file(), reason="the results are not here")


def test_quoted_figures_are_those_of_the_records():
    assert check_claims(ROOT / "results") == []


@pytest.fixture
def few(tmp_path):
    """Results of two small settings, and a page that quotes them."""
    results = tmp_path / "results"
    results.mkdir()
    for file in (ROOT / "results").glob("mnist-iid-split.*"):
        shutil.copy(file, results)
    figure = {"text": "99.1", "how": "accuracy", "run": "mnist-iid-split/c", "decoder": "bayes", "attackers": 2}
    claims = [{"page": "page.md", "quote": "c 99.1 right", "figures": [figure]}]
    (results / "claims.json").write_text(json.dumps(claims))
    (tmp_path / "page.md").write_text("Here c\n99.1 right.")
    return results


def test_what_does_not_agree_is_said(few, capsys):
    assert fill_claims(few) == 1
    assert check_claims(few) == []
    (claim,) = json.loads((few / "claims.json").read_text())
    (figure,) = claim["figures"]
    assert (figure["of"], figure["cells"]) == ("1 time 5,000", "mnist-iid-split/c, repeat 0, attackers 2")
    (few.parent / "page.md").write_text("c 99.2 right")
    assert "0 times the quote 'c 99.1 right'" in check_claims(few)[0]
    claim["quote"], figure["text"] = "c 99.2 right", "99.2"
    (few / "claims.json").write_text(json.dumps([claim]))
    assert "says 99.2, the records say 0.99" in check_claims(few)[0]
    figure["value"] = 0.992
    (few / "claims.json").write_text(json.dumps([claim]))
    assert "stored {'value': 0.992" in check_claims(few)[0]
    figure["text"] = "99.3"
    (few / "claims.json").write_text(json.dumps([claim]))
    assert "does not say '99.3'" in check_claims(few)[1]
    assert main(["reproduce", "claims", "-o", str(few)]) == 1
    assert "does not say '99.3'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": "mnist-iid/z"}, "no run mnist-iid/z"),
        ({"how": "guess"}, "no way guess"),
        ({"attackers": 7}, "has nothing for accuracy"),
    ],
)
def test_a_claim_without_a_source_is_refused_in_one_line(few, change, words, capsys):
    (claim,) = json.loads((few / "claims.json").read_text())
    claim["figures"][0] |= change
    (few / "claims.json").write_text(json.dumps([claim]))
    assert main(["reproduce", "claims", "-o", str(few)]) == 2
    assert words in capsys.readouterr().err
