"""What notebooks show: pictures that stand alone, tables with names, and a clear line without pandas."""

import base64
import re
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from codeward import BayesDecoder, Code, InputError, certify, design
from codeward.decoding import VoteSet, estimate_confusion, explain_verdict
from codeward.runs import Cell, RunConfig, RunFolder, describe_machine, share

ROWS = [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
CODE = Code(ROWS, ["ann", "b<b", "eve", "dan"])
VOTES = np.array([[1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])


@pytest.fixture(scope="module")
def decoded():
    labels = np.arange(40) % 2
    clean = np.repeat(labels[:, None], 6, axis=1)
    return BayesDecoder(CODE, estimate_confusion(clean, labels, 2)).decode(VOTES)


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    config = RunConfig(code={"name": "d"}, attack={"attackers": [0, 1]}, decoder={"name": "bayes"})
    place = RunFolder(tmp_path_factory.mktemp("notebook") / "run")
    code, labels = place.open(config), np.array([0, 1, 1, 0])
    honest = np.repeat(labels[:, None], code.n_models, axis=1)
    obeyed = np.where(code.pattern([3]), 1, honest)
    says = {"validation": VoteSet(honest, labels), "clean": VoteSet(honest, labels)}
    about = {"classes": 2, "training": {}, "class_names": ["cat", "dog"], **describe_machine("cpu")}
    right = {name: share(4, 4) for name in ("bayes", "plurality", "single_model", "alarms")}
    for size, groups in ((0, []), (1, [{"attackers": [3], "target": 1}])):
        triggered = {"triggered": VoteSet(obeyed, labels)} if size else {}
        found = Cell(place, 0, size).save_votes({**says, **triggered}, {**about, "groups": groups})
        told = [{**group, "triggered": {"all": right, "other_labels": right}} for group in groups]
        figures = {"clean": {"all": right}, "groups": told}
        found.save_record(config, {"code_digest": code.digest, "training": {}, "figures": figures})
    return Cell(place, 0, 1)


def read_pictures(html):
    """Return the pictures of a notebook's cell, each checked to be an SVG file of its own."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return [ElementTree.fromstring(base64.b64decode(text)) for text in found]


def test_every_value_shows_a_picture_that_stands_alone_and_a_frame(decoded, cell):
    pandas = pytest.importorskip("pandas")
    shown = [CODE, design(6, 1, 3), decoded, certify(VOTES, CODE), explain_verdict(decoded, VOTES, CODE)]
    for value in (*shown, cell, cell.folder):
        html = value._repr_html_()
        assert len(read_pictures(html)) == 1
        assert "<style" not in html  # a style sheet would reach the rest of the notebook
        assert "b<b" not in html
        assert isinstance(value.to_frame(), pandas.DataFrame)
        assert value.plot()._repr_svg_().startswith("<svg xmlns")


def test_names_stand_where_numbers_would(decoded):
    pytest.importorskip("pandas")
    assert list(CODE.to_frame().columns) == ["ann", "b<b", "eve", "dan"]
    assert decoded.to_frame()["suspects"][0] == ("b<b",)
    assert decoded.take([0]).to_frame()["suspects"][0] == ("b<b",)
    found = explain_verdict(decoded, VOTES, CODE, ["cat", "dog"])
    assert found.sentence.startswith("cat, by 3 of 6 sub-models; alarm (")
    assert found.suspects == ("b<b",)
    assert found.to_frame()["says"].tolist() == ["dog", "dog", "cat", "cat", "cat", "dog"]
    assert found.to_frame()["learned from a suspect"].tolist() == [True, True, False, False, False, True]
    reasons = certify(VOTES, CODE).to_frame()["why not more"]
    assert any(name in reasons[1] for name in CODE.users)


def test_a_quiet_input_names_nobody(decoded):
    found = explain_verdict(decoded, VOTES, CODE, index=1)
    assert (found.alarm, found.suspects) == (False, ())
    assert 'class="bad"' not in found.plot()
    with pytest.raises(InputError, match="no input 3"):
        explain_verdict(decoded, VOTES, CODE, index=3)


def test_a_run_shows_its_cells_and_a_cell_one_triggered_input(cell):
    pytest.importorskip("pandas")
    rows = cell.folder.to_frame()
    assert rows["attackers"].tolist() == [0, 1]
    assert rows["decoder right"].tolist() == [1.0, 1.0]
    assert cell.plot().count(">dog<") == int(cell.code.pattern([3]).sum())
    assert cell.to_frame()["reached by an attacker"].tolist() == cell.code.pattern([3]).tolist()
    assert "3 want dog" in cell._repr_html_()


def test_a_table_is_cut_and_says_so():
    html = certify(np.zeros((30, 6), dtype=int), CODE)._repr_html_()
    assert html.count("<tr>") == 11
    assert "10 of 30 rows; to_frame() has all." in html


def test_without_pandas_one_line_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        CODE.to_frame()


def test_a_drawing_is_written_as_svg_only(tmp_path):
    assert ElementTree.parse(CODE.plot().save(tmp_path / "a.svg")).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    with pytest.raises(InputError, match="drawings are written as"):
        CODE.plot().save(tmp_path / "a.png")
