"""All defences that are compared, by name, each with where it comes from and the threat it was made for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from codeward.experiments.comparison import _coded_defences as coded
from codeward.experiments.comparison import _federated_defences as federated
from codeward.experiments.comparison import _single_model as single
from codeward.experiments.comparison._coded_defences import CodedDefence
from codeward.experiments.comparison._scene import Outcome, Scene
from codeward.experiments.comparison._simulated_attacks import UPDATE_ATTACKS


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
_C, _TRACKING = partial(coded.take_named, name="c"), partial(coded.take_named, name="btc2412")

DEFENCES: dict[str, Defence] = {
    "none": Defence(single.run_undefended, "no defence", "", "none"),
    "single": Defence(
        CodedDefence(coded.pool_users, "plurality", 1),
        "one model on all data",
        "",
        "none; its votes are kept",
    ),
    "spectral": Defence(single.run_spectral, "spectral signatures", "Tran et al., 2018", _POISON),
    "clustering": Defence(single.run_activation_clustering, "activation clustering", "Chen et al., 2018", _POISON),
    "strip": Defence(single.run_strip, "STRIP", "Gao et al., 2019", _INPUT),
    "sentinet": Defence(single.run_sentinet, "SentiNet's idea", "Chou et al., 2020", "a small trigger on any image"),
    "cleanse": Defence(single.run_neural_cleanse, "Neural Cleanse", "Wang et al., 2019", "a small trigger, one target"),
    "noise": Defence(coded.run_noise, "RAB", "Weber et al., 2023", "changes of small norm to the training data"),
    "output-code": Defence(
        coded.run_output_code, "output code", "Dietterich and Bakiri, 1995", "errors of models, not poison"
    ),
    "partition": Defence(
        CodedDefence(coded.partition_users, "plurality", 1, scores=True),
        "DPA",
        "Levine and Feizi, 2021",
        "any k samples or users (arbitrary)",
    ),
    "partition-runoff": Defence(
        CodedDefence(coded.partition_users, "runoff", 1, scores=True), "DPA, run-off", "Rezaei et al., 2023", _SAME
    ),
    "shifted-hash": Defence(
        CodedDefence(coded.hash_users, "plurality", 1), "Finite Aggregation", "Wang et al., 2022", _SAME
    ),
    "bagging": Defence(
        CodedDefence(coded.bag_users, "plurality", 1), "bagging", "Jia et al., 2021", "the same, on average over draws"
    ),
    "paper": Defence(CodedDefence(_C, "bayes", 3, names=True), "the paper's code (c)", "Qiao et al., 2021", _TRIGGER),
    "tracking": Defence(
        CodedDefence(_TRACKING, "bayes", 3, scores=True, names=True),
        "tracking code, paper's decoder",
        "this software",
        _TRIGGER,
    ),
    "codeward": Defence(
        CodedDefence(_TRACKING, "calibrated", 3, scores=True, names=True),
        "codeward as it runs",
        "this software",
        "the same, with models that err",
    ),
    "designed": Defence(
        CodedDefence(coded.design_tracking, "calibrated", 2, scores=True, names=True),
        "codeward, designed code",
        "this software",
        "the same, fewest models",
    ),
    "consensus": Defence(
        CodedDefence(_C, "consensus", 2, names=True), "code c, consensus", "this software", "k users, arbitrary"
    ),
    "fed-average": Defence(federated.run_rule, "FedAvg", "McMahan et al., 2017", "none", federated=True),
    "fed-krum": Defence(
        partial(federated.run_rule, rule=federated.krum), "Krum", "Blanchard et al., 2017", _UPDATES, federated=True
    ),
    "fed-bulyan": Defence(
        partial(federated.run_rule, rule=federated.bulyan), "Bulyan", "El Mhamdi et al., 2018", _UPDATES, federated=True
    ),
    "fed-median": Defence(
        partial(federated.run_rule, rule=federated.median), "median", "Yin et al., 2018", _UPDATES, federated=True
    ),
    "fed-trimmed": Defence(
        partial(federated.run_rule, rule=federated.trimmed_mean),
        "trimmed mean",
        "Yin et al., 2018",
        _UPDATES,
        federated=True,
    ),
    "fed-clipping": Defence(
        partial(federated.run_rule, rule=federated.clip_and_noise),
        "clipping and noise",
        "Sun et al., 2019",
        "backdoors by large updates",
        federated=True,
    ),
    "fed-draco": Defence(
        partial(federated.run_rule, redundant=True),
        "DRACO",
        "Chen et al., 2018",
        "workers who lie about gradients of data that others hold too",
        federated=True,
    ),
    "fed-codeward": Defence(
        partial(federated.run_federated_code, defence=CodedDefence(_TRACKING, "bayes", 3, names=True)),
        "codeward, federated",
        "this software",
        "k colluding users, one trigger (deterministic)",
        federated=True,
    ),
    "fed-consensus": Defence(
        partial(federated.run_federated_code, defence=CodedDefence(_C, "consensus", 2, names=True)),
        "code c, consensus, federated",
        "this software",
        "k users, arbitrary",
        federated=True,
    ),
}

#: Defences whose code has a name, and so 12 users.
NAMED_CODES = ("paper", "tracking", "codeward", "consensus", "fed-codeward", "fed-consensus")
