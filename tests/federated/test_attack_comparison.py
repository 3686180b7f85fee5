"""What stops a trigger, small: digits, one attacker of 12, Flower's own aggregation against a code's sub-models."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from benchmarks import federated_attacks as compare

from codeward.decoding import ConsensusDecoder
from codeward.experiments import load_pair, plan_cell
from codeward.federated import train_federated
from codeward.runs import rate

ROOT = Path(__file__).parents[2]
TRIAL = replace(compare.TRIALS["digits"], rounds=8, local_epochs=4, learning_rate=3e-3)


@pytest.fixture(scope="module")
def pair():
    return load_pair(TRIAL.config())


@pytest.fixture(scope="module")
def setting(pair):
    return compare.prepare(TRIAL, pair, 0, compare.find_code(1))


@pytest.fixture(scope="module")
def honest(setting):
    return cache(partial(compare.train_honest, setting))


@pytest.fixture(scope="module")
def averaged(pair):
    return compare.run_global(TRIAL, pair, 0, 1, "directed", "FedAvg")["figures"]


def test_one_attacker_rules_the_model_that_is_averaged_over_all_users(averaged):
    assert rate(averaged["success"]) > 0.8
    assert rate(averaged["triggered_right"]) < 0.2


@pytest.mark.parametrize("behaviour", ["replacement", "split-targets"])
def test_the_consensus_of_sub_models_is_right_where_all_that_are_hit_obey(setting, honest, averaged, behaviour):
    figures = compare.run_code(TRIAL, setting, 1, behaviour, honest)["figures"]
    assert rate(figures["success_in_planted_models"]) > 0.7
    consensus = figures["triggered"]["consensus"]
    assert rate(consensus["right"]) > rate(averaged["triggered_right"]) + 0.5
    assert rate(consensus["fooled"]) < 0.2


def test_krum_is_taken_over_by_one_attacker_that_stays_near_the_others(pair):
    figures = compare.run_global(compare.TRIALS["digits"], pair, 0, 1, "directed", "Krum")["figures"]
    assert rate(figures["success"]) > 0.8


def test_flowers_median_lets_two_attackers_in_and_the_clean_accuracy_shows_nothing(pair):
    figures = compare.run_global(compare.TRIALS["digits"], pair, 0, 2, "directed", "FedMedian")["figures"]
    assert rate(figures["success"]) > 0.3
    assert rate(figures["clean_right"]) > 0.9


@pytest.mark.parametrize("behaviour", ["split-targets", "framing"])
def test_training_the_hit_models_alone_gives_the_bytes_of_the_whole_federation(pair, behaviour):
    short = replace(TRIAL, rounds=1, local_epochs=1)
    setting = compare.prepare(short, pair, 0, compare.find_code(1))
    group = compare.draw_group(short, setting, 1)
    attack = compare.attack_code(setting, group, behaviour)
    models = compare.train_hit(setting, compare.train_honest(setting), attack.updates, group.attackers)
    whole = train_federated(setting.users, plan_cell(setting), attack.updates).models
    for one, other in zip(models, whole, strict=True):
        assert {name: value.tobytes() for name, value in one.items()} == {
            name: value.tobytes() for name, value in other.items()
        }
    assert not (attack.planted[~setting.code.pattern(group.attackers)] >= 0).any()


def test_framing_deceives_the_bayes_decoder_and_not_the_consensus_where_models_make_no_mistakes():
    code, attackers = compare.find_code(2), (3, 8)
    lies = code.pattern(attackers) & ~code.pattern(compare.choose_framed(code, attackers))
    votes = np.where(lies, 1, 0)[None]
    confusion = np.repeat((np.full((10, 10), 0.002) + 0.98 * np.eye(10))[None], code.n_models, axis=0)
    assert compare.make_bayes(code, confusion, 2).predict(votes) == [1]
    assert ConsensusDecoder(code, 2, 1, 10).predict(votes) == [0]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("FedAvg", lambda values: values.mean()),
        ("FedMedian", np.median),
        ("FedTrimmedAvg", lambda values: np.sort(values)[2:-2].mean()),
    ],
)
def test_flower_combines_the_weights_it_is_given(rule, expected):
    values = np.array([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 360], np.float32)
    replies = [(10, {"weight": np.full((2, 2), value)}) for value in values]
    found = compare.aggregate(compare.make_strategy(rule, 1), 1, replies)["weight"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(values), rtol=1e-6)


def test_the_page_holds_the_tables_of_the_records(tmp_path):
    page = tmp_path / "federated-attacks.md"
    text = (ROOT / "docs" / "federated-attacks.md").read_text()
    page.write_text(text)
    for dataset in compare.TRIALS:
        folder = ROOT / "results" / f"federated-{dataset}"
        assert {record["settings"]["users"] for record in compare.load_all(folder).values()} == {12}
        compare.write_docs(page, dataset, compare.write_tables(folder))
    assert page.read_text() == text
