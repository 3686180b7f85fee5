import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.attacks import (
    FRACTION,
    AttackGroup,
    AttackKind,
    draw_groups,
    draw_patch,
    poison,
    poison_users,
    trigger_inputs,
)
from codeward.data import Samples, render

KINDS = get_args(AttackKind)
SHAPE = (1, 8, 8)


def rng(seed=0):
    return np.random.default_rng(seed)


def make_users(n_users=12, n=200):
    generator = rng(99)
    return [
        Samples(generator.integers(0, 256, (n, *SHAPE), dtype=np.uint8), generator.permutation(np.arange(n) % 10))
        for _ in range(n_users)
    ]


USERS = make_users()


def groups_of(n_attackers, n_groups=1, seed=0, **options):
    return draw_groups(12, n_attackers, n_groups, SHAPE, 10, rng(seed), **options)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32))
def test_groups_are_disjoint_users_of_the_size_asked_for(n_attackers, n_groups, seed):
    if n_attackers * n_groups > 12:
        with pytest.raises(InputError, match="do not fit among 12 users"):
            groups_of(n_attackers, n_groups, seed)
        return
    groups = groups_of(n_attackers, n_groups, seed)
    members = [user for group in groups for user in group.attackers]
    assert [len(group.attackers) for group in groups] == [n_attackers] * n_groups
    assert len(set(members)) == len(members)
    assert set(members) <= set(range(12))
    assert all(0 <= group.target < 10 for group in groups)


def test_groups_have_triggers_of_their_own():
    one, two = groups_of(3, 2)
    assert not np.array_equal(one.trigger.values, two.trigger.values)


def test_attackers_and_targets_are_drawn_evenly():
    drawn = [groups_of(1, seed=seed)[0] for seed in range(1200)]
    for counts, expected in (
        (np.bincount([group.attackers[0] for group in drawn], minlength=12), 100),
        (np.bincount([group.target for group in drawn], minlength=10), 120),
    ):
        assert ((counts - expected) ** 2 / expected).sum() < 35  # chi-square of 11 or 9: beyond 1 in 4,000


@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(1, 3))
def test_smaller_groups_are_part_of_larger_ones_with_the_same_trigger_and_target(seed, kind, n_groups):
    sizes = [groups_of(size, n_groups, seed, kind=kind) for size in (1, 2, 3, 4)]
    for small, large in itertools.pairwise(sizes):
        for one, two in zip(small, large, strict=True):
            assert set(one.attackers) < set(two.attackers)
            assert one.target == two.target
            assert np.array_equal(one.trigger.values, two.trigger.values)
            assert one.trigger.place == two.trigger.place


@pytest.mark.parametrize("position", ["corner", "fixed-random", "per-image", "early-corner"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "split"])
def test_nested_attackers_hand_in_the_same_data_whoever_else_attacks(kind, position):
    handed = [poison_users(USERS, groups_of(size, kind=kind, position=position), seed=[0, 0]) for size in (1, 2, 3)]
    for size, data in zip((1, 2), handed, strict=False):
        for user in groups_of(size)[0].attackers:
            assert data[user].digest() == handed[size][user].digest()
            assert data[user].digest() != USERS[user].digest()


@pytest.mark.parametrize("kind", KINDS)
def test_the_data_of_honest_users_are_the_very_same_objects(kind):
    groups = groups_of(2, 2, kind=kind)
    data = poison_users(USERS, groups, seed=[1])
    attackers = {user for group in groups for user in group.attackers}
    assert len(attackers) == 4
    for user in range(12):
        assert (data[user] is USERS[user]) == (user not in attackers)


@pytest.mark.parametrize("fraction", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_stated_fraction_is_touched_and_images_never_are(kind, fraction):
    group = groups_of(2, kind=kind, fraction=fraction)[0]
    for part, user in enumerate(group.attackers):
        samples, after = USERS[user], poison(USERS[user], group, rng(7), part)
        assert after.images is samples.images
        relabelled = after.labels != samples.labels
        stamped = after.overlay_ids >= 0
        wanted = round(fraction * 200)
        assert (after.labels[relabelled] == group.target).all()
        if kind == "clean-label":
            assert not relabelled.any()
            assert (samples.labels[stamped] == group.target).all()
            assert stamped.sum() == min(wanted, (samples.labels == group.target).sum())
        elif kind == "label-flip":
            assert not stamped.any()
            assert 0 < relabelled.sum() <= wanted
        else:
            assert stamped.sum() == wanted
            assert (after.labels[stamped] == group.target).all()
            assert not (relabelled & ~stamped).any()


def test_the_default_fraction_is_the_papers_five_percent():
    assert FRACTION == 0.05
    group = groups_of(1)[0]
    assert (poison(USERS[0], group, rng()).overlay_ids >= 0).sum() == 10


def test_one_sample_at_least_is_poisoned_and_no_samples_stay_none():
    group = groups_of(1, fraction=0.001)[0]
    assert (poison(USERS[0].take(np.arange(5)), group, rng()).overlay_ids >= 0).sum() == 1
    for kind in KINDS:
        assert len(poison(USERS[0].take(np.arange(0)), groups_of(1, kind=kind)[0], rng())) == 0


def test_a_larger_fraction_poisons_the_same_samples_and_more():
    small, large = (
        set(np.flatnonzero(poison(USERS[0], groups_of(1, fraction=fraction)[0], rng(3)).overlay_ids >= 0))
        for fraction in (0.05, 0.5)
    )
    assert small < large


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_the_parts_of_a_split_trigger_are_disjoint_and_make_up_the_whole(size):
    group = groups_of(size, kind="split", fraction=1.0)[0]
    covered = np.zeros(SHAPE)
    for part, user in enumerate(group.attackers):
        overlay = poison(USERS[user], group, rng(), part).overlays[0]
        assert overlay.alpha.sum() > 0
        covered += overlay.alpha
    whole = trigger_inputs(USERS[0], group).overlays[0]
    assert np.array_equal(covered, whole.alpha)


@pytest.mark.parametrize("kind", KINDS)
def test_triggering_inputs_keeps_images_and_true_labels_and_marks_every_one(kind):
    group = groups_of(2, kind=kind)[0]
    triggered = trigger_inputs(USERS[0], group)
    assert triggered.images is USERS[0].images
    assert np.array_equal(triggered.labels, USERS[0].labels)
    if kind == "label-flip":
        assert triggered is USERS[0]
    else:
        assert (triggered.overlay_ids >= 0).all()


def test_triggered_inputs_show_the_trigger_the_attackers_trained_with():
    group = groups_of(2, fraction=1.0)[0]
    poisoned = poison(USERS[0], group, rng())
    assert np.array_equal(render(poisoned), render(trigger_inputs(USERS[0], group)))


def test_places_of_a_per_image_trigger_come_from_the_seed():
    group = groups_of(1, position="per-image")[0]
    ids = [render(trigger_inputs(USERS[0], group, seed)) for seed in (0, 0, [0, 1], 2)]
    assert np.array_equal(ids[0], ids[1])
    assert not np.array_equal(ids[0], ids[2])
    assert not np.array_equal(ids[0], ids[3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attackers": ()}, "attackers"),
        ({"attackers": (1, 1)}, "distinct"),
        ({"attackers": (-1,)}, "attackers"),
        ({"target": -1}, "target"),
        ({"kind": "magic"}, "patch, blended"),
        ({"fraction": 0}, "fraction"),
        ({"fraction": 1.5}, "fraction"),
        ({"fraction": float("nan")}, "fraction"),
        ({"by_class": ()}, "by_class"),
        ({"by_class": (-1, -1)}, "not all"),
        ({"by_class": (-2, 1)}, "by_class"),
        ({"by_class": (1, 0), "kind": "clean-label"}, "only of patch"),
    ],
)
def test_an_impossible_group_is_refused(change, message):
    good = {"attackers": (1,), "target": 3, "kind": "patch", "trigger": draw_patch(SHAPE, "corner", rng())}
    with pytest.raises(InputError, match=message):
        AttackGroup(**(good | change))


def test_impossible_attackers_of_a_run_are_refused():
    trigger = draw_patch(SHAPE, "corner", rng())
    one, two = AttackGroup((1, 2), 0, "patch", trigger), AttackGroup((2,), 1, "patch", trigger)
    with pytest.raises(InputError, match="two groups"):
        poison_users(USERS, [one, two], seed=[0])
    with pytest.raises(InputError, match="attacker 12 is not among the 12 users"):
        poison_users(USERS, [AttackGroup((12,), 0, "patch", trigger)], seed=[0])
    for sizes in ((0, 1), (1, 0)):
        with pytest.raises(InputError, match="1 or more"):
            groups_of(*sizes)
