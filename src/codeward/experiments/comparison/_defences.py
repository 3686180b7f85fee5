"""All defences that are compared, by name, each with where it comes from and the threat it was made for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from codeward.experiments.comparison import _coded_defences as coded
from codeward.experiments.comparison import _single_model as single
from codeward.experiments.comparison._outcome import Outcome
from codeward.experiments.comparison._scene import Scene


@dataclass(frozen=True)
class Defence:
    """One defence.

    Attributes
    ----------
    run : callable
        From a `Scene` to an `Outcome`.
    title : str
    citation : str
    made_for : str
        The threat that its authors had in mind.

    Examples
    --------
    >>> DEFENCES["strip"].citation
    'Gao et al., 2019'
    """

    run: Callable[[Scene], Outcome]
    title: str
    citation: str
    made_for: str


_POISON = "a minority of each class poisoned, one party trains"
_INPUT = "a trigger that holds the answer whatever else is on the image"

DEFENCES: dict[str, Defence] = {
    "none": Defence(single.run_undefended, "no defence", "", "none"),
    "spectral": Defence(single.run_spectral, "spectral signatures", "Tran et al., 2018", _POISON),
    "clustering": Defence(single.run_activation_clustering, "activation clustering", "Chen et al., 2018", _POISON),
    "strip": Defence(single.run_strip, "STRIP", "Gao et al., 2019", _INPUT),
    "cleanse": Defence(single.run_neural_cleanse, "Neural Cleanse", "Wang et al., 2019", "a small trigger, one target"),
    "noise": Defence(coded.run_noise, "RAB", "Weber et al., 2023", "changes of small norm to the training data"),
    "output-code": Defence(
        coded.run_output_code, "output code", "Dietterich and Bakiri, 1995", "errors of models, not poison"
    ),
    "partition": Defence(coded.run_partition, "DPA", "Levine and Feizi, 2021", "any k samples or users (arbitrary)"),
    "partition-runoff": Defence(
        partial(coded.run_partition, decoder="runoff"), "DPA, run-off", "Rezaei et al., 2023", "the same"
    ),
    "shifted-hash": Defence(coded.run_shifted_hash, "Finite Aggregation", "Wang et al., 2022", "the same"),
    "bagging": Defence(coded.run_bagging, "bagging", "Jia et al., 2021", "the same, on average over draws"),
    "paper": Defence(
        partial(coded.run_codeward, code="c", decoder="bayes", n_attackers=3),
        "code and decoder of the paper",
        "Qiao et al., 2021",
        "k colluding users, one trigger (deterministic)",
    ),
    "codeward": Defence(coded.run_default, "codeward", "this software", "k colluding users, both threat models"),
}
