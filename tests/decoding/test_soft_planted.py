from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB

from codeward._errors import InputError
from codeward.codes import enumerate_patterns, named_code
from codeward.data import split_dirichlet
from codeward.decoding.soft import DiscountedDecoder, SoftDecoder, find_planted
from codeward.reproduction import PackedSetting

RESULTS = Path(__file__).parents[2] / "results"
CODE = named_code("btc2412")
EVEN = np.full((12, 4), 100)


def make_votes(seed, n_inputs=300, errors=0.05):
    """Models that err one by one, and half of the time all on the same tenth of the inputs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n_inputs)
    rates = np.where(rng.random(n_inputs) < 0.1, 0.5, errors)[:, None]
    wrong = rng.random((n_inputs, CODE.n_models)) < rates
    return np.where(wrong, rng.integers(0, 4, wrong.shape), labels[:, None]), labels


def plant(votes, labels, attackers, target, rows):
    """Stamp some validation inputs and label them with the target; free models say the old label."""
    votes, labels = votes.copy(), labels.copy()
    votes[np.ix_(rows, np.flatnonzero(CODE.pattern(attackers)))] = target
    labels[rows] = target
    return votes, labels


@given(st.integers(0, 10_000), st.sampled_from([(3,), (0, 5), (2, 11)]), st.integers(0, 3), st.integers(20, 40))
def test_planted_inputs_are_found_with_who_planted_them(seed, attackers, target, count):
    votes, labels = make_votes(seed, errors=0.03)
    rows = np.flatnonzero(labels != target)[:count]
    found = find_planted(*plant(votes, labels, attackers, target, rows), CODE, 2, EVEN, 4)
    assert [one.target for one in found] == [target]
    assert attackers in found[0].users
    # Those on which at most one model errs; hardly a clean input goes with them.
    hit = CODE.pattern(attackers)
    says = plant(votes, labels, attackers, target, rows)[0][rows] == target
    near = (says != hit).sum(axis=1) <= 1
    assert set(rows[near]) <= set(found[0].rows)
    assert len(set(found[0].rows) - set(rows)) <= 4


@given(st.integers(0, 10_000), st.floats(0, 0.25))
def test_nothing_is_found_among_clean_inputs(seed, errors):
    assert find_planted(*make_votes(seed, errors=errors), CODE, 2, EVEN, 4) == ()


def test_a_class_that_few_users_hold_is_not_taken_for_planted():
    votes, labels = make_votes(0)
    rows = np.flatnonzero(labels == 1)
    holders = CODE.pattern((0, 5))
    votes[np.ix_(rows, np.flatnonzero(~holders))] = 2  # models without the holders have not seen class 1
    held = EVEN.copy()
    held[:, 1] = 0
    held[[0, 5], 1] = 600
    assert find_planted(votes, labels, CODE, 2, held, 4) == ()
    assert find_planted(votes, labels, CODE, 2, EVEN, 4)  # had all seen it, they would be


def test_what_hit_models_learned_from_is_not_asked():
    # Attackers hand in class counts, too: they could say that they hold nothing.
    votes, labels = make_votes(0)
    rows = np.flatnonzero(labels != 1)[:20]
    lying = EVEN.copy()
    lying[CODE.matrix[CODE.pattern((0, 5))].any(axis=0) & ~CODE.matrix[~CODE.pattern((0, 5))].any(axis=0), 1] = 0
    [found] = find_planted(*plant(votes, labels, (0, 5), 1, rows), CODE, 2, lying, 4)
    assert (0, 5) in found.users


def test_models_that_are_seldom_right_accuse_nobody():
    votes, labels = make_votes(0)
    rng = np.random.default_rng(1)
    weak = rng.random(votes.shape) < 0.7
    votes = np.where(weak, rng.integers(0, 4, votes.shape), votes)
    rows = np.flatnonzero(labels != 1)[:20]
    assert find_planted(*plant(votes, labels, (0, 5), 1, rows), CODE, 2, EVEN, 4) == ()


def make_fit(kind, counts):
    return SoftDecoder(CODE, class_counts=counts, n_simulated=2000) if kind == "soft" else DiscountedDecoder(
        CODE, 4, class_counts=counts, n_simulated=2000
    )  # fmt: skip


def score(votes):
    """Log-probabilities of models that are sure of their vote, more or less."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(*votes.shape, 4)) + 4.0 * (votes[:, :, None] == np.arange(4))
    logits[np.arange(4) == votes[:, :, None]] += 2.0
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=2, keepdims=True)))


@pytest.mark.parametrize("kind", ["soft", "discounted"])
def test_a_fit_on_planted_inputs_is_the_fit_without_them(kind):
    votes, labels = make_votes(3)
    rows = np.flatnonzero(labels != 1)[:30]
    planted, said = plant(votes, labels, (0, 5), 1, rows)
    triggered, truth = plant(*make_votes(4), (0, 5), 1, np.arange(300))[0], make_votes(4)[1]

    def heard(votes):
        return score(votes) if kind == "soft" else votes

    judged = make_fit(kind, EVEN).fit(heard(planted), said)
    [found] = judged.planted_
    assert (0, 5) in found.users
    kept = np.setdiff1d(np.arange(300), found.rows)
    before = make_fit(kind, EVEN).fit(heard(planted)[kept], said[kept])
    assert before.planted_ == ()
    assert np.array_equal(judged.decode(heard(triggered)).label_probability,
                          before.decode(heard(triggered)).label_probability)  # fmt: skip
    others = truth != 1
    right = (judged.predict(heard(triggered)) == truth)[others].mean()
    assert right > 0.9
    # Where it is not known who holds what, nothing is left out.
    trusting = make_fit(kind, None).fit(heard(planted), said)
    assert trusting.planted_ == ()
    assert (trusting.predict(heard(triggered)) == truth)[others].mean() <= right


@pytest.mark.parametrize("counts", [np.full((12, 3), 9), np.full((11, 4), 9), np.full((12, 4), -1), np.full(12, 9)])
def test_class_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(InputError, match="class_counts"):
        find_planted(*make_votes(0), CODE, 2, counts, 4)


def test_attackers_who_spoil_a_class_do_not_make_others_look_guilty():
    # Code h16: models without users (0, 1) are nearly a pattern; who attacks with it spoils clean inputs of class 1.
    code = named_code("h16")
    patterns = enumerate_patterns(code, 2).bits
    off = (~patterns[:, None] != patterns[None]).sum(axis=2)
    [blamed, guilty] = np.argwhere((off <= 1) & (patterns.sum(axis=1) >= 3)[:, None])[0]
    counts = np.full((code.n_users, 4), 100)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    votes = np.tile(labels[:, None], code.n_models)
    votes[np.ix_(np.flatnonzero(labels == 1), np.flatnonzero(~patterns[blamed]))] = 2
    assert patterns[guilty][~patterns[blamed]].mean() > 0.8
    assert find_planted(votes, labels, code, 2, counts, 4) == ()


@pytest.mark.parametrize("name", ["btc2412", "c"])
def test_on_codes_with_a_label_margin_nobody_can_be_blamed_so(name):
    code = named_code(name)
    patterns = enumerate_patterns(code, 2).bits
    patterns = patterns[patterns.any(axis=1)]
    assert (~patterns[:, None] != patterns[None]).sum(axis=2).min() > 1


def test_votes_and_labels_that_do_not_fit_are_refused():
    votes, labels = make_votes(0)
    for bad in (votes[:, :-1], votes + 4, votes.astype(float) + 0.5):
        with pytest.raises(InputError, match="votes"):
            find_planted(bad, labels, CODE, 2, EVEN, 4)
    with pytest.raises(InputError, match="labels"):
        find_planted(votes, labels[:-1], CODE, 2, EVEN, 4)
    with pytest.raises(InputError, match="attackers_prior"):
        find_planted(votes, labels, CODE, 0, EVEN, 4)


def test_a_class_that_is_hard_in_all_degrees_is_not_taken_for_planted(monkeypatch):
    # The harder an input of class 1, the more of the models without users 0 and 5 err.
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 800)
    votes = np.tile(labels[:, None], CODE.n_models)
    hard = (labels == 1)[:, None] & ~CODE.pattern((0, 5)) & (rng.random(votes.shape) < rng.random((800, 1)))
    votes[hard] = 2
    assert find_planted(votes, labels, CODE, 2, EVEN, 4) == ()
    monkeypatch.setitem(find_planted.__globals__, "STANDING_OUT", 0)
    [found] = find_planted(votes, labels, CODE, 2, EVEN, 4)
    assert found.target == 1


def test_where_others_stand_alone_too_nothing_is_planted(monkeypatch):
    # Users 0 and 5 are alone with some inputs of class 1, users 3 and 7 with some of class 2.
    votes, labels = make_votes(0, n_inputs=600, errors=0)
    for users, label, other in (((0, 5), 1, 3), ((3, 7), 2, 0)):
        rows = np.flatnonzero((labels == label) & (votes == labels[:, None]).all(axis=1))[:20]
        votes[np.ix_(rows, np.flatnonzero(~CODE.pattern(users)))] = other
    assert find_planted(votes, labels, CODE, 2, EVEN, 4) == ()
    monkeypatch.setitem(find_planted.__globals__, "ALONE", 1)
    assert [one.target for one in find_planted(votes, labels, CODE, 2, EVEN, 4)] == [1, 2]


def test_inputs_of_one_class_are_left_out_and_nobody_is_named():
    votes, labels = make_votes(0, errors=0.03)
    [one] = find_planted(*plant(votes, labels, (0, 5), 1, np.flatnonzero(labels == 2)[:25]), CODE, 2, EVEN, 4)
    assert one.rows.size >= 15
    assert one.users == ()
    [several] = find_planted(*plant(votes, labels, (0, 5), 1, np.flatnonzero(labels != 1)[:25]), CODE, 2, EVEN, 4)
    assert (0, 5) in several.users


def test_with_two_classes_nothing_is_found():
    votes, labels = make_votes(0, errors=0.03)
    votes, labels = plant(votes % 2, labels % 2, (0, 5), 1, np.flatnonzero(labels % 2 != 1)[:30])
    assert find_planted(votes, labels, CODE, 2, EVEN[:, :2], 2) == ()
    assert find_planted(votes, labels, CODE, 2, EVEN[:, :3], 3) == ()  # a third class, of which there is no input
    votes, labels = (np.concatenate([old, np.full_like(old[:50], 2)]) for old in (votes, labels))
    assert find_planted(votes, labels, CODE, 2, EVEN[:, :3], 3)


@pytest.mark.parametrize(("n_inputs", "count", "found"), [(400, 7, 0), (400, 8, 1), (100, 4, 0), (100, 5, 1)])
def test_few_inputs_are_not_taken_for_planted(n_inputs, count, found):
    votes, labels = make_votes(0, n_inputs=n_inputs, errors=0)
    votes[:] = labels[:, None]
    rows = np.flatnonzero(labels != 1)[:count]
    assert len(find_planted(*plant(votes, labels, (0, 5), 1, rows), CODE, 2, EVEN, 4)) == found


def test_three_models_outside_are_too_few_to_accuse(monkeypatch):
    code = named_code("d")
    labels = np.arange(400) % 4
    votes = np.tile(labels[:, None], code.n_models)
    rows = np.flatnonzero(labels != 1)[:40]
    votes[np.ix_(rows, np.flatnonzero(code.pattern((0,))))] = 1
    labels[rows] = 1
    assert find_planted(votes, labels, code, 2, EVEN, 4) == ()
    monkeypatch.setitem(find_planted.__globals__, "LEAST_MODELS", 3)
    assert find_planted(votes, labels, code, 2, EVEN, 4)


def test_a_pattern_among_many_of_its_size_is_chance():
    # As many models know other inputs of the class, but no few users feed just these.
    labels = np.arange(400) % 4
    votes = np.tile(labels[:, None], CODE.n_models)
    hit, rows = CODE.pattern((0, 5)), np.flatnonzero(labels == 1)
    rng = np.random.default_rng(0)
    for row in rows[:30]:
        votes[row, ~rng.permutation(hit)] = rng.choice([0, 2, 3])
    votes[np.ix_(rows[30:42], np.flatnonzero(~hit))] = np.array([0, 2, 3] * 4)[:, None]
    assert find_planted(votes, labels, CODE, 2, EVEN, 4) == ()
    assert find_planted(np.delete(votes, rows[:30], axis=0), np.delete(labels, rows[:30]), CODE, 2, EVEN, 4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("alpha", [None, 1.0])
def test_nothing_is_found_among_honest_users_of_weak_models(seed, alpha):
    # Naive Bayes on digits, 12 users: right on four fifths.
    rng = np.random.default_rng(seed)
    data = load_digits()
    given, order = data.data / 16, rng.permutation(len(data.target))
    judged, learned = order[:600], order[600:]
    parts = (
        np.array_split(learned, 12)
        if alpha is None
        else [learned[part] for part in split_dirichlet(data.target[learned], 12, alpha, rng)]
    )
    counts = [np.bincount(data.target[part], minlength=10) for part in parts]
    for name in ("btc2412", "c", "d", "e"):
        code = named_code(name)
        trained = [np.concatenate([parts[user] for user in np.flatnonzero(row)]) for row in code.matrix]
        models = [GaussianNB(var_smoothing=1e-3).fit(given[rows], data.target[rows]) for rows in trained]
        votes = np.stack([model.predict(given[judged]) for model in models], axis=1)
        assert find_planted(votes, data.target[judged], code, 3, counts, 10) == ()


def test_nothing_is_found_in_kept_ensembles_on_very_uneven_data(monkeypatch):
    # CIFAR-10, alpha = 0.1: in the first draw code d's users 0, 4 and 8 hold nearly all cats.
    kept = PackedSetting(RESULTS / "cifar10-alpha0.1-modern")

    def find(run, repeat, n_attackers=0):
        cell = f"votes/repeat{repeat}-attackers{n_attackers}"
        given = kept.load_votes(f"{run}/{cell}-validation.npz")
        counts = kept.read_json(f"btc2412/{cell}.json")["class_counts"]  # the same users in every run
        return find_planted(given.votes, given.labels, kept.load_code(run), 3, counts, 10)

    assert all(find(run, repeat, 3 * (repeat % 2)) == () for run in ("btc2412", "c", "d", "e") for repeat in range(5))
    for name, value in (("STANDING_OUT", 0), ("ALONE", 0), ("LEAST_MODELS", 3), ("LEAST_SHARE", 0.01)):
        monkeypatch.setitem(find_planted.__globals__, name, value)
    [found] = find("d", 0)
    assert (found.rows.size, found.target) == (156, 3)  # so they were taken for planted before
