"""All defences that are compared, by name, each with where it comes from and the threat it was made for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from codeward.experiments.comparison import _coded_defences as coded
from codeward.experiments.comparison import _federated_defences as federated
from codeward.experiments.comparison import _single_model as single
from codeward.experiments.comparison._coded_defences import CodedDefence
from codeward.experiments.comparison._scene import UPDATE_ATTACKS, Outcome, Scene


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
    federated : bool
        Whether users send updates instead of data; only then can they attack by updates.

    Examples
    --------
    >>> DEFENCES["strip"].citation
    'Gao et al., 2019'
    """

    run: Callable[[Scene], Outcome]
    title: str
    citation: str
    made_for: str
    federated: bool = False

    def meets(self, attack: str) -> bool:
        """Tell whether there is such a cell: updates can be attacked only where users send some."""
        return self.federated or attack not in UPDATE_ATTACKS


_POISON = "a minority of each class poisoned, one party trains"
_INPUT = "a trigger that holds the answer whatever else is on the image"
_SAME = "the same"
_UPDATES = "a minority of users sends any updates; that the model learns, not backdoors"
_TRIGGER = "k colluding users, one trigger (deterministic)"
_OURS = "this software"
_C, _TRACKING = partial(coded.take_named, name="c"), partial(coded.take_named, name="btc2412")


def _send(title: str, citation: str, made_for: str = _UPDATES, **rule: Any) -> Defence:
    """Describe a rule of aggregation of users' updates."""
    return Defence(partial(federated.run_rule, **rule), title, citation, made_for, federated=True)


def _decode(code: CodedDefence, title: str, made_for: str, citation: str = _OURS) -> Defence:
    return Defence(code, title, citation, made_for)


def _federate(code: CodedDefence, title: str, made_for: str) -> Defence:
    return Defence(partial(federated.run_federated_code, defence=code), title, _OURS, made_for, federated=True)


DEFENCES: dict[str, Defence] = {
    "none": Defence(single.run_undefended, "no defence", "", "none"),
    "spectral": Defence(single.run_spectral, "spectral signatures", "Tran et al., 2018", _POISON),
    "clustering": Defence(single.run_activation_clustering, "activation clustering", "Chen et al., 2018", _POISON),
    "strip": Defence(single.run_strip, "STRIP", "Gao et al., 2019", _INPUT),
    "sentinet": Defence(single.run_sentinet, "SentiNet's idea", "Chou et al., 2020", "a small trigger on any image"),
    "cleanse": Defence(single.run_neural_cleanse, "Neural Cleanse", "Wang et al., 2019", "a small trigger, one target"),
    "noise": Defence(coded.run_noise, "RAB", "Weber et al., 2023", "changes of small norm to the training data"),
    "output-code": Defence(
        coded.run_output_code, "output code", "Dietterich and Bakiri, 1995", "errors of models, not poison"
    ),
    "partition": _decode(
        CodedDefence(coded.partition_users, "plurality", 1, scores=True),
        "DPA",
        "any k samples or users (arbitrary)",
        "Levine and Feizi, 2021",
    ),
    "partition-runoff": _decode(
        CodedDefence(coded.partition_users, "runoff", 1, scores=True), "DPA, run-off", _SAME, "Rezaei et al., 2023"
    ),
    "shifted-hash": _decode(
        CodedDefence(coded.hash_users, "plurality", 1), "Finite Aggregation", _SAME, "Wang et al., 2022"
    ),
    "bagging": _decode(
        CodedDefence(coded.bag_users, "plurality", 1), "bagging", "the same, on average over draws", "Jia et al., 2021"
    ),
    "paper": _decode(CodedDefence(_C, "bayes", 3, names=True), "the paper's code (c)", _TRIGGER, "Qiao et al., 2021"),
    "tracking": _decode(
        CodedDefence(_TRACKING, "bayes", 3, scores=True, names=True), "tracking code, paper's decoder", _TRIGGER
    ),
    "codeward": _decode(
        CodedDefence(_TRACKING, "calibrated", 3, scores=True, names=True),
        "codeward as it runs",
        "the same, with models that err",
    ),
    "designed": _decode(
        CodedDefence(coded.design_tracking, "calibrated", 2, scores=True, names=True),
        "codeward, designed code",
        "the same, fewest models",
    ),
    "consensus": _decode(CodedDefence(_C, "consensus", 2, names=True), "code c, consensus", "k users, arbitrary"),
    "fed-average": _send("FedAvg", "McMahan et al., 2017", "none"),
    "fed-krum": _send("Krum", "Blanchard et al., 2017", rule=federated.krum),
    "fed-bulyan": _send("Bulyan", "El Mhamdi et al., 2018", rule=federated.bulyan),
    "fed-median": _send("median", "Yin et al., 2018", rule=federated.median),
    "fed-trimmed": _send("trimmed mean", "Yin et al., 2018", rule=federated.trimmed_mean),
    "fed-clipping": _send(
        "clipping and noise", "Sun et al., 2019", "backdoors by large updates", rule=federated.clip_and_noise
    ),
    "fed-draco": _send(
        "DRACO", "Chen et al., 2018", "workers who lie about gradients of data that others hold too", redundant=True
    ),
    "fed-codeward": _federate(CodedDefence(_TRACKING, "bayes", 3, names=True), "codeward, federated", _TRIGGER),
    "fed-consensus": _federate(
        CodedDefence(_C, "consensus", 2, names=True), "code c, consensus, federated", "k users, arbitrary"
    ),
}

#: Defences whose code has a name, and so 12 users.
NAMED_CODES = ("paper", "tracking", "codeward", "consensus", "fed-codeward", "fed-consensus")
