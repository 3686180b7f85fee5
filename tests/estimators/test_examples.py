"""The examples run and show what they say."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, **settings):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(**settings)


def find(figures, *words):
    """The one figure whose label has all the words."""
    (found,) = [value for label, value in figures.items() if all(word in label for word in words)]
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_two_clinics_fool_one_model_and_the_plurality_but_not_the_decoder(seed):
    figures = run("tabular_users", seed=seed)
    assert find(figures, "one model", "triggered") < 0.1
    assert find(figures, "plurality", "triggered") < 0.1
    for source in ("decoder with trusted", "decoder without trusted"):
        assert find(figures, source, "triggered") > 0.9
        assert find(figures, source, "clean cases") > 0.9
        assert find(figures, source, "certified against 2") > 0.85
    assert find(figures, "suspects") == "clinic-03 clinic-07"
    assert find(figures, "somebody is suspected") < 0.1
    assert find(figures, "plurality", "certified against 2") == 0
    assert find(figures, "cross-validation") > 0.85


def test_a_bright_corner_is_seen_through():
    figures = run("image_users")
    assert find(figures, "clean images", "accuracy") > 0.9
    assert find(figures, "say the target") > 0.8
    assert find(figures, "triggered", "decoder") > find(figures, "triggered", "plurality") + 0.1
    assert find(figures, "attacker is named") > 0.8
    assert find(figures, "right and certified") > 0.7
