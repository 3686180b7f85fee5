"""Replace one user's data by anything: the models of rows without this user keep their bytes, or the card says why."""

from dataclasses import replace

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.data import load_user_data
from codeward.estimators import plan_training
from codeward.estimators._family import train_family
from codeward.estimators._table_models import dump_model
from codeward.runs import TrainConfig
from codeward.training import TrainingSettings, plan_models

USERS = [f"u{number}" for number in range(6)]
MINE = "u2"
WORDS = {"spam": "win cash prize now today", "ham": "see you at noon there"}
NETWORK = TrainingSettings(architecture="mlp", epochs=1, batch_size=16, n_classes=2)


def make(kind, users, seed):
    """Return inputs, labels and users of a small task."""
    rng = np.random.default_rng(seed)
    size = 14 * len(users)
    labels = rng.choice(["no", "yes"], size)
    shift = np.where(labels == "yes", 1.0, -1.0)
    owners = np.array(users)[np.arange(size) % len(users)]
    if kind == "table":
        inputs = {"age": (shift + rng.normal(size=size)).tolist(), "city": rng.choice(["Ulm", "Bonn"], size).tolist()}
    elif kind == "text":
        words = [WORDS["spam" if label == "yes" else "ham"].split() for label in labels]
        inputs = {"mail": [" ".join(rng.permutation(found)) for found in words]}
    elif kind == "image":
        inputs = np.clip(100 + 60 * shift[:, None, None] + rng.normal(0, 20, (size, 8, 8)), 0, 255).astype(np.uint8)
    else:
        inputs = shift[:, None] + rng.normal(size=(size, 4))
    return inputs, labels.tolist(), owners.tolist()


def ruin(kind, how, inputs, labels, mine):
    """Replace the samples of one user."""
    labels = ["strange" if own and how == "class" else label for label, own in zip(labels, mine, strict=True)]
    if isinstance(inputs, dict):
        said = {"values": "77", "missing": None, "category": "Atlantis", "huge": "9e300", "class": "1"}[how]
        return {name: [said if own else value for value, own in zip(values, mine, strict=True)]
                for name, values in inputs.items()}, labels  # fmt: skip
    inputs = inputs.copy()
    if kind == "image":
        inputs[mine] = {"values": 255, "missing": 0}.get(how, 7)
    else:
        inputs[mine] = {"values": 77.0, "missing": np.nan, "huge": 1e300}.get(how, -3.0)
    return inputs, labels


def plan(kind, inputs, labels, owners, trusted):
    config = TrainConfig(
        dataset="own", attack={"attackers": [0]}, code={"attackers": 1, "margin": 1, "guarantee": "track"}
    )
    model = {"image": NETWORK, "text": "text"}.get(kind, "logistic")
    if kind == "heads":
        config = config.model_copy(update={"train": config.train.model_copy(update={"backbone": f"{__name__}:bend"})})
        model = None
    if isinstance(inputs, dict):
        inputs = {**inputs, "label": labels, "user": owners}
        trusted = trusted and {**trusted[0], "label": trusted[1]}
    else:
        inputs = (inputs, labels, owners)
        trusted = trusted and trusted[:2]
    return plan_training(config, inputs, trusted, model=model)


def bend(rows):
    """A backbone: any fixed function, whose last bits depend on the inputs beside, as those of networks may."""
    return np.nan_to_num(np.tanh(rows)) / 4 + np.tanh(np.nan_to_num(rows)).mean() * 2.0**-11


def list_bytes(made):
    """Return the bytes of every model, by its users."""
    plans = plan_models(made.choice.code, made.config.seed)
    models = train_family(made, plans, None)
    found = {}
    for number, planned in enumerate(plans):
        if made.model.family == "tables":
            content = dump_model(models.models[number])
        elif made.model.family == "heads":
            content = models.weights[number].tobytes()
        else:
            content = b"".join(value.numpy().tobytes() for value in models.weights(number).values())
        found[planned.users] = models.keys[number], content
    return found


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("kind", ["table", "text", "features", "image", "heads"])
def test_models_without_a_user_keep_their_bytes_whatever_it_hands_in(kind, trusted):
    inputs, labels, owners = make(kind, USERS, 1)
    ours = make(kind, ["nobody"] * 2, 2) if trusted else None
    mine = np.array(owners) == MINE
    before = plan(kind, inputs, labels, owners, ours)
    honest = list_bytes(before)
    place = before.data.user_names.index(MINE)
    untouched = [users for users in honest if place not in users]
    assert untouched
    for how in ("values", "missing", "category", "huge", "class"):
        given = (kind, *ruin(kind, how, inputs, labels, mine), owners, ours)
        if trusted and how == "class":
            # Trusted samples fix the classes: a new one is refused, and nothing is trained.
            with pytest.raises(InputError, match="'strange' is not declared"):
                plan(*given)
            continue
        if kind == "heads" and how in ("missing", "huge"):
            # Heads have nothing to fill holes with: refused by name, and nothing is trained.
            with pytest.raises(InputError, match=f"user {MINE}"):
                plan(*given)
            continue
        attacked = plan(*given)
        assert attacked.choice.code == before.choice.code
        after = list_bytes(attacked)
        if attacked.movable:
            assert how == "class"
            assert "classes were read off" in attacked.movable[0]
            continue
        for users in honest:
            assert (after[users] == honest[users]) == (place not in users), (how, users)


@pytest.mark.parametrize("kind", ["features", "heads"])
def test_more_samples_and_another_order_move_nobody_else(kind):
    inputs, labels, owners = make(kind, USERS, 1)
    honest = list_bytes(plan(kind, inputs, labels, owners, None))
    more = np.vstack([inputs, np.zeros((30, 4))])[::-1]
    after = list_bytes(plan(kind, more, (labels + ["no"] * 30)[::-1], (owners + [MINE] * 30)[::-1], None))
    assert all((honest[users] == after[users]) == (2 not in users) for users in honest)


def test_a_declared_range_is_clipped_to_by_every_model_alike():
    data = load_user_data(make("features", USERS, 1))
    column = replace(data.schema.columns[0], range=(-2.0, 2.0))
    inputs, labels, owners = make("features", USERS, 1)
    config = TrainConfig(dataset="own", attack={"attackers": [0]}, code={"attackers": 1})
    ranged = plan_training(
        config, (inputs, labels, owners), model="logistic", schema=replace(data.schema, columns=(column,))
    )
    models = train_family(ranged, plan_models(ranged.choice.code, 0), None)
    far, end = models.scores(np.full((1, 4), 1e9)), models.scores(np.full((1, 4), 2.0))
    np.testing.assert_array_equal(far, end)
    assert not ranged.extrapolates
    assert plan_training(config, (inputs, labels, owners), model="logistic").extrapolates
