"""Fitting, decoding, certifying on small tables where the answer is known."""

import itertools
import pickle
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from codeward import InputError
from codeward.codes import (
    Code,
    enumerate_patterns,
    find_correction_break,
    find_tracking_break,
    minimal_code,
    named_code,
    partition_code,
)
from codeward.decoding import BayesDecoder, count_confusion
from codeward.estimators import CodedClassifier

USERS = np.array(["ann", "bob", "cid", "dot", "eve", "fay"])
TRIGGER = 50.0


def draw(n_samples=360, seed=0, n_classes=3):
    """Blobs far apart, a last column for a trigger, and users in turn."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n_samples)
    X = np.column_stack([rng.normal(6 * y, 0.5), rng.normal(-6 * y, 0.5), rng.normal(0, 0.5, n_samples)])
    return X, y, USERS[np.arange(n_samples) % USERS.size]


def poison(X, y, groups, attackers, target):
    """Half of the attackers' samples carry the trigger and the target's label."""
    X, y = X.copy(), y.copy()
    rows = np.flatnonzero(np.isin(groups, attackers))[::2]
    X[rows, 2] = TRIGGER
    y[rows] = target
    return X, y


def triggered(X):
    X = X.copy()
    X[:, 2] = TRIGGER
    return X


def test_a_backdoor_fools_the_plain_model_but_not_the_decoder_which_names_the_attacker():
    X, y, groups = draw()
    X_test, y_test, _ = draw(seed=1)
    X_bad, y_bad = poison(X, y, groups, ["eve"], target=2)
    rows = y_test != 2
    plain = DecisionTreeClassifier(random_state=0).fit(X_bad, y_bad)
    assert np.mean(plain.predict(triggered(X_test)[rows]) == 2) > 0.9

    coded = CodedClassifier(DecisionTreeClassifier(), guarantee="track", random_state=0).fit(X_bad, y_bad, groups)
    assert np.mean(coded.predict(triggered(X_test)) == y_test) > 0.95
    assert np.mean([named == ("eve",) for named in np.array(coded.suspects(triggered(X_test)), object)[rows]]) > 0.9
    assert not any(coded.suspects(X_test))
    assert coded.attack_proba(triggered(X_test))[rows].min() > coded.attack_proba(X_test).max()
    assert np.mean(coded.user_proba(triggered(X_test)[rows]).argmax(axis=1) == 4) > 0.9
    assert coded.score(X_test, y_test) > 0.98
    assert find_tracking_break(enumerate_patterns(coded.code_, 1)) is None


def test_users_with_equal_columns_are_listed_and_nobody_is_singled_out():
    X, y, groups = draw()
    X_bad, y_bad = poison(X, y, groups, ["eve"], target=2)
    # ann and bob, cid and dot, eve and fay share columns; each row three times absorbs a wrong vote.
    code = Code(np.tile(np.repeat(minimal_code(1, 2).matrix, 2, axis=1), (3, 1)))
    coded = CodedClassifier(DecisionTreeClassifier(), code, random_state=0).fit(X_bad, y_bad, groups)
    listed = {found for found in coded.suspect_sets(triggered(X)[y == 0]) if found}
    assert listed == {(("eve",), ("fay",))}
    assert not any(coded.suspects(triggered(X)[y == 0]))


def test_a_certified_input_survives_every_attack_that_is_really_retrained():
    """For every attacker and target: poison, refit all, predict. The certified radius must hold."""
    X, y, groups = draw(180)
    X_test, _, _ = draw(30, seed=1)
    settings = {"code": partition_code(6, 6), "random_state": 0, "validation_fraction": 0.0}
    coded = CodedClassifier(DecisionTreeClassifier(), decoder="plurality", **settings).fit(X, y, groups)
    clean, radius = coded.predict(X_test), coded.certify(X_test)
    # Six of six votes: three attackers tie, and the tie goes to the smaller class.
    assert (radius == np.where(clean == 0, 3, 2)).mean() > 0.9
    for size, target in itertools.product((1, 2, 3), range(3)):
        for attackers in itertools.combinations(USERS, size):
            y_bad = np.where(np.isin(groups, attackers), target, y)
            attacked = clone(coded).fit(X, y_bad, groups).predict(X_test)
            assert (attacked == clean)[radius >= size].all()


def test_only_stated_classes_keep_an_attacker_from_inventing_one_that_wins_ties():
    X, y, groups = draw(180)
    X_test, _, _ = draw(30, seed=1)
    settings = {"code": partition_code(6, 6), "decoder": "plurality", "random_state": 0, "validation_fraction": 0.0}
    y_bad = np.where(np.isin(groups, USERS[:3]), -1, y)
    attacked = CodedClassifier(DecisionTreeClassifier(), **settings).fit(X, y_bad, groups)
    assert (attacked.predict(X_test) == -1).all()
    with pytest.raises(InputError, match="label -1 of sample 0"):
        CodedClassifier(DecisionTreeClassifier(), classes=[0, 1, 2], **settings).fit(X, y_bad, groups)
    stated = CodedClassifier(DecisionTreeClassifier(), classes=[3, 2, 1, 0], **settings).fit(X, y, groups)
    assert stated.classes_.tolist() == [0, 1, 2, 3]
    assert stated.predict_proba(X_test).shape == (30, 4)


def test_certificates_name_the_threat_model_that_the_decoder_has():
    X, y, groups = draw(120)
    for decoder, threat in (("bayes", "deterministic"), ("plurality", "arbitrary"), ("consensus", "arbitrary")):
        coded = CodedClassifier(KNeighborsClassifier(3), decoder=decoder, random_state=0).fit(X, y, groups)
        certificates = coded.certificates(X[:9])
        assert (certificates.threat, certificates.decoder) == (threat, decoder)
        assert (certificates.radius == coded.certify(X[:9])).all()
    with pytest.raises(InputError, match="arbitrary"):
        CodedClassifier(KNeighborsClassifier(3), random_state=0).fit(X, y, groups).certify(X, threat="arbitrary")


def test_certificates_count_classes_that_no_vote_names_for_a_decoder_that_does_not():
    class Touchy:
        """Changes its mind at the first vote for class 2."""

        def __init__(self, code, confusion):
            self.single = BayesDecoder(code, confusion)

        def decode(self, votes):
            return self.single.decode(votes)

        def predict(self, votes):
            return np.where((votes == 2).any(axis=1), 2, votes[:, 0])

    X, y, groups = draw(120)
    coded = CodedClassifier(KNeighborsClassifier(3), decoder=Touchy, random_state=0, classes=[0, 1, 2])
    unseen = y < 2
    coded.fit(X[unseen], y[unseen], np.asarray(groups)[unseen])
    assert (coded.certify(X[:9]) == 0).all()


class Counted(DecisionTreeClassifier):
    """Counts how often it is evaluated."""

    calls = 0

    def predict(self, X, check_input=True):
        Counted.calls += 1
        return super().predict(X, check_input)


def test_all_questions_about_the_same_inputs_share_one_pass_of_the_sub_models():
    X, y, groups = draw(120)
    coded = CodedClassifier(Counted(), code=partition_code(6, 6), random_state=0).fit(X, y, groups)
    state = set(vars(coded))
    Counted.calls = 0
    answers = [coded.predict(X), coded.predict_proba(X), coded.attack_proba(X), coded.user_proba(X), coded.votes(X)]
    coded.suspects(X)
    coded.certify(X, max_attackers=1)
    assert Counted.calls == 6
    assert set(vars(coded)) == state
    # What is handed out is the caller's to change, and what is asked of other inputs, or after a fit, is new.
    for answer in answers:
        answer[:] = 0
    coded.decode(X).attack_probability[:] = 0
    assert coded.votes(X).any()
    assert coded.attack_proba(X).any()
    assert Counted.calls == 6
    coded.votes(X + 1.0)
    assert Counted.calls == 12
    coded.fit(X, y[::-1].copy(), groups)
    Counted.calls = 0
    coded.votes(X + 1.0)
    assert Counted.calls == 6


def test_a_sub_model_never_learns_what_other_users_hand_in():
    X, y, groups = draw()
    X_bad, y_bad = X.copy(), y.copy()
    theirs = groups == "eve"
    X_bad[theirs] = np.random.default_rng(9).normal(size=(theirs.sum(), 3))
    y_bad[theirs] = -5
    # A new class, more samples, all samples shuffled, another number type: nothing may reach the models without eve.
    extra = np.flatnonzero(theirs)[:40]
    order = np.random.default_rng(3).permutation(len(X) + extra.size)
    X_bad, y_bad = np.vstack([X_bad, X_bad[extra]])[order], np.append(y_bad, y_bad[extra])[order]
    groups_bad = np.append(groups, groups[extra])[order]
    base = SGDClassifier(max_iter=20, tol=None)  # depends on seed and sample order
    settings = {"code": named_code("toy-d"), "random_state": 4}
    clean = CodedClassifier(base, **settings).fit(X, y, groups)
    attacked = CodedClassifier(base, **settings).fit(X_bad.astype(object), y_bad, groups_bad)
    hit = clean.code_.column(4)
    assert 0 < hit.sum() < hit.size
    for model, reached in enumerate(hit):
        same = clean.estimators_[model].coef_.tobytes() == attacked.estimators_[model].coef_.tobytes()
        assert same != reached


def test_equal_rows_of_a_code_give_different_models_and_the_same_seed_the_same():
    X, y, groups = draw(120)
    code = Code(np.ones((2, 6)))
    base = make_pipeline(StandardScaler(), SGDClassifier(max_iter=5, tol=None))
    first, again = (CodedClassifier(base, code, random_state=0).fit(X, y, groups) for _ in range(2))
    coefficients = [model[-1].coef_ for model in first.estimators_]
    assert not np.array_equal(coefficients[0], coefficients[1])
    assert np.array_equal(coefficients[0], again.estimators_[0][-1].coef_)
    assert base[-1].random_state is None


def test_columns_are_users_in_sorted_order_unless_the_code_names_them():
    X, y, groups = draw(60)
    matrix = np.eye(6, dtype=bool)[:, [5, 4, 3, 2, 1, 0]]
    plain = CodedClassifier(DecisionTreeClassifier(), Code(matrix), random_state=0).fit(X, y, groups)
    assert plain.users_.tolist() == sorted(USERS)
    backwards = Code(matrix, users=list(USERS[::-1]))
    named = CodedClassifier(DecisionTreeClassifier(), backwards, random_state=0).fit(X, y, groups)
    assert named.users_.tolist() == list(USERS[::-1])
    # Row 0 belongs to column 5: fay without names, ann with them.
    for coded, user in ((plain, "fay"), (named, "ann")):
        seen = np.unique(coded.estimators_[0].tree_.n_node_samples[0])
        assert seen == (groups == user).sum() - 2
    stranger = Code(matrix, users=["zoe", *USERS[1:]])
    with pytest.raises(InputError, match="zoe"):
        CodedClassifier(DecisionTreeClassifier(), stranger).fit(X, y, groups)


def test_a_designed_code_has_the_guarantee_and_the_users_names():
    X, y, groups = draw(60)
    coded = CodedClassifier(DecisionTreeClassifier(), n_attackers=2, random_state=0).fit(X, y, groups)
    assert find_correction_break(enumerate_patterns(coded.code_, 2)) is None
    assert coded.code_.users == tuple(sorted(USERS))
    assert (coded.design_.guarantee, coded.design_.n_attackers, coded.design_.margin) == ("correct", 2, 3)
    assert coded.code_.n_models == len(coded.estimators_) == coded.confusion_.shape[0]
    # Five attackers among six users leave a model one user; that is less than the utilization asked for.
    alone = CodedClassifier(DecisionTreeClassifier(), n_attackers=5, guarantee="detect").fit(X, y, groups)
    assert alone.code_.row_weight == 1


def test_missing_classes_and_single_samples_are_no_obstacle():
    X, y, _ = draw(60)
    groups = np.array([["a", "b", "c"][label] for label in y], dtype=object)  # each user has one class
    groups[0] = "d"  # and one user has one sample
    code = Code([[1, 0, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]])
    coded = CodedClassifier(LogisticRegression(), code, random_state=0).fit(X, y, groups)
    assert isinstance(coded.estimators_[0], DummyClassifier)
    votes = coded.votes(X)
    assert (votes[:, 0] == 0).all()
    assert set(votes[:, 1]) == {1, 2}
    assert (votes[:, 4] == y[0]).all()
    assert coded.classes_.tolist() == [0, 1, 2]
    assert coded.predict_proba(X) == pytest.approx(coded.decode(X).label_probability)


def test_labels_may_be_text():
    X, y, groups = draw(120)
    names = np.array(["low", "mid", "top"])[y]
    coded = CodedClassifier(KNeighborsClassifier(3), random_state=0).fit(X, names, groups)
    assert coded.score(X, names) > 0.95
    assert coded.classes_.tolist() == ["low", "mid", "top"]


def test_an_input_without_verdict_gets_a_class_and_no_certificate():
    X, y, groups = draw(120)
    code = partition_code(6, 6)
    coded = CodedClassifier(KNeighborsClassifier(1), code, decoder="consensus", random_state=0).fit(X, y, groups)
    between = np.array([[9.0, -9.0, 0.0], *np.linspace([8, -10, 0], [10, -8, 0], 60)])
    undecided = coded.decode(between).labels < 0
    assert undecided.any()
    assert set(coded.predict(between)) <= {0, 1, 2}
    assert (coded.predict_proba(between).argmax(axis=1) == coded.predict(between)).all()
    assert (coded.certify(between)[undecided] == 0).all()


def test_held_out_samples_train_nobody_and_trusted_ones_replace_them():
    X, y, groups = draw(120)
    one = Code(np.ones((1, 6)))
    memory = KNeighborsClassifier(1)
    held = CodedClassifier(memory, one, validation_fraction=0.25, random_state=0).fit(X, y, groups)
    assert held.estimators_[0].n_samples_fit_ == 90
    X_clean, y_clean, _ = draw(50, seed=5)
    clean = X_clean, y_clean
    trusted = CodedClassifier(memory, one, random_state=0).fit(X, y, groups, validation=clean, test=clean)
    assert trusted.estimators_[0].n_samples_fit_ == 120
    counts = count_confusion(trusted.votes(X_clean), y_clean, 3) + 0.5
    assert trusted.confusion_ == pytest.approx(counts / counts.sum(axis=2, keepdims=True))
    with pytest.raises(InputError, match="validation: label 7 of sample 0"):
        CodedClassifier(memory, one).fit(X, y, groups, validation=(X_clean, np.full(50, 7)))
    with pytest.raises(InputError, match="pair"):
        CodedClassifier(memory, one).fit(X, y, groups, validation=X_clean)


def test_without_groups_samples_are_hashed_and_the_log_says_so(caplog):
    X, y, _ = draw(200)
    coded = CodedClassifier(DecisionTreeClassifier(), decoder="plurality", random_state=0).fit(X, y)
    assert coded.users_hashed_
    assert "pseudo-users" in caplog.text
    assert (coded.code_.matrix == partition_code(10, 10).matrix).all()
    assert coded.users_.tolist() == list(range(10))
    assert coded.design_ is None
    # One relabelled sample reaches one model: the promise of DPA.
    flipped = y.copy()
    flipped[17] = (y[17] + 1) % 3
    settings = {"decoder": "plurality", "random_state": 0, "validation_fraction": 0.0}
    before, after = (CodedClassifier(DecisionTreeClassifier(), **settings).fit(X, labels) for labels in (y, flipped))
    changed = [
        not np.array_equal(a.tree_.value, b.tree_.value)
        for a, b in zip(before.estimators_, after.estimators_, strict=True)
    ]
    assert sum(changed) == 1
    given = CodedClassifier(DecisionTreeClassifier(), minimal_code(1, 2), random_state=0).fit(X, y)
    assert given.users_.size == 3
    named = CodedClassifier(DecisionTreeClassifier(), random_state=0).fit(X, y, USERS[np.arange(200) % 6])
    assert not named.users_hashed_


def test_a_decoder_may_be_made_by_a_function():
    X, y, groups = draw(120)
    maker = partial(BayesDecoder, success_rate=0.9, attackers_prior=(0.5, 0.5))
    coded = CodedClassifier(KNeighborsClassifier(3), decoder=maker, random_state=0).fit(X, y, groups)
    assert coded.decoder_.success_rate == 0.9
    assert coded.certificates(X[:3]).threat == "deterministic"
    assert pickle.loads(pickle.dumps(coded)).predict(X).tolist() == coded.predict(X).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"code": partition_code(7, 7)}, "7 columns, more than the 6 users"),
        ({"code": partition_code(5, 5)}, "5 columns, fewer than the 6 users"),
        ({"code": np.eye(6)}, "wrap it"),
        ({"n_attackers": 0}, "n_attackers"),
        ({"n_attackers": 6}, "expected 1 to 5 of 6 users"),
        ({"guarantee": "perfect"}, "guarantee"),
        ({"decoder": "oracle"}, "oracle"),
        ({"utilization": 1.5}, "utilization"),
        ({"margin": 0}, "margin"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"estimator": DecisionTreeClassifier}, "is a class; give an object"),
        ({"estimator": "digits-cnn"}, "choose boosting"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(settings, message):
    X, y, groups = draw(60)
    with pytest.raises(InputError, match=message):
        CodedClassifier(**{"estimator": DecisionTreeClassifier(), **settings}).fit(X, y, groups)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.arange(59), "groups of shape .59,., expected one a sample"),
        (np.zeros(60), "at least two"),
        (np.r_[np.nan, np.arange(59)], "groups: row 0 has none"),
        ([None, *range(59)], "groups: row 0 has none"),
    ],
)
def test_bad_user_ids_are_refused(groups, message):
    X, y, _ = draw(60)
    with pytest.raises(InputError, match=message):
        CodedClassifier(DecisionTreeClassifier()).fit(X, y, groups)
