import json
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.attacks import FRACTION as PAPER_FRACTION
from codeward.decoding import VoteSet
from codeward.runs import FRACTION, Cell, RunConfig, RunFolder, describe_machine, find_cell, list_cells, load_config


@pytest.fixture
def cell(tmp_path):
    config = RunConfig(users=12, code={"name": "d"}, attack={"attackers": [0]}, decoder={"name": "bayes"})
    place = RunFolder(tmp_path / "run")
    code = place.open(config)
    says = VoteSet(np.tile([[0], [1], [1]], code.n_models), labels=np.array([0, 1, 1]))
    about = {"classes": 2, "training": {}, "groups": [], "work": {}, **describe_machine("cpu")}
    made = Cell(place, 0, 0).save_votes({"validation": says, "clean": says}, about)
    return made.save_record(config, {"code_digest": code.digest, "training": {}, "figures": {}})


def test_a_cell_reads_back_what_was_written(cell):
    assert cell.clean.votes.shape == (3, 6)
    assert cell.decoder().decode(cell.clean.votes).labels.tolist() == [0, 1, 1]
    assert (cell.has_votes, cell.has_record, cell.has_keys) == (True, True, False)
    assert list_cells(cell.folder) == [cell] == [find_cell(cell.folder.path, 0)]


def test_a_cell_without_keys_says_how_to_get_them(cell):
    with pytest.raises(InputError, match=r"codeward run .*config.yaml -o"):
        cell.keys  # noqa: B018


def test_an_altered_vote_file_is_noticed(cell):
    file = cell.folder.votes(0, 0, "validation")
    with np.load(file) as content:
        arrays = dict(content)
    arrays["votes"] = 1 - arrays["votes"]
    np.savez_compressed(file, **arrays)
    with pytest.raises(InputError, match="altered"):
        Cell(cell.folder, 0, 0).validation  # noqa: B018


def test_another_code_is_noticed(cell):
    content = json.loads(cell.folder.code_file.read_text())
    content["matrix"][0] = [1] * 12
    content.pop("digest")
    cell.folder.code_file.write_text(json.dumps(content))
    fresh = RunFolder(cell.folder.path)
    with pytest.raises(InputError, match="not the code of the records"):
        list_cells(fresh)
    with pytest.raises(InputError, match="another code"):
        Cell(fresh, 0, 0).validation  # noqa: B018
    with pytest.raises(InputError, match="a record of another code"):
        RunFolder(cell.folder.path).open(fresh.config.model_copy(update={"repeats": 3}))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b"{}",
        b'{"format": "codeward-record/1", "repeat": 0, "n_attackers": 0}',
        b'{"format": "codeward-record/1", "repeat": "x", "n_attackers": 0}',
        b"\xff\xfe",
        b"",
    ],
)
def test_hostile_records_are_one_line(cell, content):
    cell.folder.record(0, 0).write_bytes(content)
    with pytest.raises(InputError) as error:
        list_cells(cell.folder.path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["a: " + "[" * 2000, "a: &x [1]\nb: [*x, *x]", "users: 12\nusers: 13", "x" * 2**20])
def test_hostile_configurations_are_one_line(tmp_path, content):
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(InputError) as error:
        load_config(file)
    assert "\n" not in str(error.value)


def test_a_configuration_that_differs_is_shown(cell):
    other = RunConfig(users=12, code={"name": "c"}, attack={"attackers": [0], "kind": "blended"})
    with pytest.raises(InputError, match=r'code.name: "c" here, "d" there; attack.kind: "blended" here, "patch" there'):
        RunFolder(cell.folder.path).open(other)


def test_a_run_that_finished_nothing_gives_way(tmp_path):
    config = RunConfig(users=12, code={"name": "d"})
    RunFolder(tmp_path).open(config)
    assert RunFolder(tmp_path).open(config.model_copy(update={"seed": 7})).n_users == 12
    assert RunFolder(tmp_path).config.seed == 7


def test_runs_need_no_torch():
    code = "import sys, codeward.runs as r; [getattr(r, name) for name in r.__all__]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_fraction_is_that_of_the_paper():
    assert FRACTION == PAPER_FRACTION


WEIRD = (None, [], {}, "x", -1, 10**30, [None], {"x": None}, True, 0.5, [[]], [{"attackers": [99], "target": 1}])


@pytest.mark.parametrize("file", ["about", "record"])
def test_no_value_in_a_cells_files_gets_past_the_checks(cell, file):
    path = getattr(cell.folder, file)(0, 0)
    content = json.loads(path.read_text())
    refused = 0
    for key in content:
        for value in WEIRD:
            path.write_text(json.dumps(content | {key: value}))
            for part in (
                "n_classes",
                "class_names",
                "training",
                "shape",
                "keys",
                "store",
                "groups",
                "reached",
                "clean",
            ):
                refused += _is_refused(lambda part=part: getattr(Cell(cell.folder, 0, 0), part))
            for part in ("confusion", "assumptions", "id", "threat", "record", "gallery", "is_whole", "advice"):
                refused += _is_refused(lambda part=part: getattr(Cell(cell.folder, 0, 0), part))
            refused += _is_refused(lambda: Cell(cell.folder, 0, 0).decoder())
            refused += _is_refused(lambda: list_cells(cell.folder))
    assert refused > 100


def _is_refused(read):
    with suppress(InputError):
        read()
        return False
    return True
