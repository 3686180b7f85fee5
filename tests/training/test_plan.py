from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.codes import Code
from codeward.training import ModelPlan, TrainingSettings, plan_batches, plan_models
from codeward.training._sub_models import batch_width, count_shifts, count_steps

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


@given(sizes=SIZES, batch=st.integers(1, 17), seed=st.integers(0, 2**60))
@settings(max_examples=60, deadline=None)
def test_every_sample_counts_once_an_epoch_and_batches_hold_one_user(sizes, batch, seed):
    recipe = TrainingSettings(epochs=2, batch_size=batch)
    plan = ModelPlan(tuple(range(len(sizes))), 0, seed)
    stream = plan_batches(plan, sizes, recipe, batch)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    assert len(stream) == count_steps(plan, sizes, recipe) == 2 * stream.steps_per_epoch
    for epoch in range(2):
        steps = range(epoch * stream.steps_per_epoch, (epoch + 1) * stream.steps_per_epoch)
        seen = Counter(int(i) for step in steps for i in stream.index[step, : stream.counts[step]])
        assert seen == Counter(range(sum(sizes)))
    for row in stream.index:
        assert len(set(owner[row])) == 1
    assert stream.counts.max() <= stream.full <= batch


def test_batches_of_a_user_are_alike_in_size_and_users_take_turns():
    stream = plan_batches(ModelPlan((0, 2), 0, 1), [300, 99, 130], TrainingSettings(epochs=1), 128)
    owners = np.searchsorted([300, 399], stream.index[:, 0], side="right")
    assert owners.tolist() == [0, 2, 0, 2, 0]
    assert stream.counts.tolist() == [100, 65, 100, 65, 100]


def test_the_stream_of_a_model_does_not_depend_on_other_users_data():
    recipe = TrainingSettings(epochs=2, augmentation="crop-flip")
    alone = plan_batches(ModelPlan((0, 2), 0, 5), [50, 10, 70], recipe, 80)
    beside = plan_batches(ModelPlan((0, 2), 0, 5), [50, 900, 70], recipe, 80)
    moved = np.where(beside.index >= 950, beside.index - 890, beside.index)
    assert (moved == alone.index).all()
    assert (alone.shifts == beside.shifts).all()
    assert alone.shifts.max() < 2 * count_shifts("crop-flip") ** 2


def test_seeds_follow_the_set_of_users_and_the_replica_not_the_row():
    first = plan_models(Code([[1, 1, 0], [0, 1, 1], [1, 1, 0]]), 7)
    second = plan_models(Code([[0, 1, 1], [1, 1, 0], [1, 0, 0]]), 7)
    assert first[0].seed == second[1].seed
    assert first[1].seed == second[0].seed
    assert len({plan.seed for plan in first}) == 3
    assert (first[2].users, first[2].replica) == ((0, 1), 1)
    assert plan_models(Code([[1, 1, 0], [0, 0, 1]]), 8)[0].seed != first[0].seed


def test_a_model_without_samples_is_refused():
    with pytest.raises(InputError, match="hold no samples"):
        plan_batches(ModelPlan((1,), 0, 5), [50, 0], TrainingSettings(), 16)


@pytest.mark.parametrize(
    ("sizes", "width"),
    [([100], 112), ([128], 128), ([127], 128), ([5, 500], 128), ([3], 16), ([150, 149], 80), ([0, 130], 80)],
)
def test_the_width_of_a_batch_is_a_multiple_of_16_that_holds_the_largest_batch(sizes, width):
    assert batch_width(sizes, 128) == width


@given(sizes=SIZES, batch=st.integers(1, 40))
def test_no_batch_is_wider_than_its_places(sizes, batch):
    recipe = TrainingSettings(epochs=1, batch_size=batch)
    width = batch_width(sizes, batch)
    stream = plan_batches(ModelPlan(tuple(range(len(sizes))), 0, 0), sizes, recipe, width)
    assert stream.counts.max() <= width <= max(batch, stream.counts.max())
    assert width - stream.counts.max() < 16


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": True},
        {"learning_rate": float("nan")},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"augmentation": "mixup"},
        {"precision": "float16"},
        {"mean": (0.1, 0.2)},
        {"std": (0.0,)},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        TrainingSettings(**wrong)
