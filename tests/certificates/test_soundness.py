"""No certificate is ever broken: every attacker set and every vote change on small codes, decoder by decoder."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward.certificates import certify
from codeward.codes import Code
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder


def changes(votes, hit, threat, n_classes):
    """Every vote vector an attack with hit models ``hit`` can produce, by the definition of the threat model."""
    spots = np.flatnonzero(hit)
    if threat == "deterministic":
        choices = [(t,) * spots.size for t in range(n_classes)]
    else:
        choices = product(range(n_classes), repeat=spots.size)
    for said in choices:
        changed = votes.copy()
        changed[spots] = said
        yield changed


def true_radius(votes, code, predict, threat, n_classes, limit):
    """Largest k <= limit with no change by <= k users, by trying everything."""
    label = predict(votes[None])[0]
    if label < 0:
        return 0
    for k in range(1, limit + 1):
        for attackers in combinations(range(code.n_users), k):
            hit = code.matrix[:, attackers].any(axis=1)
            if (predict(np.array(list(changes(votes, hit, threat, n_classes)))) != label).any():
                return k - 1
    return limit


def find_fault(certificate, votes, code, predict, threat, n_classes, limit):
    """Judge a certificate function (votes -> label, radius); None, or what is wrong with it."""
    label, radius = certificate(votes)
    if label != predict(votes[None])[0]:
        return "wrong label"
    truth = true_radius(votes, code, predict, threat, n_classes, limit)
    if radius > truth:
        return f"unsound: claims {radius}, the truth is {truth}"
    return None if radius == truth else f"loose: claims {radius}, the truth is {truth}"


@st.composite
def cases(draw, max_models=5, max_classes=3):
    m, n, c = draw(st.integers(1, max_models)), draw(st.integers(1, 4)), draw(st.integers(2, max_classes))
    bits = draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=m, max_size=m))
    matrix = np.array(bits)
    # A code has no empty row and no zero column: fill the diagonal of what is missing.
    matrix[np.flatnonzero(~matrix.any(axis=1)), np.flatnonzero(~matrix.any(axis=1)) % n] = True
    matrix[np.flatnonzero(~matrix.any(axis=0)) % m, np.flatnonzero(~matrix.any(axis=0))] = True
    votes = np.array(draw(st.lists(st.integers(0, c - 1), min_size=m, max_size=m)))
    return Code(matrix), votes, c


def check(certificates, votes, code, predict, threat, n_classes):
    """Exact, tight, and with a witness that does what it says."""
    limit = code.n_users
    certificate = lambda _: (certificates.labels[0], certificates.radius[0])  # noqa: E731
    assert find_fault(certificate, votes, code, predict, threat, n_classes, limit) is None
    assert certificates.exact[0]
    witness = certificates.witness(0)
    if witness is None:
        assert certificates.labels[0] < 0 or certificates.radius[0] == limit
        return
    assert len(witness.attackers) == certificates.radius[0] + 1
    overwritten = np.where(code.pattern(witness.attackers), witness.target, votes)
    assert predict(overwritten[None])[0] != certificates.labels[0]
    assert certificates.reason(0)


@pytest.mark.parametrize("threat", ["arbitrary", "deterministic"])
@pytest.mark.parametrize("method", ["patterns", "milp"])
@settings(max_examples=600, deadline=None)
@given(case=cases())
def test_plurality_radius_is_the_truth_against_every_attack(threat, method, case):
    code, votes, c = case
    result = certify(votes[None], code, threat=threat, method=method)
    check(result, votes, code, PluralityDecoder().predict, threat, c)


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_the_bound_alone_is_never_above_the_truth(case):
    code, votes, c = case
    result = certify(votes[None], code, method="bound")
    truth = true_radius(votes, code, PluralityDecoder().predict, "arbitrary", c, code.n_users)
    assert result.radius[0] <= truth
    assert not result.exact[0] or result.radius[0] == truth


@pytest.mark.parametrize("threat", ["arbitrary", "deterministic"])
@settings(max_examples=600, deadline=None)
@given(case=cases(), tolerated=st.integers(0, 2), errors=st.integers(0, 1))
def test_consensus_radius_is_the_truth_against_every_attack(threat, case, tolerated, errors):
    code, votes, c = case
    decoder = ConsensusDecoder(code, tolerated, errors, n_classes=c)
    check(certify(votes[None], code, threat=threat, decoder=decoder), votes, code, decoder.predict, threat, c)


@settings(max_examples=150, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32 - 1), diagonal=st.floats(0.0, 20.0))
def test_bayes_radius_is_the_truth_against_every_deterministic_attack(case, seed, diagonal):
    code, votes, c = case
    raw = np.random.default_rng(seed).random((code.n_models, c, c)) + 0.05 + diagonal * np.eye(c)
    decoder = BayesDecoder(code, raw / raw.sum(axis=2, keepdims=True))
    result = certify(votes[None], code, threat="deterministic", decoder=decoder, max_attackers=code.n_users)
    check(result, votes, code, decoder.predict, "deterministic", c)


def sound_reference(votes, code, wins=lambda rival, label: rival < label, sets_of=lambda k: range(1, k + 1)):
    """A plain plurality certificate with its two delicate parts open to be broken."""
    label = int(np.bincount(votes).argmax())
    for k in range(1, code.n_users + 1):
        for size in sets_of(k):
            for attackers in combinations(range(code.n_users), size):
                hit = code.matrix[:, attackers].any(axis=1)
                for rival in range(3):
                    if rival == label:
                        continue
                    counts = np.bincount(np.where(hit, rival, votes), minlength=3)
                    tied = counts[rival] == counts[label] and wins(rival, label)
                    if counts[rival] > counts[label] or tied:
                        return label, k - 1
    return label, code.n_users


def broken_tie_break(votes, code):
    return sound_reference(votes, code, wins=lambda rival, label: False)


def off_by_one(votes, code):
    label, radius = sound_reference(votes, code)
    return label, radius + 1


def only_single_users(votes, code):
    return sound_reference(votes, code, sets_of=lambda k: [1])


def missing_empty_set(votes, code):
    # Counts down from "k users break it" without knowing that no users break nothing: -1 where the truth is 0.
    label, radius = sound_reference(votes, code)
    return label, radius if radius else -1


def consensus_without_empty_set(votes, code):
    # The empty attacker set explains unanimous votes; leaving it out loses the verdict of the real decoder.
    explained = [
        label
        for label in range(3)
        if any(not (votes != label)[~code.matrix[:, j]].any() and (votes != label).any() for j in range(code.n_users))
    ]
    return (explained[0], 1) if len(explained) == 1 else (-1, 0)


FIXED = Code(np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]]))


def faults_of(certificate, predict, n_cases=60):
    rng = np.random.default_rng(7)
    drawn = [np.zeros(6, dtype=int), *np.where(rng.random((n_cases, 6)) < 0.7, 1, rng.integers(0, 3, (n_cases, 6)))]
    found = [find_fault(lambda y: certificate(y, FIXED), y, FIXED, predict, "arbitrary", 3, 4) for y in drawn]
    return [fault for fault in found if fault]


def test_the_harness_passes_a_sound_certificate():
    assert faults_of(sound_reference, PluralityDecoder().predict) == []


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (broken_tie_break, "unsound"),
        (off_by_one, "unsound"),
        (only_single_users, "unsound"),
        (missing_empty_set, "loose"),
    ],
)
def test_the_harness_catches_known_bad_plurality_certificates(bad, kind):
    assert any(fault.startswith(kind) for fault in faults_of(bad, PluralityDecoder().predict))


def test_the_harness_catches_a_consensus_certificate_that_forgets_the_empty_set():
    decoder = ConsensusDecoder(FIXED, 1, n_classes=3)
    assert "wrong label" in faults_of(consensus_without_empty_set, decoder.predict)


def every_radius(code, every, labels):
    """True radii under arbitrary of all c^m vote vectors at once: those equal outside the hit models share a label."""
    radius = np.full(len(every), code.n_users)
    for k in range(code.n_users, 0, -1):
        for attackers in combinations(range(code.n_users), k):
            kept = ~code.matrix[:, attackers].any(axis=1)
            _, group = np.unique(every[:, kept], axis=0, return_inverse=True)
            least, most = np.full(len(every), 99), np.full(len(every), -99)
            np.minimum.at(least, group.ravel(), labels)
            np.maximum.at(most, group.ravel(), labels)
            radius[(least < most)[group.ravel()]] = k - 1
    return np.where(labels < 0, 0, radius)


@pytest.mark.parametrize(("n_classes", "m"), [(2, 6), (3, 4), (3, 5), (3, 6), (4, 5)])
def test_every_vote_vector_of_many_codes_has_its_true_radius(n_classes, m):
    rng = np.random.default_rng(n_classes)
    every = np.array(list(product(range(n_classes), repeat=m)))
    for _ in range(20):
        n = int(rng.integers(2, 5))
        matrix = rng.random((m, n)) < rng.choice([0.0, 0.2, 0.4, 0.6])
        matrix[np.arange(m), np.arange(m) % n] = True
        code = Code(matrix[rng.permutation(m)])
        consensus = ConsensusDecoder(code, 1, int(rng.integers(0, 2)), n_classes=n_classes)
        for decoder in (PluralityDecoder(), consensus):
            result = certify(every, code, decoder=decoder)
            np.testing.assert_array_equal(result.radius, every_radius(code, every, result.labels))


def test_a_smaller_label_that_nobody_voted_for_can_win_a_tie():
    # One user reaches a model that says 1 and the only one that says 2: label 0 ties 1 and wins, label 2 cannot.
    code = Code([[1, 0], [0, 1], [0, 1], [1, 0]])
    result = certify([[1, 1, 1, 2]], code)
    assert result.witness(0).target == 0
    assert result.witness(0).attackers == (0,)
