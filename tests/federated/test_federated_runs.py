"""A federated run leaves the same kind of folder as a pooled one: decode, certify, report and serve work on it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from codeward.cli import app, main
from codeward.estimators import load_sub_models
from codeward.experiments import Experiment, run_federated
from codeward.runs import find_cell, load_federated_config

CONFIG = """
dataset: digits
users: 4
code: {file: CODE}
attack: {attackers: [0, 1]}
training: {architecture: mlp, batch_size: 32}
decoder: {max_attackers: 1}
federated: {rounds: 3, local_epochs: 2, behaviour: split-targets}
"""


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    np.savetxt(folder / "code.csv", [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]], "%d", ",")
    (folder / "run.yaml").write_text(CONFIG.replace("CODE", str(folder / "code.csv")))
    return folder / "run.yaml"


@pytest.fixture(scope="module")
def run_folder(config_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "federated"
    arguments = ["federate", "simulate", str(config_file), "--engine", "reference", "--json", "-o", str(folder)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert answer["folder"] == str(folder)
    assert [record["n_attackers"] for record in answer["records"]] == [0, 1]
    return folder


def load(folder, n_attackers):
    return json.loads((folder / "records" / f"repeat0-attackers{n_attackers}.json").read_text())


def test_the_record_says_how_it_was_trained(run_folder):
    record = load(run_folder, 1)
    federated = record["federated"]
    assert federated["engine"] == "reference"
    assert federated["threat"] == "arbitrary"
    assert len(federated["rounds"]) == 3
    assert len(federated["keys"]) == 4
    (group,) = record["figures"]["groups"]
    assert group["targets"] == [(group["target"] + model) % 10 for model in range(4)]


def test_success_is_counted_against_the_target_of_each_model(run_folder):
    """The obvious twin: vote by vote. Counting one target for all models, as it once was, finds next to nothing."""
    from codeward.runs import find_cell

    cell = find_cell(run_folder, 0, 1)
    (attack,), (votes,) = cell.groups, cell.triggered
    figures = load(run_folder, 1)["figures"]["groups"][0]
    for kind, wanted in (("hit_models", True), ("clean_models", False)):
        count, of = 0, 0
        for model in range(4):
            if bool(cell.code.matrix[model, list(attack.attackers)].any()) is wanted:
                for said, label in zip(votes.votes[:, model], votes.labels, strict=True):
                    if label != attack.targets[model]:
                        of += 1
                        count += said == attack.targets[model]
        assert figures["success"][kind] == {"count": count, "of": of}
    assert figures["triggered"]["other_labels"] == figures["triggered"]["all"]


def test_the_table_shows_consensus_before_bayes_and_says_what_a_verdict_is(tmp_path, capsys):
    from pathlib import Path

    root = Path(__file__).parents[2]
    settings = ["federated.rounds=1", "federated.local_epochs=1", "attack.attackers=[1]"]
    settings.append(f"code.file={root / 'configs' / 'federated-code.csv'}")
    arguments = ["federate", "simulate", str(root / "configs" / "federated-digits.yaml"), "--engine", "reference"]
    for setting in settings:
        arguments += ["--set", setting]
    assert main([*arguments, "--quiet", "-o", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "consensus Bayes plurality verdicts" in shown
    assert "if at most 2 users attack and at most 2 models they do not reach are wrong" in shown
    consensus = load(tmp_path / "run", 1)["figures"]["consensus"]
    assert (consensus["n_attackers"], consensus["n_errors"]) == (2, 2)
    (group,) = consensus["groups"]
    assert group["right"]["count"] >= group["verdicts_right"]["count"]
    assert group["verdicts"]["count"] == group["verdicts_right"]["of"]


def test_the_code_of_the_demo_corrects_and_tracks_what_it_says():
    from pathlib import Path

    from codeward.codes import Code, inspect

    found = inspect(Code.load(Path(__file__).parents[2] / "configs" / "federated-code.csv"), 3)
    assert (found.correct_arbitrary, found.margin_arbitrary[1]) == (2, 5)
    assert found.track >= 2


def test_an_interrupted_run_goes_on_after_the_last_finished_round(config_file, run_folder, tmp_path, monkeypatch):
    from codeward.federated import Federation

    close, closed = Federation.close, []

    def stop(federation):
        closed.append(federation.round)
        if len(closed) == 5:
            raise KeyboardInterrupt
        return close(federation)

    config = load_federated_config(config_file)
    monkeypatch.setattr(Federation, "close", stop)
    with pytest.raises(KeyboardInterrupt):
        list(run_federated(config, tmp_path, "reference"))
    records = list(run_federated(config, tmp_path, "reference"))
    assert closed == [1, 2, 3, 1, 2, 2, 3]
    for n_attackers, record in enumerate(records):
        assert record["federated"]["keys"] == load(run_folder, n_attackers)["federated"]["keys"]
    assert not list((tmp_path / "training").iterdir())


def test_models_outside_the_attackers_column_are_the_ones_of_the_run_without_it(run_folder):
    clean, attacked = load(run_folder, 0), load(run_folder, 1)
    (attacker,) = attacked["figures"]["groups"][0]["attackers"]
    column = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]])[:, attacker].astype(bool)
    same = np.array(clean["federated"]["keys"]) == np.array(attacked["federated"]["keys"])
    np.testing.assert_array_equal(same, ~column)


def test_decode_certify_and_report_work_on_the_folder(run_folder, tmp_path, capsys):
    votes, code = run_folder / "votes" / "repeat0-attackers1-triggered.npz", run_folder / "code.json"
    decoded, certified = tmp_path / "decoded.jsonl", tmp_path / "certified.jsonl"
    assert main(["decode", str(votes), "--code", str(code), "--decoder", "plurality", "-o", str(decoded)]) == 0
    assert len(decoded.read_text().splitlines()) == 270
    threat = ["--threat", "arbitrary", "--decoder", "plurality"]
    assert main(["certify", str(votes), "--code", str(code), *threat, "-o", str(certified)]) == 0
    assert json.loads(certified.read_text().splitlines()[0])["threat"] == "arbitrary"
    assert main(["report", str(run_folder)]) == 0


def test_the_models_are_found_again_for_serving(run_folder):
    cell = find_cell(run_folder, 0, 1)
    setting = Experiment(cell.folder.config, cell.folder).prepare(0)
    np.testing.assert_array_equal(load_sub_models(cell).votes(setting.evaluation), cell.clean.votes)
    assert list(cell.keys) == load(run_folder, 1)["federated"]["keys"]


def test_a_lost_model_is_not_served(run_folder, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    key = load(copy, 1)["federated"]["keys"][2]
    (copy / "store" / key[:2] / f"{key}.json").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of 4 sub-models.*federate simulate"):
        load_sub_models(find_cell(copy, 0, 1))


def test_finished_cells_are_not_trained_again_and_another_run_is_refused(run_folder, config_file, monkeypatch):
    monkeypatch.setattr("codeward.experiments._federated_run.train_cells", None)
    config = load_federated_config(config_file)
    assert len(list(run_federated(config, run_folder, "reference"))) == 2
    with pytest.raises(ValueError, match="holds another run"):
        list(run_federated(load_federated_config(config_file, ["seed=1"]), run_folder, "reference"))


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("federated.round=3", "federated.round: unknown key"),
        ("federated.rounds=0", "federated.rounds"),
        ("federated.rule=krum", "federated.rule"),
        ("federated.behaviour=evil", "federated.behaviour"),
        ("training.epochs=5", "federated.rounds and federated.local_epochs"),
        ("training.engine=loop", "own machines"),
        ("users=1", "users"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(override, complaint, capsys):
    assert main(["federate", "simulate", "--set", override]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_flower_clients_do_not_train_on_a_gpu(config_file, tmp_path, capsys):
    arguments = ["federate", "simulate", str(config_file), "--set", "training.device=cuda", "-o", str(tmp_path / "run")]
    assert main(arguments) == 2
    assert "use --engine reference" in capsys.readouterr().err


def test_the_example_configurations_are_valid():
    from pathlib import Path

    files = sorted((Path(__file__).parents[2] / "configs").glob("federated-*.yaml"))
    assert files
    for file in files:
        load_federated_config(file)


@pytest.mark.slow
def test_the_page_shows_what_the_demo_prints(tmp_path, capsys, monkeypatch):
    from pathlib import Path

    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    arguments = ["federate", "simulate", "configs/federated-digits.yaml", "--engine", "reference", "--quiet"]
    assert main([*arguments, "-o", str(tmp_path / "run")]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    page = (root / "docs" / "federated.md").read_text()
    table = page[page.index("attack      ") :].split("```")[0].splitlines()
    assert len(table) == 5
    assert all(line in printed for line in table)
