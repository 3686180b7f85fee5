"""What a defence made of a scene, and the figures that are taken of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.decoding import alarm_threshold
from codeward.experiments.comparison._scene import Scene
from codeward.runs import share

#: False alarms at which detection is compared.
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Outcome:
    """The answers of a defence.

    Attributes
    ----------
    clean, triggered : ndarray of int64, shape (N,)
        Labels of the clean and of the triggered test inputs.
    clean_alarm, triggered_alarm : ndarray of float64, shape (N,), or None
        How suspicious each input looks, larger is more; None where the defence judges no inputs.
    named : tuple of tuple of int, or None
        Users named on each triggered input; None where the defence names nobody.
    guaranteed : int
        Users that cannot change a label that the guarantee covers; 0 where there is none.
    guarantee : str
        In words, with its threat model.
    n_models, n_passes : int
        Models trained, and forward passes an input takes.
    """

    clean: NDArray[np.int64]
    triggered: NDArray[np.int64]
    clean_alarm: NDArray[np.float64] | None = None
    triggered_alarm: NDArray[np.float64] | None = None
    named: tuple[tuple[int, ...], ...] | None = None
    guaranteed: int = 0
    guarantee: str = "none"
    n_models: int = 1
    n_passes: int = 1


def measure_outcome(scene: Scene, outcome: Outcome) -> dict[str, Any]:
    """Count what a defence got right, with denominators.

    Triggered inputs whose true label is the target are left out: there the attack changes nothing. ``detected`` is the
    share of triggered inputs above the alarm that 5% of the clean inputs pass, ``named`` users a triggered input.

    Examples
    --------
    >>> from codeward.data import load_dataset
    >>> from codeward.experiments.comparison import make_scene
    >>> from codeward.training import PRESETS
    >>> scene = make_scene("patch", load_dataset("digits"), PRESETS["digits"])
    >>> truth = scene.clean.labels
    >>> figures = measure_outcome(scene, Outcome(truth, np.zeros_like(truth), named=((),) * len(truth)))
    >>> figures["clean"]["count"] == figures["clean"]["of"], figures["detected"]
    (True, None)
    """
    truth = scene.clean.labels
    targets = {group.target for group in scene.groups}
    counted = ~np.isin(truth, list(targets))
    figures: dict[str, Any] = {
        "clean": share(int((outcome.clean == truth).sum()), len(truth)),
        "triggered": share(int((outcome.triggered == truth)[counted].sum()), int(counted.sum())),
        "attack_succeeds": share(int(np.isin(outcome.triggered, list(targets))[counted].sum()), int(counted.sum())),
        "detected": None,
        "named_rightly": None,
        "named_wrongly": None,
        "guaranteed": outcome.guaranteed,
        "guarantee": outcome.guarantee,
        "models": outcome.n_models,
        "passes": outcome.n_passes,
    }
    if outcome.clean_alarm is not None and outcome.triggered_alarm is not None:
        above = outcome.triggered_alarm[counted] > alarm_threshold(outcome.clean_alarm, FALSE_ALARMS)
        figures["detected"] = share(int(above.sum()), int(counted.sum()))
    if outcome.named is not None:
        attackers = set(scene.attackers)
        named = [set(names) for names, counts in zip(outcome.named, counted, strict=True) if counts]
        for figure, parts in (
            ("named_rightly", [found & attackers for found in named]),
            ("named_wrongly", [found - attackers for found in named]),
        ):
            figures[figure] = {"mean": float(np.mean([len(part) for part in parts])), "of": len(named)}
    return figures
