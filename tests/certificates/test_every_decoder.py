"""Every public decoder has sound certificates, or a reason to have none: found by looking, so none can be forgotten.

Small random codes, uneven confusion matrices and votes that leave classes out; every attack is tried.
"""

import inspect
from itertools import combinations, permutations, product

import numpy as np
import pytest

import codeward.decoding
import codeward.decoding.soft
from codeward._errors import InputError
from codeward.certificates import certify, certify_agreement, certify_collective
from codeward.codes import Code
from codeward.decoding import (
    AppealDecoder,
    BayesDecoder,
    ConsensusDecoder,
    NearestDecoder,
    PluralityDecoder,
    RunOffDecoder,
    TwoGroupDecoder,
    VerdictMemory,
)
from codeward.decoding.soft import DiscountedDecoder

N_CLASSES = 3


def draw_confusion(code, rng):
    """Rows of any shape: some models are sure of a class, some never say another, some are worse than chance."""
    raw = rng.dirichlet(np.full(N_CLASSES, rng.choice([0.3, 1.0])), (code.n_models, N_CLASSES))
    raw += rng.choice([0.0, 0.5, 5.0]) * np.eye(N_CLASSES) + 0.001
    return raw / raw.sum(axis=2, keepdims=True)


def draw_bayes(code, rng):
    settings = {"attack_rate": rng.uniform(0.05, 0.95), "success_rate": rng.choice([0.6, 0.99, 1.0])}
    prior = rng.dirichlet(np.ones(int(rng.integers(2, code.n_users + 2))))
    return BayesDecoder(
        code, draw_confusion(code, rng), attackers_prior=prior, method=rng.choice(["exact", "pruned"]), **settings
    )


def draw_two_groups(code, rng):
    rates = {"second_rate": rng.choice([0.01, 0.5]), "second_success_rate": rng.choice([0.5, 0.9])}
    return TwoGroupDecoder(code, draw_confusion(code, rng), attackers_prior=(0.5, 0.5), **rates)


def draw_discounted(code, rng):
    truth = rng.integers(0, N_CLASSES, 60)
    said = rng.integers(0, N_CLASSES, (60, code.n_models))
    votes = np.where(rng.random(said.shape) < rng.uniform(0.5, 0.95, code.n_models), truth[:, None], said)
    settings = {"attackers_prior": (0.5, 0.5), "n_simulated": 60, "seed": int(rng.integers(99))}
    return DiscountedDecoder(code, N_CLASSES, **settings).fit(votes, truth)


#: How to draw a decoder of each public class.
DRAW = {
    "PluralityDecoder": lambda code, rng: PluralityDecoder(code, rng.choice([None, N_CLASSES])),
    "ConsensusDecoder": lambda code, rng: ConsensusDecoder(
        code, int(rng.integers(0, 3)), int(rng.integers(0, 2)), rng.choice([None, N_CLASSES])
    ),
    "BayesDecoder": draw_bayes,
    "AppealDecoder": lambda code, rng: AppealDecoder(
        code, int(rng.integers(1, code.n_models)), int(rng.integers(0, 4)), N_CLASSES
    ),
    "NearestDecoder": lambda code, rng: NearestDecoder(
        code, int(rng.integers(0, 3)), int(rng.integers(0, 2)), N_CLASSES, n_rivals=int(rng.integers(0, 4))
    ),
    "RunOffDecoder": lambda code, rng: RunOffDecoder(code, rng.choice([None, N_CLASSES])),
    "TwoGroupDecoder": draw_two_groups,
    "DiscountedDecoder": draw_discounted,
    "VerdictMemory": lambda code, rng: VerdictMemory(draw_bayes(code, rng)),
}
#: Public decoders without a certificate, and why.
UNCERTIFIED = {"SoftDecoder": "reads scores; what k users can make scores of is not bounded by a vote certificate"}
#: Public decoders whose radius is proved for hit models that say anything.
ARBITRARY = {"PluralityDecoder", "ConsensusDecoder", "RunOffDecoder", "AppealDecoder"}
#: Those that read scores: hit models may rank the classes in any way.
SCORES = {"RunOffDecoder"}


def public_decoders():
    """Every public class of the package that decodes, protocols aside."""
    modules = (codeward.decoding, codeward.decoding.soft)
    found = {name: getattr(module, name) for module in modules for name in module.__all__}
    return {
        name
        for name, value in found.items()
        if inspect.isclass(value) and hasattr(value, "predict") and not getattr(value, "_is_protocol", False)
    }


def test_no_public_decoder_is_forgotten():
    assert public_decoders() == DRAW.keys() | UNCERTIFIED.keys()
    assert not DRAW.keys() & UNCERTIFIED.keys()


class Stranger:
    """A decoder of somebody else: ``predict``, and what it says of itself."""

    def __init__(self, decoder, **says):
        self.predict = decoder.predict
        self.__dict__.update(says)


def draw_case(seed, n_inputs=3):
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    matrix = rng.random((m, n)) < rng.choice([0.2, 0.5])
    matrix[np.arange(m), np.arange(m) % n] = True
    matrix[np.arange(n) % m, np.arange(n)] = True
    # Some inputs have votes for one or two classes only.
    some = [rng.choice(N_CLASSES, int(rng.integers(1, N_CLASSES + 1)), replace=False) for _ in range(n_inputs)]
    return Code(matrix), np.array([rng.choice(labels, m) for labels in some]), rng


def draw_cases(name, count, n_inputs=3):
    """Draw ``count`` cases with a decoder; a slow class gets a quarter, and codes that it fits."""
    slow = name == "DiscountedDecoder"
    for seed in range(count // 4 if slow else count):
        code, votes, rng = draw_case(seed, n_inputs)
        if (slow and code.matrix.all(axis=0).any()) or (name == "AppealDecoder" and code.n_models < 2):
            continue
        observed = votes if name not in SCORES else draw_scores(votes, rng)
        yield code, observed, DRAW[name](code, rng), rng


def draw_scores(votes, rng):
    """Scores with these votes; others often tie."""
    scores = rng.integers(0, 3, (*votes.shape, N_CLASSES)).astype(float)
    np.put_along_axis(scores, votes[..., None], 4, axis=2)
    return scores


def after_attack(votes, hit, threat):
    """Everything that an attack with hit models ``hit`` can make of one input, by the definition of its threat."""
    spots = np.flatnonzero(hit)
    if votes.ndim == 2:  # scores: only the order of the classes matters, and ties are broken like some strict order
        changed = np.array([votes] * 6**spots.size)
        orders = list(product(permutations(range(N_CLASSES)), repeat=spots.size))
        changed[:, spots] = np.reshape(orders, (len(orders), spots.size, N_CLASSES))
        return changed
    choices = (
        [(t,) * spots.size for t in range(N_CLASSES)]
        if threat == "deterministic"
        else product(range(N_CLASSES), repeat=spots.size)
    )
    changed = np.array([np.array(votes)] * (N_CLASSES if threat == "deterministic" else N_CLASSES**spots.size))
    changed[:, spots] = list(choices)
    return changed


def break_table(votes, code, predict, threat):
    """For every attacker set by growing size: which of the inputs it can change."""
    labels = predict(votes)
    table = []
    for k in range(code.n_users + 1):
        for users in combinations(range(code.n_users), k):
            hit = code.matrix[:, list(users)].any(axis=1)
            # The last column is "no verdict".
            made = np.array([np.isin([*range(N_CLASSES), -1], predict(after_attack(y, hit, threat))) for y in votes])
            table.append(
                (users, (made & ([*range(N_CLASSES), -1] != labels[:, None])).any(axis=1) & (labels >= 0), made)
            )
    return labels, table


def true_radii(labels, table, n_users):
    return np.array(
        [
            0 if label < 0 else min((len(users) - 1 for users, broken, _ in table if broken[i]), default=n_users)
            for i, label in enumerate(labels)
        ]
    )


def true_radii_to(table, n_inputs, n_users):
    """Fewest users that make each label, less one; -1 where nobody is needed, n where all are not enough."""
    return np.array(
        [
            [min((len(users) - 1 for users, _, made in table if made[i, t]), default=n_users) for t in range(N_CLASSES)]
            for i in range(n_inputs)
        ]
    )


def replay(code, observed, witness):
    """The votes or scores of one input under the attack that a witness describes."""
    hit = code.pattern(witness.attackers)
    if witness.opponent is None:
        return np.where(hit, witness.target, observed)
    said = np.full(hit.sum(), witness.target)
    said[: witness.n_opponent] = witness.opponent
    changed = observed.copy()
    changed[hit] = 9 * np.eye(N_CLASSES)[said]
    return changed


def threats_of(name):
    if name in SCORES:
        return ["arbitrary"]
    return ["deterministic", "arbitrary"] if name in ARBITRARY else ["deterministic"]


CASES = [(name, threat) for name in DRAW for threat in threats_of(name)]


@pytest.mark.parametrize(("name", "threat"), CASES)
def test_pointwise_and_collective_certificates_are_the_truth(name, threat):
    for code, votes, decoder, rng in draw_cases(name, 40):
        labels, table = break_table(votes, code, decoder.predict, threat)
        truth = true_radii(labels, table, code.n_users)
        request = {"threat": threat, "decoder": decoder, "n_classes": N_CLASSES}
        found = certify(votes, code, max_attackers=code.n_users, targets=True, **request)
        np.testing.assert_array_equal(found.radius_to, true_radii_to(table, len(votes), code.n_users))
        np.testing.assert_array_equal(found.labels, labels)
        np.testing.assert_array_equal(found.radius, truth)
        assert found.exact.all()
        for i in range(len(votes)):
            witness = found.witness(i)
            assert (witness is None) == (labels[i] < 0 or truth[i] == code.n_users)
            if witness is not None:
                overwritten = replay(code, votes[i], witness)
                if name == "AppealDecoder" and threat == "arbitrary":
                    # The witness says who and to what; the votes that do it are among all of theirs.
                    every = after_attack(votes[i], code.pattern(witness.attackers), threat)
                    overwritten = every[decoder.predict(every) == witness.target][0]
                assert len(witness.attackers) == truth[i] + 1
                assert decoder.predict(overwritten[None])[0] != labels[i]
        # A search that stops early claims less, and does not call it exact.
        early = certify(votes, code, max_attackers=1, **request)
        assert (early.radius <= truth).all()
        assert (early.radius[early.exact] == truth[early.exact]).all()
        # All inputs at once: the same users, each input in its own way.
        k = int(rng.integers(1, code.n_users + 1))
        most = max(int(broken.sum()) for users, broken, _ in table if len(users) <= k)
        at_once = certify_collective(votes, code, k, **request)
        assert (at_once.changed, at_once.exact) == (most, True)
        assert at_once.pointwise == ((labels >= 0) & (truth < k)).sum()


@pytest.mark.parametrize(("name", "threat"), [case for case in CASES if case[0] not in SCORES])
def test_agreement_is_the_truth(name, threat):
    for code, _, decoder, _ in draw_cases(name, 20):
        votes = np.repeat(np.arange(N_CLASSES)[:, None], code.n_models, axis=1)
        labels, table = break_table(votes, code, decoder.predict, threat)
        truth = np.where(labels == np.arange(N_CLASSES), true_radii(labels, table, code.n_users), 0).min()
        found = certify_agreement(code, decoder, N_CLASSES, threat=threat, max_attackers=code.n_users)
        assert found.n_attackers == truth


@pytest.mark.parametrize("name", sorted(DRAW.keys() - SCORES))
def test_a_stranger_with_the_same_verdicts_has_the_same_radii(name):
    for code, votes, decoder, _ in draw_cases(name, 16):
        request = {"threat": "deterministic", "max_attackers": code.n_users}
        own = certify(votes, code, decoder=decoder, n_classes=N_CLASSES, **request)
        told = certify(votes, code, decoder=Stranger(decoder, n_classes=N_CLASSES), **request)
        np.testing.assert_array_equal(own.radius, told.radius)
        np.testing.assert_array_equal(own.exact, told.exact)
        # One that lies by omission, and one under a threat model for which nothing is proved of it.
        for threat, words in (("deterministic", "n_classes"), ("arbitrary", "under arbitrary")):
            for ask in (certify, lambda *a, **b: certify_collective(*a, 1, **b)):
                with pytest.raises(InputError, match=words):
                    ask(votes, code, decoder=Stranger(decoder), threat=threat)


@pytest.mark.parametrize("name", sorted(DRAW.keys() - ARBITRARY))
def test_no_certificate_under_arbitrary_where_none_is_proved(name):
    code, votes, decoder, _ = next(draw_cases(name, 40))
    for ask in (certify, lambda *a, **b: certify_collective(*a, 1, **b)):
        with pytest.raises(InputError, match="no certificate"):
            ask(votes, code, decoder=decoder, threat="arbitrary", n_classes=N_CLASSES)


def test_the_harness_catches_a_certificate_that_tries_only_the_classes_it_has_seen():
    """Known bad: a decoder that says fewer classes than it decodes, so that unseen ones are no targets."""
    caught = 0
    for code, votes, decoder, _ in draw_cases("TwoGroupDecoder", 60, n_inputs=1):
        seen = max(2, int(votes.max()) + 1)
        if seen == N_CLASSES:
            continue
        labels, table = break_table(votes, code, decoder.predict, "deterministic")
        liar = Stranger(decoder, n_classes=seen)
        try:
            found = certify(votes, code, threat="deterministic", decoder=liar, max_attackers=code.n_users)
        except InputError:  # an answer beyond its classes gave it away
            continue
        caught += bool((found.radius > true_radii(labels, table, code.n_users)).any())
    assert caught


@pytest.mark.parametrize("name", UNCERTIFIED)
def test_decoders_of_scores_are_refused(name):
    code = Code([[1, 0], [0, 1]])
    decoder = getattr(codeward.decoding.soft, name)(code)
    assert decoder.needs == "scores"
    with pytest.raises(InputError, match="scores"):
        certify([[0, 0]], code, threat="deterministic", decoder=decoder, n_classes=2)
