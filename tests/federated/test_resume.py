"""A federation goes on after its server was killed, asks a sample of the users, and sums without an order."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward.codes import Code
from codeward.federated import (
    FederatedSettings,
    Federation,
    FederationFolder,
    answer,
    load_samples,
    save_samples,
    train_federated,
    train_update,
)
from codeward.federated._replies import ExactSum

PROGRAM = """
import sys, time
from pathlib import Path
from codeward.federated import FederationFolder, load_samples, train_federated, train_update

folder = Path(sys.argv[1])
users = [load_samples(folder / f"user{user}.npz") for user in range(4)]

def slow(assignment, samples):
    if assignment.round == 2:
        (folder / "second").touch()
        time.sleep(60)
    return train_update(assignment, samples)

place = FederationFolder(folder / "server")
train_federated(users, place.load_plan(), {2: slow}, folder=place)
"""


def test_a_killed_federation_ends_with_the_bytes_of_an_uninterrupted_one(tmp_path, users, plan, honest):
    for user, samples in enumerate(users):
        save_samples(tmp_path / f"user{user}.npz", samples)
    place = FederationFolder(tmp_path / "server")
    place.save_plan(plan)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)])
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "second").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    trained = []

    def count(assignment, samples):
        trained.append((assignment.round, assignment.user))
        return train_update(assignment, samples)

    result = train_federated([load_samples(tmp_path / f"user{user}.npz") for user in range(4)], plan,
                             honest=count, folder=place)  # fmt: skip
    assert trained == [(2, user) for user in range(4)]
    assert result.keys == honest.keys
    assert result.rounds == honest.rounds
    for first, second in zip(result.models, honest.models, strict=True):
        assert list(first) == list(second)
        assert all(first[name].tobytes() == second[name].tobytes() for name in second)


def test_rounds_of_another_plan_and_damaged_ones_are_refused(tmp_path, users, plan):
    def stop(assignment, samples):
        if assignment.round == 2:
            raise KeyboardInterrupt
        return train_update(assignment, samples)

    place = FederationFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_federated(users, plan, {3: stop}, folder=place)
    with pytest.raises(ValueError, match="rounds of another plan"):
        train_federated(users, replace(plan, seed=6), folder=place)
    longer = replace(plan, settings=replace(plan.settings, rounds=3, timeout=5.0))
    assert train_federated(users, longer, folder=place).keys == train_federated(users, longer).keys
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="not a checkpoint of this federation"):
        train_federated(users, longer, folder=place)


def test_a_sample_of_each_column_is_asked_and_another_one_every_round(plan):
    code = Code(np.tile([[1, 0, 1], [0, 1, 1]], 20))
    many = replace(plan, code=code, settings=FederatedSettings(rounds=3, sample=4))
    federation, drawn = Federation(many), []
    for _ in range(3):
        assignments = federation.assign()
        # Users 0, 3, 6, ... share the first column, and so on.
        assert [sum(user % 3 == column for user in assignments) for column in range(3)] == [4, 4, 4]
        with pytest.raises(ValueError, match="was asked nothing"):
            federation.accept(next(user for user in range(60) if user not in assignments), None)
        for user, assignment in list(assignments.items())[1:]:
            federation.accept(user, answer(assignment, 10, assignment.models))
        report = federation.close()
        assert report.sampled == tuple(assignments)
        assert report.silent == (min(assignments),)
        drawn.append(report.sampled)
    assert len(set(drawn)) == 3
    assert drawn == [Federation(many).draw_users(number) for number in (1, 2, 3)]
    assert drawn != [Federation(replace(many, seed=6)).draw_users(number) for number in (1, 2, 3)]
    again = type(report).from_json(report.to_json())
    assert again == report


def test_replies_are_let_go_as_soon_as_they_are_summed(plan):
    """Memory does not grow with the number of users: after a reply counted, nothing refers to its arrays."""
    import weakref

    federation = Federation(plan)
    assignments = federation.assign()
    arrays = {name: np.array(array) for name, array in assignments[0].models[0].items()}
    seen = weakref.ref(next(iter(arrays.values())))
    reply = answer(assignments[0], 24, {**assignments[0].models, 0: arrays})
    federation.accept(0, reply)
    del arrays, reply
    assert seen() is None
    federation.close()


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(st.tuples(numbers, st.integers(1, 10_000)), min_size=1, max_size=8), st.randoms())
def test_a_sum_is_exact_and_has_no_order(terms, random):
    exact = sum(Fraction(value) * weight for value, weight in terms)
    results = set()
    for _ in range(3):
        random.shuffle(terms)
        total = ExactSum(1)
        for value, weight in terms:
            total.add(np.array([value]) * weight)
        assert (
            sum(Fraction(int(digit[0])) * Fraction(2) ** (32 * place) for place, digit in total._digits.items())
            == exact
        )
        results.add(float(total.round()[0]))
    assert len(results) == 1
    assert (
        abs(Fraction(results.pop()) - exact)
        <= abs(exact) * Fraction(2) ** -50
        + max(abs(Fraction(value)) * weight for value, weight in terms) * Fraction(2) ** -50
    )
