"""The decoder for two groups, against its formula written out and on votes of real models."""

from itertools import combinations, product
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError, TooLargeError
from codeward.cli import main
from codeward.codes import Code, named_code
from codeward.decoding import BayesDecoder, TwoGroupDecoder, _two_groups, estimate_confusion, save_votes
from codeward.decoding._posterior_kernels import sum_pairs
from codeward.reproduction import PackedSetting

RESULTS = Path(__file__).parents[2] / "results" / "mnist-iid-two-groups"


def write_out(code, confusion, votes, rate, success, prior, second, second_success):
    """Sum the joint probability over (x, t, x', t', l) as the docstring has it, for one vote vector."""
    n_models, n_users = code.matrix.shape
    n_classes = confusion.shape[1]
    sets = [x for k in range(len(prior)) for x in combinations(range(n_users), k)]
    weight = {x: prior[len(x)] / comb(n_users, len(x)) for x in sets}
    some = sum(prior[1:])
    labels, users, targets = np.zeros(n_classes), np.zeros(n_users), np.zeros(n_classes)
    hit = {x: code.matrix[:, list(x)].any(axis=1) for x in sets}

    def likelihood(x, t, other, aim, label):
        total = 1.0
        for i in range(n_models):
            clean = confusion[i, label, votes[i]]
            if hit[x][i]:
                total *= success * (votes[i] == t) + (1 - success) * clean
            elif other is not None and hit[other][i]:
                total *= second_success * (votes[i] == aim) + (1 - second_success) * clean
            else:
                total *= clean
        return total

    clean = np.array([np.prod([confusion[i, label, votes[i]] for i in range(n_models)]) for label in range(n_classes)])
    for x, t, label in product(sets, range(n_classes), range(n_classes)):
        pieces = [(None, (1 - second) * likelihood(x, t, None, None, label))]
        for other, aim in product([s for s in sets if s], range(n_classes)):
            if aim != t:
                share = second * weight[other] / some / (n_classes - 1)
                pieces.append((other, share * likelihood(x, t, other, aim, label)))
        for other, piece in pieces:
            mass = weight[x] * piece
            labels[label] += mass
            targets[t] += mass
            users[list({*x, *(other or ())})] += mass
    attacked, calm = rate * labels, (1 - rate) * n_classes * clean
    whole = attacked + calm
    return whole / whole.sum(), attacked.sum() / whole.sum(), users / labels.sum(), targets / targets.sum()


@given(
    seed=st.integers(0, 2**32 - 1),
    prior=st.sampled_from([(0.25, 0.5, 0.25), (0.0, 1.0), (0.5, 0.5, 0.0)]),
    rates=st.tuples(*[st.sampled_from([0.1, 0.5, 0.9])] * 4),
    n_classes=st.integers(2, 4),
)
@settings(max_examples=25, deadline=None)
def test_it_is_its_formula(seed, prior, rates, n_classes):
    rng = np.random.default_rng(seed)
    matrix = rng.random((4, 3)) < 0.5
    matrix[0] |= ~matrix.any(axis=0)
    matrix[:, 0] |= ~matrix.any(axis=1)
    code = Code(matrix)
    confusion = rng.dirichlet(np.ones(n_classes), (4, n_classes))
    votes = rng.integers(0, n_classes, (3, 4))
    rate, success, second, second_success = rates
    found = TwoGroupDecoder(code, confusion, rate, success, prior, second, second_success).decode(votes)
    for row, vote in enumerate(votes):
        labels, attack, users, targets = write_out(code, confusion, vote, rate, success, prior, second, second_success)
        np.testing.assert_allclose(found.label_probability[row], labels, rtol=1e-9)
        np.testing.assert_allclose(found.attack_probability[row], attack, rtol=1e-9)
        np.testing.assert_allclose(found.user_probability[row], users, rtol=1e-9, atol=1e-12)
        assert targets[found.targets[row]] >= targets.max() * (1 - 1e-9)


@given(seed=st.integers(0, 2**32 - 1), n_models=st.integers(1, 20), rates=st.tuples(*[st.floats(0.01, 0.99)] * 2))
@settings(max_examples=30, deadline=None)
def test_sums_by_logarithms_and_without_are_the_same(seed, n_models, rates):
    rng = np.random.default_rng(seed)
    matrix = rng.random((n_models, 7)) < 0.5
    matrix[0] |= ~matrix.any(axis=0)
    matrix[:, 0] |= ~matrix.any(axis=1)
    confusion = rng.dirichlet(np.full(4, 0.3), (n_models, 4)).clip(1e-6)
    confusion /= confusion.sum(axis=2, keepdims=True)
    votes = rng.integers(0, 4, (5, n_models))
    decoder = TwoGroupDecoder(Code(matrix), confusion, 0.5, rates[0], (0.25, 0.5, 0.25), 0.3, rates[1])
    with pytest.MonkeyPatch.context() as patch:
        called = []
        patch.setattr(_two_groups, "sum_pairs", lambda *given: (called.append(1), sum_pairs(*given)))
        plain = decoder.decode(votes)
        assert called
        patch.setattr(_two_groups, "_RANGE", 0.0)
        called.clear()
        logs = decoder.decode(votes)
        assert not called
    for name in ("attack_probability", "label_probability", "user_probability"):
        np.testing.assert_allclose(getattr(plain, name), getattr(logs, name), rtol=1e-9, atol=1e-12)
    assert (plain.targets == logs.targets).all()
    assert list(plain.best_set) == list(logs.best_set)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_without_a_second_group_it_is_the_papers_decoder(seed):
    rng = np.random.default_rng(seed)
    code = named_code("d")
    confusion = rng.dirichlet(np.ones(3), (6, 3))
    votes = rng.integers(0, 3, (40, 6))
    one, two = BayesDecoder(code, confusion), TwoGroupDecoder(code, confusion, second_rate=0)
    wanted, found = one.decode(votes), two.decode(votes)
    for name in ("attack_probability", "label_probability", "user_probability"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-9, atol=1e-12)
    assert (found.labels == wanted.labels).all()
    assert (found.targets == wanted.targets).all()
    assert list(found.best_set) == list(wanted.best_set)
    assert (two.predict(votes) == found.labels).all()


def test_two_targets_on_one_input_are_told_apart_and_both_groups_are_named():
    code = named_code("a")
    confusion = np.full((12, 10, 10), 0.001) + np.eye(10) * 0.99
    votes = np.full((1, 12), 7)
    votes[0, [2, 5, 6]], votes[0, [8, 9]] = 1, 4
    found = TwoGroupDecoder(code, confusion).decode(votes)
    assert found.labels.tolist() == [7]
    assert found.targets.tolist() == [1]
    assert set(found.best_set[0]) == {2, 5, 6, 8, 9}
    assert found.user_probability[0, [2, 5, 6, 8, 9]].min() > 0.9


def test_real_models_of_two_groups_of_two_are_decoded_where_one_group_is_not_enough():
    packed = PackedSetting(RESULTS)
    code, known = packed.load_code("c"), packed.load_votes("c/votes/repeat0-attackers2-validation.npz")
    confusion = estimate_confusion(known.votes, known.labels, 10)
    files = [name for name in packed.list_files("c/votes") if "attackers2-triggered" in name]
    assert len(files) == 2
    for file in files:
        given = packed.load_votes(file)
        votes, labels = given.votes[:400], given.labels[:400]
        assert (BayesDecoder(code, confusion).predict(votes) == labels).mean() < 0.65
        assert (TwoGroupDecoder(code, confusion).predict(votes) == labels).mean() > 0.95


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"second_rate": 1.5}, InputError, "second_rate must be in 0..1"),
        ({"second_success_rate": -0.1}, InputError, "second_success_rate must be in 0..1"),
        ({"attackers_prior": (1.0,)}, InputError, "a second group has a user at least"),
        ({"attackers_prior": [1 / 7] * 7}, TooLargeError, "pairs of hit patterns"),
    ],
)
def test_what_cannot_be_decoded_is_refused_with_a_reason(options, error, words):
    code = Code(np.eye(12, dtype=bool))
    confusion = np.full((12, 2, 2), 0.5)
    with pytest.raises(error, match=words):
        TwoGroupDecoder(code, confusion, **options).decode(np.zeros((1, 12), dtype=int))


def test_many_users_are_refused_before_their_sets_are_listed():
    code = Code(np.ones((2, 1000), dtype=bool))
    with pytest.raises(TooLargeError, match="166,667,501 attacker sets"):
        TwoGroupDecoder(code, np.full((2, 2, 2), 0.5)).decode(np.zeros((1, 2), dtype=int))


def test_certain_success_and_more_models_than_a_word_has_bits_are_summed_by_logarithms():
    rng = np.random.default_rng(0)
    matrix = rng.random((70, 5)) < 0.5
    matrix[:, 0] |= ~matrix.any(axis=1)
    confusion = np.full((70, 3, 3), 0.05) + np.eye(3) * 0.85
    votes = np.where(matrix[:, 1], 2, 0)[None]
    found = TwoGroupDecoder(Code(matrix), confusion, success_rate=1.0).decode(votes)
    assert found.labels.tolist() == [0]
    assert found.targets.tolist() == [2]
    assert found.best_set[0] == (1,)
    assert np.isfinite(found.label_probability).all()


def test_one_class_is_refused():
    with pytest.raises(InputError, match="two classes"):
        TwoGroupDecoder(Code(np.eye(2, dtype=bool)), np.ones((2, 1, 1))).predict(np.zeros((1, 2), dtype=int))


def test_the_command_decodes_two_groups(tmp_path, capsys):
    code = named_code("a")
    code.save(tmp_path / "code.json")
    votes = np.full((4, 12), 7)
    votes[:, [2, 5]], votes[:, [8, 9]] = 1, 4
    save_votes(tmp_path / "votes.npz", votes)
    arguments = ["decode", str(tmp_path / "votes.npz"), "--code", str(tmp_path / "code.json"), "--decoder", "groups"]
    assert main([*arguments, "--accuracy", "0.9", "--classes", "10", "-o", str(tmp_path / "verdicts.csv")]) == 0
    assert "groups" in capsys.readouterr().out
    first = (tmp_path / "verdicts.csv").read_text().splitlines()[1]
    assert first.split(",")[0] == "7"
    assert main([*arguments, "--accuracy", "0.9", "--second-rate", "2"]) == 2
