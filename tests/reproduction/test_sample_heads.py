"""Heads over hashed parts: assigned by the samples themselves, certified as networks are."""

import json
from dataclasses import replace

import numpy as np
import pytest

from codeward import InputError
from codeward.cli import main
from codeward.data import hash_parts, load_dataset
from codeward.reproduction import SampleStudy, certify_samples, freeze_features, load_sample_records, vote_heads


@pytest.fixture(scope="module")
def pair():
    return load_dataset("digits")


@pytest.fixture(scope="module")
def features(pair):
    return freeze_features(pair, "gradients")


def test_votes_are_those_of_one_solve_a_part(tmp_path, pair, features):
    study = SampleStudy(tmp_path, "digits", 7, "partition", backbone="gradients")
    vote_heads(study, pair, features)
    votes, labels, counts = study.load_votes()
    record = study.load_record()
    assert record["backbone"]["digest"] == features.digest
    assert labels.tolist() == pair.test.labels.tolist()
    train, test = features.train.to_floats().astype(np.float64), features.test.to_floats().astype(np.float64)
    for model, part in enumerate(hash_parts(pair.train.images, 7, record["key"], pair.train.labels)):
        rows, hot = train[part], np.eye(10)[pair.train.labels[part]]
        head = rows.T @ np.linalg.solve(rows @ rows.T + record["ridge"] * np.eye(len(part)), hot)
        assert (votes[:, model] == (test @ head).argmax(axis=1)).mean() > 0.998  # single precision breaks near ties
    assert (counts.first.sum(axis=1) == 7).all()
    found = certify_samples(study, ["plurality", "runoff"])["certified"]
    assert found["plurality"][0] > 0.9 * len(labels)


def test_a_part_without_samples_says_label_0(tmp_path, pair, features):
    few = replace(pair, train=pair.train.take(np.arange(5)))
    held = replace(features, train=features.train.take(np.arange(5)))
    study = SampleStudy(tmp_path, "digits", 60, "partition", backbone="gradients")
    vote_heads(study, few, held)
    empty = [not len(part) for part in hash_parts(few.train.images, 60, "codeward", few.train.labels)]
    votes = study.load_votes()[0]
    assert sum(empty) >= 55
    assert not votes[:, empty].any()
    assert votes[:, ~np.array(empty)].any()


def test_a_file_of_features_gives_the_same_votes(tmp_path, pair, features, capsys):
    file = tmp_path / "digits.npz"
    assert main(["features", "digits", "-o", str(file), "--backbone", "gradients", "--no-cache", "--quiet"]) == 0
    held = freeze_features(pair, str(file))
    assert (held.name, held.digest, held.trust) == (features.name, features.digest, features.trust)
    assert (held.train.steps == features.train.steps).all()
    assert (held.test.steps == features.test.steps).all()
    capsys.readouterr()
    command = ["reproduce", "samples", "--smoke", "--backbone", str(file), "-o", str(tmp_path), "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["certified"]) == ["digits-10-partition-gradients"]
    assert [record["backbone"]["name"] for record in load_sample_records(tmp_path)] == ["gradients"]
    assert "heads on gradients" in (tmp_path / "samples" / "tables.md").read_text()


def test_features_of_something_else_are_refused(tmp_path, pair, features):
    arrays = {"X": features.train.to_floats(), "X_test": features.test.to_floats(), "backbone": np.array("b 00")}
    names = [np.array([str(label) for label in part.labels]) for part in (pair.train, pair.test)]
    np.savez(tmp_path / "other.npz", y=names[0][::-1], y_test=names[1], **arrays)
    with pytest.raises(InputError, match="its labels are not those of the data set"):
        freeze_features(pair, str(tmp_path / "other.npz"))
    arrays["X_test"] = arrays["X_test"][:, :-1]
    np.savez(tmp_path / "narrow.npz", y=names[0], y_test=names[1], **arrays)
    with pytest.raises(InputError, match="2047 columns, expected 2048"):
        freeze_features(pair, str(tmp_path / "narrow.npz"))
