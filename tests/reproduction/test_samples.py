"""Certificates per sample: hashed parts, their votes, what is counted of them, and the table."""

import json
from dataclasses import replace

import numpy as np
import pytest

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward.certificates import certify_dpa
from codeward.data import load_dataset
from codeward.decoding import RunOffCounts, RunOffDecoder
from codeward.reproduction import (
    SAMPLE_CODES,
    SampleStudy,
    certify_samples,
    choose_sample_training,
    draw_samples,
    load_sample_records,
    tabulate_samples,
    vote_samples,
)
from codeward.reproduction import _sample_votes as module
from codeward.reproduction._sample_tables import count_certified, half_certified
from codeward.reproduction._sample_votes import count_preferences, unfold_counts
from codeward.training import TrainingSettings

QUICK = TrainingSettings(architecture="mlp", epochs=1, mean=(0.305,), std=(0.376,))


@pytest.fixture(scope="module")
def pair():
    whole = load_dataset("digits")
    return replace(whole, train=whole.train.take(np.arange(200)), test=whole.test.take(np.arange(60)))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "samples").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", SAMPLE_CODES)
def test_every_part_feeds_a_model_and_models_learn_from_equally_many(folder, name):
    code = SampleStudy(folder, "digits", 9, name).code
    assert code.matrix.any(axis=0).all()
    assert len(set(code.matrix.sum(axis=1).tolist())) == 1
    assert code.digest == SampleStudy(folder, "digits", 9, name).code.digest  # drawn codes are drawn once


def test_counts_by_matrix_products_are_those_of_elections():
    scores = np.random.default_rng(0).integers(0, 4, (30, 7, 5)).astype(np.float32)  # with ties
    scores[:3, 0] = -np.inf
    counts = RunOffCounts.count(scores, joint=True)
    again = unfold_counts(count_preferences(scores), scores.argmax(axis=2))
    assert np.array_equal(again.joint, counts.joint)
    assert np.array_equal(again.pairs, counts.pairs)
    assert np.array_equal(again.first, counts.first)


def test_votes_do_not_depend_on_blocks_or_interruption(folder, pair, monkeypatch):
    whole = SampleStudy(folder / "samples", "digits", 5, "shifted-hash")
    vote_samples(whole, pair, QUICK)
    votes, labels, counts = whole.load_votes()
    assert votes.shape == (60, 20)
    assert np.array_equal(labels, pair.test.labels)
    assert np.array_equal(counts.first, (votes[:, :, None] == np.arange(10)).sum(axis=1))
    assert not list((folder / "samples").glob(".*"))  # blocks are gone

    # In blocks of six, killed after the first one: the next call goes on from it and says the same.
    monkeypatch.setattr(module, "BLOCK", 6)
    again = SampleStudy(folder / "again", "digits", 5, "shifted-hash")
    kept, written = module.write_atomic, []

    def write_once(path, write):
        if written:
            raise KeyboardInterrupt
        written.append(path)
        kept(path, write)

    monkeypatch.setattr(module, "write_atomic", write_once)
    with pytest.raises(KeyboardInterrupt):
        vote_samples(again, pair, QUICK)
    assert not again.is_voted
    monkeypatch.setattr(module, "write_atomic", kept)
    before = written[0].stat().st_mtime_ns
    made = []
    monkeypatch.setattr(module, "write_atomic", lambda path, write: (made.append(path), kept(path, write)))
    assert written[0].stat().st_mtime_ns == before
    vote_samples(again, pair, QUICK)
    assert written[0] not in made
    assert again.load_record()["votes"] == whole.load_record()["votes"]


def test_a_part_without_samples_says_label_0(folder, pair):
    few = replace(pair, train=pair.train.take(np.arange(6)))
    study = SampleStudy(folder / "samples", "digits", 12, "partition")
    vote_samples(study, few, QUICK)
    votes, _, _ = study.load_votes()
    assert study.load_record()["samples_a_model"][0] == 0
    assert (votes == 0).all(axis=0).sum() >= 6


def test_one_new_sample_changes_the_votes_of_one_model(folder, pair):
    first = SampleStudy(folder / "first", "digits", 6, "partition")
    vote_samples(first, pair, QUICK)
    new = pair.train.take(np.arange(-1, len(pair.train)))  # one more, at the front
    new.images[0] = 7
    second = SampleStudy(folder / "second", "digits", 6, "partition")
    vote_samples(second, replace(pair, train=new), QUICK)
    changed = (first.load_votes()[0] != second.load_votes()[0]).any(axis=0)
    assert changed.sum() <= 1


def test_plurality_certificates_are_those_of_deep_partition_aggregation(folder, pair):
    study = SampleStudy(folder / "samples", "digits", 6, "partition")
    vote_samples(study, pair, replace(QUICK, epochs=40))
    record = certify_samples(study, ["plurality", "consensus"])
    votes, labels, counts = study.load_votes()
    radius = certify_dpa(votes, 10)
    right = (votes[:, :, None] == np.arange(10)).sum(axis=1).argmax(axis=1) == labels
    assert record["certified"]["plurality"][:2] == [int(right.sum()), int((right & (radius >= 1)).sum())]
    for k, count in enumerate(record["certified"]["consensus"]):
        # One part a user: the label of all but at most k, unchanged by k more when 2k dissent at most.
        assert count <= record["certified"]["plurality"][k]
    assert RunOffDecoder(study.code, 10).predict(counts).shape == labels.shape
    [table] = tabulate_samples(load_sample_records(folder))
    text = table.to_markdown()
    assert "whose input is changed counts two" in text
    assert f"| {100 * right.mean():.1f} |" in text
    drawn = draw_samples(load_sample_records(folder)).save(folder / "plot.svg").read_text()
    assert f"6 partition, plurality, 1: {show_percent(record['certified']['plurality'][1] / 60)}" in drawn


def test_run_off_certificates_of_counts_are_never_above_those_of_scores(folder, pair):
    """A partition is certified from counts, exactly; a code with shared parts from every model's order of classes."""
    for name in ("partition", "shifted-hash"):
        study = SampleStudy(folder / "samples", "digits", 6, name)
        vote_samples(study, pair, replace(QUICK, epochs=40))
        record = certify_samples(study, ["plurality", "runoff"])
        assert record["certified"]["runoff"][0] > 0
        _, labels, counts = study.load_votes()
        right = RunOffDecoder(study.code, 10).predict(counts) == labels
        assert record["certified"]["runoff"][0] == right.sum()
        if name == "shifted-hash":
            scores = study.load_orders()
            assert np.array_equal(RunOffDecoder(study.code, 10).predict(scores) == labels, right)
            study.orders_file.unlink()
            with pytest.raises(InputError, match="vote anew"):
                study.load_orders()


def test_votes_of_another_study_are_refused(folder, pair):
    study = SampleStudy(folder / "samples", "digits", 3, "partition")
    vote_samples(study, pair, QUICK)
    record = json.loads(study.record_file.read_text())
    study.record_file.write_text(json.dumps(record | {"votes": "0" * 64}))
    with pytest.raises(InputError, match="not the votes"):
        study.load_votes()


def test_curves():
    right, radius = np.array([1, 1, 1, 0], dtype=bool), np.array([0, 3, 1, 9])
    assert count_certified(right, radius) == [3, 2, 1, 1]
    assert count_certified(~np.ones(2, dtype=bool), np.array([4, 4])) == [0]
    assert half_certified([3, 2, 1, 1], 4) == 1
    assert half_certified([1], 4) is None


def test_consensus_is_for_few_parts(folder, pair):
    study = SampleStudy(folder / "samples", "digits", 20, "partition")
    vote_samples(study, pair, QUICK)
    with pytest.raises(InputError, match="at most 16 parts"):
        certify_samples(study, ["consensus"])


def test_a_study_of_committees_stands_beside_the_other(folder, pair):
    alone, three = (SampleStudy(folder / "samples", "digits", 4, "partition", committee=size) for size in (1, 3))
    for study in (alone, three):
        vote_samples(study, pair, replace(QUICK, committee=study.committee))
        certify_samples(study, ["plurality"])
    assert three.load_votes()[0].shape == alone.load_votes()[0].shape == (60, 4)
    assert not np.array_equal(three.load_votes()[0], alone.load_votes()[0])
    records = load_sample_records(folder)
    assert [record["training"].get("committee", 1) for record in records] == [1, 3]
    [table] = tabulate_samples(records)
    assert "plurality, 3 networks a model" in table.to_markdown()
    assert "4 partition x 3, plurality" in draw_samples(records)


def test_a_study_of_another_length_is_a_study_of_its_own(folder, pair):
    short = SampleStudy(folder / "samples", "digits", 5, "boosted", epochs=2)
    assert short.name == "digits-5-boosted-epochs2"
    settings = choose_sample_training(short, pair)
    assert settings.epochs == 2
    vote_samples(short, pair, replace(QUICK, epochs=settings.epochs))
    record = certify_samples(short, ["plurality"])
    [found] = module.list_sample_studies(folder / "samples")
    assert found == short
    [table] = tabulate_samples([record])
    assert "plurality, 2 epochs" in table.to_markdown()
    assert "boosted" not in draw_samples([record])
