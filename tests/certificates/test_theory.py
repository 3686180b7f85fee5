"""docs/theory.md: its statements about votes by trying everything on small codes, and its references by looking."""

import importlib
import inspect
import re
from itertools import combinations, product
from math import comb
from pathlib import Path

import numpy as np
import pytest

from codeward.certificates import certify
from codeward.codes import (
    Code,
    enumerate_patterns,
    find_correction_break,
    find_margins,
    find_tracking_break,
    partition_code,
    stack_codes,
)
from codeward.decoding import AppealDecoder, ConsensusDecoder

ROOT = Path(__file__).parents[2]
THEORY = (ROOT / "docs" / "theory.md").read_text()
SECTIONS = {
    int(number): body for number, body in re.findall(r"^### (\d+)\. (.*?)(?=^##|\Z)", THEORY, re.DOTALL | re.MULTILINE)
}
STATED = {number: body for number, body in SECTIONS.items() if "<!-- reserved" not in body}
N_CLASSES = 3


def test_propositions_are_numbered_in_order():
    assert list(SECTIONS) == list(range(1, len(SECTIONS) + 1))


def cited(text):
    """Numbers after the word Proposition(s): one, several, or a span."""
    found = set()
    for words in re.findall(r"Propositions? ((?:\d+(?: \([^)]*\))?(?:, | and | to )?)+)", text):
        numbers = [int(number) for number in re.findall(r"\d+", words)]
        found |= set(range(numbers[0], numbers[-1] + 1)) if " to " in words else set(numbers)
    return found


@pytest.mark.parametrize("number", STATED)
def test_every_proposition_names_its_function_and_a_test_that_exist(number):
    body = STATED[number]
    assert "*Proof.*" in body
    functions, tests = re.search(r"\*Function\*:\s(.*?)\.\s\*Test\*:\s(.*?)\.\n", body, re.DOTALL).groups()
    for name in re.findall(r"`([\w.]+)`", functions):
        module, _, attribute = name.rpartition(".")
        function = getattr(importlib.import_module(module), attribute)
        assert callable(function)
        assert number in cited(inspect.getdoc(function))
    for path, name in re.findall(r"`(\S+)::(\w+)`", tests):
        assert f"def {name}(" in (ROOT / path).read_text()


def draw_codes(count=25):
    rng = np.random.default_rng(11)
    for _ in range(count):
        m, n = int(rng.integers(2, 6)), int(rng.integers(2, 5))
        matrix = rng.random((m, n)) < rng.choice([0.2, 0.4])
        matrix[np.arange(m), np.arange(m) % n] = True
        matrix[np.arange(n) % m, np.arange(n)] = True
        if rng.random() < 0.3:
            matrix = np.hstack([matrix, matrix[:, :1]])  # two users who cannot be told apart
        if m < 4 and rng.random() < 0.5:
            matrix = np.repeat(matrix, 4 - m + 1, axis=0)  # larger margins
        yield Code(matrix), int(rng.integers(1, 3))


def attacker_sets(code, k):
    return [x for size in range(k + 1) for x in combinations(range(code.n_users), size)]


def explanations(code, k):
    """Every (attackers, label) with the votes they make, over all targets other than the label."""
    found = []
    for x, t, label in product(attacker_sets(code, k), range(N_CLASSES), range(N_CLASSES)):
        if t != label:
            found.append((x, label, np.where(code.pattern(x), t, label)))
    return found


def gather(pairs):
    groups = {}
    for votes, value in pairs:
        groups.setdefault(tuple(votes), set()).add(value)
    return groups


def test_labels_are_determined_exactly_where_a_code_corrects():
    """Proposition 2."""
    seen = set()
    for code, k in draw_codes():
        groups = gather((votes, label) for _, label, votes in explanations(code, k))
        corrects = find_correction_break(enumerate_patterns(code, k)) is None
        assert corrects == all(len(labels) == 1 for labels in groups.values())
        seen.add(corrects)
    assert seen == {True, False}


def test_attackers_are_determined_exactly_where_a_code_tracks():
    """Proposition 3."""
    seen = set()
    for code, k in draw_codes(60):
        table = enumerate_patterns(code, k)
        if find_correction_break(table) is not None:
            continue
        groups = gather((votes, (label, x)) for x, label, votes in explanations(code, k))
        tracks = find_tracking_break(table) is None
        assert tracks == all(len(found) == 1 for found in groups.values())
        seen.add(tracks)
    assert seen == {True, False}


def within(found, every, errors):
    """Which of ``every`` vote vectors (V, m) each explanation reaches with at most ``errors`` wrong votes, (E, V)."""
    said = np.array([votes for _, _, votes in found])
    return (said[:, None, :] != every[None]).sum(axis=2) <= errors


def test_wrong_votes_are_corrected_up_to_the_margin_and_no_further():
    """Proposition 12."""
    seen = set()
    for code, k in draw_codes():
        every = np.array(list(product(range(N_CLASSES), repeat=code.n_models)))
        found = explanations(code, k)
        labels = np.array([label for _, label, _ in found])
        margin = find_margins(enumerate_patterns(code, k)).label[k - 1]
        seen.add(margin)

        def confused(errors, found=found, every=every, labels=labels):
            near = within(found, every, errors)
            return (sum(near[labels == label].any(axis=0).astype(int) for label in range(N_CLASSES)) > 1).any()

        errors = (margin - 1) // 2
        assert errors < 0 or not confused(errors)
        assert confused(errors + 1)
    assert len(seen) >= 3


def test_attackers_are_named_up_to_the_tracking_margin():
    """Proposition 13."""
    checked = 0
    for code, k in draw_codes(60):
        margins = find_margins(enumerate_patterns(code, k))
        errors = (min(margins.label[k - 1], margins.tracking[k - 1]) - 1) // 2
        if errors < 0:
            continue
        checked += 1
        every = np.array(list(product(range(N_CLASSES), repeat=code.n_models)))
        found = explanations(code, k)
        near = within(found, every, errors)
        for reached in near.T:
            assert len({found[i][:2] for i in np.flatnonzero(reached)}) <= 1
    assert checked >= 5


def test_arbitrary_attacks_leave_the_label_exactly_where_2k_sums_have_enough_zeros():
    """Proposition 14."""
    seen = set()
    for code, k in draw_codes():
        every = np.array(list(product(range(N_CLASSES), repeat=code.n_models)))
        patterns = np.array([code.pattern(x) for x in attacker_sets(code, k)])
        margin = find_margins(enumerate_patterns(code, k)).arbitrary[k - 1]
        for errors in (0, 1):
            # Labels from which each vote vector can arise: some set leaves at most so many wrong votes outside.
            wrong = np.array([(every != label) @ (~patterns).T.astype(int) for label in range(N_CLASSES)])
            possible = (wrong <= errors).any(axis=2)
            determined = bool((possible.sum(axis=0) <= 1).all())
            assert determined == (margin >= 2 * errors + 1)
            seen.add((errors, determined))
            if determined:
                verdict = ConsensusDecoder(code, k, errors, N_CLASSES).predict(every)
                arises = possible.any(axis=0)
                np.testing.assert_array_equal(verdict[arises], possible.argmax(axis=0)[arises])
    assert {(0, True), (0, False), (1, False)} <= seen


def test_no_code_errs_more_than_the_mean_of_its_sums_allows():
    """Proposition 42, and who has as many zeros as it says: all pairs of twelve users."""
    for code, k in draw_codes():
        margin = find_margins(enumerate_patterns(code, k)).arbitrary[k - 1]
        n, r = code.n_users, code.row_weight
        assert margin <= code.n_models * comb(max(0, n - 2 * k), r) / comb(n, r) + 1e-9
    pairs = Code([[int(user in pair) for user in range(12)] for pair in combinations(range(12), 2)])
    margins = find_margins(enumerate_patterns(pairs, 5)).arbitrary
    assert margins == tuple(comb(12 - 2 * k, 2) for k in range(1, 6))
    fewer = Code(pairs.matrix[1:])
    assert find_margins(enumerate_patterns(fewer, 5)).arbitrary[4] == 0


def test_an_appeal_keeps_what_the_partition_certifies_against_more_than_it_asks():
    """Proposition 41."""
    rng = np.random.default_rng(0)
    code = stack_codes(partition_code(9, 9), Code(rng.random((4, 9)) < 0.6))
    for most in (2, 3):
        votes = np.concatenate([rng.integers(0, 5, (150, 13)), rng.choice(5, (150, 13), p=[0.9, 0.1, 0, 0, 0])])
        alone = certify(votes[:, :9], partition_code(9, 9))
        found = certify(votes, code, decoder=AppealDecoder(code, 9, most, 5))
        kept = alone.radius > most
        assert kept.any()
        assert (found.radius >= alone.radius)[kept].all()
        assert (found.labels != alone.labels).any()
        np.testing.assert_array_equal(found.labels[kept], alone.labels[kept])
