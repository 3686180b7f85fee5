"""Every rule of aggregation on its authors' own case, and what redundant gradients stop."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from codeward.codes import Code, named_code
from codeward.data import load_dataset
from codeward.experiments.comparison import _federated_defences as rules
from codeward.experiments.comparison import make_scene
from codeward.training import PRESETS

PAIR = load_dataset("digits")
HONEST = 1 + 0.1 * torch.randn(10, 50, generator=torch.Generator().manual_seed(0))
#: Blanchard et al.: two of twelve send what is far off, and the mean follows them.
FAR = torch.cat([HONEST, torch.full((2, 50), -30.0)])


@pytest.mark.parametrize("rule", [rules.krum, rules.bulyan, rules.median, rules.trimmed_mean])
def test_far_updates_move_the_mean_and_not_the_robust_rules(rule):
    assert (rules.average(FAR, 2) - 1).abs().mean() > 4
    assert (rule(FAR, 2, None) - 1).abs().mean() < 0.2


def test_krum_returns_one_of_the_updates_and_bulyan_needs_no_coordinate_far_off():
    assert any(torch.equal(rules.krum(FAR, 2), one) for one in HONEST)
    # El Mhamdi et al.: near in norm, far in one coordinate; Krum may take it, Bulyan does not follow.
    sly = HONEST.mean(dim=0).repeat(2, 1)
    sly[:, 0] += 0.4
    mixed = torch.cat([HONEST, sly])
    assert torch.equal(rules.krum(mixed, 2), sly[0])
    assert abs(rules.bulyan(mixed, 2)[0] - 1) < 0.15


def test_median_and_trimmed_mean_are_numpys():
    assert np.allclose(rules.median(FAR, 2), np.median(FAR.numpy(), axis=0))
    ordered = np.sort(FAR.numpy(), axis=0)
    assert np.allclose(rules.trimmed_mean(FAR, 2), ordered[2:-2].mean(axis=0), atol=1e-6)


def test_clipping_bounds_what_a_scaled_update_can_do():
    scaled = torch.cat([HONEST, 1000 * HONEST[:2]])
    found = rules.clip_and_noise(scaled, 2, torch.Generator().manual_seed(0))
    assert found.norm() < 1.1 * HONEST.norm(dim=1).median()
    assert rules.average(scaled, 2).norm() > 50 * found.norm()


def test_redundant_gradients_outvote_liars_up_to_a_minority():
    true = HONEST[0]
    answers = torch.stack([true, true + 1, true, true + 2, true])
    assert torch.equal(rules.vote_gradients(answers), true)
    colluding = torch.stack([true, true + 1, true + 1, true + 1, true])
    assert torch.equal(rules.vote_gradients(colluding), true + 1)


def test_redundancy_stops_lies_about_updates_and_not_data(monkeypatch):
    monkeypatch.setattr(rules, "ROUNDS", 2)
    scene = make_scene("replacement", PAIR, PRESETS["digits"])
    everybody = Code(np.ones((1, 12), dtype=bool))
    poison = rules.SimulatedRounds(replace(scene, name="patch"), everybody).run()[1]
    assert torch.equal(rules.SimulatedRounds(scene, everybody, redundant=True).run()[1], poison)
    assert not torch.equal(rules.SimulatedRounds(scene, everybody).run()[1], poison)


def test_models_that_no_attacker_reaches_are_the_same_bytes(monkeypatch):
    monkeypatch.setattr(rules, "ROUNDS", 2)
    scene = make_scene("directed", PAIR, PRESETS["digits"])
    code = Code(np.eye(12, dtype=bool)[:, :12])
    attacked, free = (
        rules.SimulatedRounds(one, code).run()[1] for one in (scene, make_scene("none", PAIR, PRESETS["digits"]))
    )
    same = (attacked == free).all(dim=1).numpy()
    assert set(np.flatnonzero(~same)) == set(scene.attackers)


def test_framed_votes_are_those_of_an_attack_by_others_and_nothing_is_planted_elsewhere():
    code = named_code("btc2412")
    for attackers in ((0, 1), (2, 10)):
        planted = rules.frame_others(code, attackers)
        assert not (planted & ~code.pattern(attackers)).any()
        others = [users for users in combinations(range(12), 2) if not set(users) & set(attackers)]
        explained = [int((planted != ~code.pattern(users)).sum()) for users in others]
        assert min(explained) == min(int((~code.pattern((*users, *attackers))).sum()) for users in others)
    scene = make_scene("framing", PAIR, PRESETS["digits"], seed=1)
    rounds = rules.SimulatedRounds(scene, code)
    user = scene.attackers[0]
    for model in range(code.n_models):
        held = scene.users if rounds._planted[model] else scene.honest
        assert rounds._poison(model, user) is held[user]
    assert rules.SimulatedRounds(scene, Code(np.ones((1, 12), dtype=bool)))._planted.all()


def test_recipes_of_a_federation_differ_and_a_user_trains_on_so_many_images():
    scene = make_scene("none", PAIR, PRESETS["digits"])
    trained = []
    for recipe in rules.LOCAL:
        local = rules.LocalTraining(replace(scene, recipe=recipe), rules._perceptron(scene, 0))
        images, labels = local.tensors(scene.users[:2], 40)
        assert images.shape[:2] == labels.shape == (2, 40)
        trained.append(local.train(torch.stack([local.start(0)] * 2), images, labels, 0))
    assert not torch.equal(*trained)
