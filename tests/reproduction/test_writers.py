"""The study of real writers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codeward import InputError
from codeward.certificates import certify
from codeward.codes import Code, inspect, named_code, partition_code, shifted_hash_code
from codeward.decoding import ConsensusDecoder, NearestDecoder, VoteSet
from codeward.reproduction import (
    WriterData,
    attack_writers,
    count_with_everybody,
    load_writer_records,
    make_writer_codes,
    study_writers,
    tabulate_writers,
    vote_writers,
)
from codeward.reproduction._writer_study import _TrackingDecoder, certify_decoders, count_consensus
from codeward.training import ModelStore, TrainingSettings

RESULTS = Path(__file__).parents[2] / "results" / "writers"


def test_codes_of_all_writers_are_there_with_the_tracking_code():
    codes = make_writer_codes(539, RESULTS)
    assert {"partition-50", "partition-539", "shifted-hash-50x2", "track2-48"} <= set(codes)
    assert codes["track2-48"].n_models == 48
    assert codes["track2-48"].utilization > 0.33
    assert (codes["partition-50"].matrix.sum(axis=0) == 1).all()


def test_the_table_shows_counts_of_their_denominators():
    record = {
        "name": "partition-2", "models": 2, "utilization": 0.5, "inputs": 200, "certified": [190, 150],
        "single_model": {"count": 300, "of": 400},
    }  # fmt: skip
    cell = {
        "inputs": 100, "plurality_right": 50, "right": 90, "alarms": 80, "models_hit": 16,
        "success_hit": {"count": 99, "of": 100}, "named": {"rightly": 80, "wrongly": 8, "alarms": 80},
        "pooled": {"rightly": 1, "wrongly": 0, "attackers": 1},
    }  # fmt: skip
    clean = {key: value for key, value in cell.items() if key not in ("models_hit", "success_hit")}
    text = tabulate_writers([record], [{"name": "track", "false_alarms": clean, "cells": {"1": cell}}])
    assert "| partition-2 | 2 | 50.0% | 75.0 | 95.0 | 75.0 | 0.0 |" in text
    assert "| 1 | 16 | 99.0% | 50.0% | 90.0% | 80.0% | 1.00 / 0.10 | 1 / 0 |" in text


def test_own_decoders_are_certified_where_the_code_holds():
    code, labels = named_code("c"), np.arange(400) % 10
    votes = np.tile(labels[:, None], code.n_models)
    votes[0] = (votes[0] + np.arange(code.n_models) % 2) % 10  # half of the models err: nothing holds there
    quiet = np.arange(400) // 10 % 2 == 1
    consensus, one, two, bayes = certify_decoders(code, votes, labels, quiet)
    assert (consensus["threat"], consensus["inputs"], consensus["certified"]) == ("arbitrary", 400, [399, 399])
    assert {one["threat"], two["threat"], bayes["threat"]} == {"deterministic"}
    assert (one["certified"][1:], two["certified"][1:]) == ([399], [399, 399])
    assert (bayes["inputs"], bayes["certified"][1]) == (200, 199)
    none = {"rightly": 0, "wrongly": 0, "alarms": 0}
    clean = {"inputs": 1, "plurality_right": 1, "right": 1, "alarms": 0, "named": none, "pooled": none}
    attack = {"name": "c", "false_alarms": clean, "cells": {}, "certified": [consensus, bayes]}
    assert "| arbitrary | 400 | 399 | 399 | - | - |" in tabulate_writers([], [attack])


def err(code, n_inputs=60):
    """Votes on class 0 of which more and more are wrong."""
    rng = np.random.default_rng(0)
    wrong = rng.random((n_inputs, code.n_models)) < np.linspace(0, 0.5, n_inputs)[:, None]
    return np.where(wrong, rng.integers(1, 3, wrong.shape), 0), np.zeros(n_inputs, dtype=np.int64)


@pytest.mark.parametrize("k", [1, 2])
def test_what_is_counted_is_certified_by_the_search_too(k):
    shifted = shifted_hash_code(8, 2, np.random.default_rng(0), 16)
    for code in (partition_code(9, 9), shifted):
        votes, labels = err(code)
        told = count_consensus(code, votes, labels, (k,))[str(k)]
        held = certify(votes, code, decoder=ConsensusDecoder(code, k, told["errors"], 3), max_attackers=k)
        within = (votes != 0).sum(axis=1) <= told["errors"]
        assert told["count"] == within.sum() > 0
        assert ((held.labels == 0) & (held.radius >= k))[within].all()
    code = named_code("c")
    votes, labels = err(code)
    own = certify_decoders(code, votes, labels, np.arange(60) % 2 == 1)[k]
    errors = int(own["decoder"].rsplit(" ", 1)[1])
    found = certify(votes, code, threat="deterministic", decoder=NearestDecoder(code, k, errors, 10), max_attackers=k)
    assert 0 < own["certified"][k] <= ((found.labels == 0) & (found.radius >= k)).sum()


def test_records_of_the_results_agree_with_themselves():
    records, _ = load_writer_records(RESULTS)
    for record in records:
        curve = record["certified"]
        assert curve == sorted(curve, reverse=True)
        assert curve[0] == sum(kind["count"] for kind in record["staff_and_students"].values())
        assert "training" in record or record["backbone"]["trust"] == "nobody to trust"


def test_the_page_quotes_the_records():
    page = (RESULTS.parents[1] / "docs" / "writers.md").read_text(encoding="utf-8")
    for line in tabulate_writers(*load_writer_records(RESULTS)).splitlines():
        assert line in page


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(InputError, match="no records"):
        load_writer_records(tmp_path)


def test_a_trial_with_made_up_writers_goes_on_from_what_is_there(tmp_path):
    data, code = WriterData.assign_digits(12), partition_code(12, 12)
    record = study_writers(data, "partition-12", code, tmp_path)
    assert record["certified"][0] > 0.8 * record["inputs"]
    assert study_writers(data, "partition-12", code, tmp_path) == record
    attack = attack_writers(data, "partition-12", code, tmp_path, sizes=(1,))
    assert attack["cells"]["1"]["models_hit"] == 1
    kept = {file.name for file in tmp_path.iterdir()}
    assert {"partition-12.votes.npz", "attack-partition-12-1.votes.npz"} <= kept
    with pytest.raises(InputError, match="not the votes of 6 models"):
        vote_writers(data, "partition-12", partition_code(12, 6), tmp_path)


def test_networks_of_models_without_an_attacker_are_those_without_the_attack(tmp_path):
    settings = TrainingSettings(architecture="mlp", epochs=1)
    data = replace(WriterData.assign_digits(6), settings=settings, seed=2, store=ModelStore(tmp_path / "store"))
    clean, attacked = vote_writers(data, "partition-6", partition_code(6, 6), tmp_path, (1,))
    assert (clean.shape, attacked.shape) == ((108, 6), (54, 6))
    models = [file for file in data.store.root.rglob("*.safetensors") if ".scores." not in file.name]
    assert len(models) == 7  # six, and the attacked one
    record = study_writers(data, "partition-6", partition_code(6, 6), tmp_path)
    assert (record["name"], record["seed"], record["training"]["architecture"]) == (
        "partition-6-networks-seed2",
        2,
        "mlp",
    )


def test_where_the_votes_determine_the_label_no_two_writers_change_the_calibrated_decoder():
    code, labels = named_code("c"), np.arange(60) % 10
    votes = np.tile(labels[:, None], code.n_models)
    decoder = _TrackingDecoder(code, VoteSet(votes[::2], labels=labels[::2]))
    assert decoder.count_certified(votes[1::2], labels[1::2]) == [30, 30, 30]
    for attackers in ((0, 1), (3, 7), (11, 4)):
        hit = np.where(code.pattern(attackers), (labels[:, None] + 3) % 10, votes)
        assert (decoder.decode(hit).labels == labels).all()


@pytest.mark.parametrize(("groups", "k"), [(5, 1), (5, 2), (5, 3), (5, 4), (7, 3)])
def test_groups_and_models_of_everybody_have_the_margin_that_is_counted_with(groups, k):
    for copies in range(4):
        rows = np.concatenate([np.eye(groups, dtype=bool), np.ones((copies, groups), dtype=bool)])
        expected = min(groups - k, copies + max(0, groups - 2 * k))
        assert (inspect(Code(rows), k).margin[k - 1] or 0) == expected
    copies = min(k, groups - k)
    code = Code(np.concatenate([np.eye(groups, dtype=bool), np.ones((copies, groups), dtype=bool)]))
    votes, labels = err(code, 40)
    votes[:, groups:] = votes[:, groups : groups + 1]  # copies of one head say the same
    told = count_with_everybody(votes[:, :groups], votes[:, groups], labels, (k,))[str(k)]
    nearest = NearestDecoder(code, k, told["errors"], 3)
    held = certify(votes, code, threat="deterministic", decoder=nearest, max_attackers=k)
    assert 0 < told["count"] <= ((held.labels == 0) & (held.radius >= k)).sum()
