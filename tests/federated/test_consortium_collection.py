"""What a consortium trained, as a run folder that the other commands take."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from codeward.cli import main
from codeward.codes import Code
from codeward.estimators import load_sub_models
from codeward.experiments import Experiment
from codeward.federated import FederatedSettings, Federation, FederationFolder, FederationPlan
from codeward.runs import find_cell
from codeward.training import PRESETS, build_network

CODE = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]], users=("alice", "bob", "carol"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder at the end, with models as they begin: collecting asks them, whatever they have learnt."""
    plan = FederationPlan(CODE, PRESETS["digits"], FederatedSettings(rounds=1), (1, 8, 8), seed=5)
    folder = FederationFolder(tmp_path_factory.mktemp("server") / "federation")
    folder.save_plan(plan)
    folder.save_result(Federation(plan).result())
    return folder.path


def collect(federation: Path, data: str, run: Path) -> int:
    return main(["federate", "collect", str(federation), "--data", data, "-o", str(run), "--json"])


def test_the_run_folder_is_one_that_other_commands_take(
    federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert collect(federation, "digits", run) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert record["federated"]["threat"] == "arbitrary"
    assert Code.load(run / "code.json") == CODE
    votes = run / "votes" / "repeat0-attackers0-clean.npz"
    cell = find_cell(run, 0, 0)
    assert load_sub_models(cell).keys == cell.keys
    images = Experiment(cell.folder.config, cell.folder).prepare(0).evaluation.images
    recipe = load_sub_models(cell).settings
    inputs = (torch.tensor(images, dtype=torch.float32) / 255 - recipe.mean[0]) / recipe.std[0]
    with np.load(votes) as content, torch.inference_mode():
        for model, arrays in enumerate(FederationFolder(federation).load_result().models):
            network = build_network(recipe.architecture, (1, 8, 8), 10, seed=0).eval()
            network.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
            assert np.array_equal(content["votes"][:, model], network(inputs).argmax(1).numpy())
    common = [str(votes), "--code", str(run / "code.json")]
    consensus = ["--decoder", "consensus", "--attackers", "1", "-o", str(tmp_path / "labels.jsonl")]
    assert main(["decode", *common, *consensus]) == 0
    assert main(["certify", *common, "--threat", "arbitrary", "-o", str(tmp_path / "radii.jsonl")]) == 0
    assert main(["report", str(run)]) == 0
    cell = find_cell(run)
    assert (cell.keys, cell.shape) == (Federation(FederationFolder(federation).load_plan()).keys, (1, 8, 8))


def test_data_the_models_were_not_made_for_are_refused(
    federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    np.savez(tmp_path / "wide.npz", images=np.zeros((60, 1, 9, 9), np.uint8), labels=np.arange(60) % 10)
    assert collect(federation, str(tmp_path / "wide.npz"), run) == 2
    assert "the models take (1, 8, 8)" in capsys.readouterr().err
    folder = FederationFolder(tmp_path / "federation")
    shutil.copytree(federation, folder.path)
    plan = folder.load_plan()
    folder.save_plan(replace(plan, training=replace(plan.training, n_classes=11)))
    assert collect(folder.path, "digits", run) == 2
    assert "n_classes is 10, but the models were trained with 11" in capsys.readouterr().err
    assert not run.exists()


def test_a_federation_that_has_not_finished_is_refused(
    federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(federation, tmp_path / "federation")
    (tmp_path / "federation" / "result.json").unlink()
    assert collect(tmp_path / "federation", "digits", tmp_path / "run") == 2
    assert "result.json" in capsys.readouterr().err
    assert collect(federation, "digits", tmp_path) == 2
    assert "exists" in capsys.readouterr().err
