"""Statistics as messages of users who may be attackers."""

import numpy as np
import pytest

from codeward import InputError
from codeward.codes import Code
from codeward.training.heads import (
    StatisticsSet,
    check_statistics,
    fit_heads,
    gather_statistics,
    pack_statistics,
    unpack_statistics,
)

D, C = 12, 3


def draw(size=80, n_users=4, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, D))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features, rng.integers(0, C, size), np.arange(size) % n_users


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("weight", [None, (1, 2, 5)])
def test_one_round_of_messages_gives_the_pooled_heads(rows, weight):
    features, labels, users = draw()
    code = Code([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
    statistics = gather_statistics(features, labels, users, C, class_weight=weight)
    received = [unpack_statistics(pack_statistics(user, rows), D, C, class_weight=weight) for user in statistics.users]
    form = "auto" if rows else "primal"
    pooled = fit_heads(features, labels, users, code, C, form=form, class_weight=weight)
    federated = fit_heads(StatisticsSet(tuple(received)), None, None, code, C, form=form)
    assert pooled.weights.tobytes() == federated.weights.tobytes()


def test_honest_statistics_pass_however_few_or_many():
    for size in (1, 2, 5, 40, 4000):
        features, labels, _ = draw(size)
        check_statistics(gather_statistics(features, labels, np.zeros(size, int), C).users[0])


def message():
    features, labels, users = draw()
    return pack_statistics(gather_statistics(features, labels, users, C).users[0])


def damage(name, change):
    told = message()
    told[name] = change(told[name].copy())
    return told


def put(array, place, value):
    array.ravel()[place] = value
    return array


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (damage("gram", lambda a: put(a, 3, np.nan)), "gram holds NaN"),
        (damage("sums", lambda a: put(a, 3, np.inf)), "sums holds NaN or infinity"),
        (damage("gram", lambda a: put(a, 3, a[3] + 0.5)), "gram is not on the grid"),
        (damage("sums", lambda a: put(a, 3, 0.25)), "sums is not on the grid"),
        (damage("gram", lambda a: a * 3), "trace"),
        (damage("gram", lambda a: -a), "not positive semidefinite"),
        (damage("sums", lambda a: a * 40), "not positive semidefinite"),
        (damage("sums", lambda a: a + 4096.0 * 20), "not positive semidefinite"),
        (damage("counts", lambda a: put(a, 0, -1)), "a count is below 0"),
        (damage("counts", lambda a: put(a, 0, 2**62)), "a count is below 0 or above"),
        (damage("counts", lambda a: a * 0), "0 samples; expected 1"),
        (damage("counts", lambda a: np.roll(put(a, 0, 0), 0)), "trace|not positive semidefinite"),
        (damage("counts", lambda a: a.astype(np.float64)), "expected int64"),
        (damage("gram", lambda a: a[:-1]), r"shape \(77,\), expected \(78,\)"),
        (damage("gram", lambda a: a.astype(np.float32)), "expected float64"),
        (damage("sums", lambda a: a.T.copy()), "shape"),
        ({}, "expected gram, sums and counts"),
        ({**message(), "more": np.zeros(1)}, "expected gram, sums and counts"),
        ({"steps": np.full((2, D), 4096, np.int16), "labels": np.zeros(2, np.int64)}, "norm above one"),
        ({"steps": np.zeros((2, D), np.int16), "labels": np.full(2, 9, np.int64)}, "a label is not 0..2"),
        ({"steps": np.zeros((0, D), np.int16), "labels": np.zeros(0, np.int64)}, "0 samples"),
        ({"steps": [[0]], "labels": np.zeros(1, np.int64)}, "expected int16"),
    ],
)
def test_what_no_samples_could_have_is_refused_in_one_line(told, says):
    with pytest.raises(InputError, match=says) as caught:
        unpack_statistics(told, D, C, sender="user 7")
    assert str(caught.value).startswith("user 7")
    assert "\n" not in str(caught.value)


def test_more_samples_than_allowed_are_refused():
    with pytest.raises(InputError, match=r"20 samples; expected 1 to 10|above 10"):
        unpack_statistics(message(), D, C, most_samples=10)


def test_one_contribution_may_still_make_hit_models_disagree():
    """Proposition 31: a commitment to one contribution does not make hit models agree."""
    rng = np.random.default_rng(3)
    features, labels, users = draw(300, 3)
    features[users == 2], labels[users == 2] = [1.0] + [0.0] * (D - 1), 0
    small, large = users == 0, users == 1
    keep = ~small | (rng.random(300) < 0.05)
    features[large], labels[large] = np.eye(D)[0] * 0.999 + rng.normal(size=(large.sum(), D)) * 0.01, 1
    weight = large & (np.arange(300) % 2 == 0)
    features, labels, users = (np.concatenate([a[keep], a[weight]]) for a in (features, labels, users))
    heads = fit_heads(features, labels, users, Code([[1, 0, 1], [0, 1, 1]]), C)
    assert len(set(heads.votes(np.eye(D)[:1])[0].tolist())) == 2
