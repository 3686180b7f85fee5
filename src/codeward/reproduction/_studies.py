"""The paper's figure and table, and what goes past them, as grids of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codeward._errors import InputError
from codeward.runs import RunConfig

#: Data sets of the paper, for which the whole plan is expected; other grids expect what their runs say.
PAPER_DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}

#: The paper's settings of Figure 5, by the names of their folders.
SPLITS: dict[str, dict[str, Any]] = {
    "iid": {"kind": "iid"},
    "alpha10": {"kind": "dirichlet", "alpha": 10},
    "alpha1": {"kind": "dirichlet", "alpha": 1},
    "alpha0.1": {"kind": "dirichlet", "alpha": 0.1},
}

#: Codes of Figure 5 (12 users) and of Table 1 (16 users). Table 1 of the paper has g and h; h16 is what we take for the
#: paper's h, h a code with the same guarantee and fewer models, btc3416 one with the same models for one attacker more.
FIGURE5_CODES = ("a", "b", "c", "d", "e", "f")
TABLE1_CODES = ("g", "h16", "h", "btc3416")

#: Past the paper, 12 users: codes of the designer at the row weights of c and d, and Finite Aggregation's beside them.
#: btc2412 is what `codeward run` takes; the others are named by the k, r and margin they are designed for.
DESIGNED: dict[str, dict[str, Any]] = {
    "btc2412": {"name": "btc2412"},
    "k2r4d3": {"attackers": 2, "row_weight": 4, "margin": 3, "guarantee": "correct", "time_limit": 60},
    "k3r4d2": {"attackers": 3, "row_weight": 4, "margin": 2, "guarantee": "correct", "time_limit": 60},
    "k3r6d1": {"attackers": 3, "row_weight": 6, "margin": 1, "guarantee": "correct", "time_limit": 60},
    "k3r6d2": {"attackers": 3, "row_weight": 6, "margin": 2, "guarantee": "correct", "time_limit": 60},
    "fa": {"name": "fa"},
}

#: Past the paper: other attacks, on codes c and d. A trigger at a random place may lie on the digit's body and fail;
#: one that is there before the crop mostly does (`_AUGMENTED`). Every user alone, with its own trigger and target,
#: all in one corner or each at a place of its own: the paper says that a code for one attacker is enough.
ATTACKS: dict[str, dict[str, Any]] = {
    "blended": {"kind": "blended"},
    "split": {"kind": "split"},
    "two-groups": {"groups": 2},
    "fixed-random": {"position": "fixed-random"},
    "early-stamp": {"position": "early-corner"},
    "each-alone": {"groups": 12, "attackers": (0, 1)},
    "each-apart": {"groups": 12, "attackers": (0, 1), "position": "fixed-random"},
}

#: Attacks that differ from the paper's only where images are augmented, and the data sets whose are.
_AUGMENTED, _AUGMENTED_DATASETS = ("iid-early-stamp",), ("cifar10",)

#: Codes of the paper beside which designed codes and other attacks are shown, and those that are there for contrast.
BESIDE, CONTRAST_CODES = ("c", "d"), ("a", "b", "e", "f")


@dataclass(frozen=True)
class Study:
    """A study: its title, its repeats, and its runs by ``<setting>/<code>``, as sections of a configuration."""

    title: str
    repeats: int
    runs: Mapping[str, Mapping[str, Any]]


#: Studies that the paper made, so that a grid of its recipe is complete with all their cells.
PAPER_STUDIES = ("figure5", "table1")

#: The table of studies: everything that is planned, reported and expected comes from it.
STUDIES: dict[str, Study] = {
    "figure5": Study(
        "Figure 5: accuracy under attack",
        5,
        {
            f"{name}/{code}": {"users": 12, "split": split, "code": {"name": code}}
            for name, split in SPLITS.items()
            for code in FIGURE5_CODES
        },
    ),
    "table1": Study(
        "Table 1: naming attackers",
        10,
        {f"iid/{code}": {"users": 16, "code": {"name": code}} for code in TABLE1_CODES},
    ),
    "past": Study(
        "Past the paper",
        5,
        {
            f"{name}/{code}": {"users": 12, "split": split, "code": section}
            for name, split in SPLITS.items()
            for code, section in DESIGNED.items()
        }
        | {
            f"iid-{name}/{code}": {"users": 12, "code": {"name": code}, "attack": attack}
            for name, attack in ATTACKS.items()
            for code in BESIDE
        },
    ),
}

#: A whole pipeline on the embedded data set within a minute on two cores.
_SMOKE: dict[str, Any] = {"dataset": "digits", "training": {"epochs": 10}, "repeats": 1}


def plan_study(
    study: str,
    dataset: str = "mnist",
    repeats: int | None = None,
    codes: Sequence[str] = (),
    splits: Sequence[str] = (),
    smoke: bool = False,
    seed: int = 0,
    attackers: Sequence[int] = (),
    recipe: str = "paper",
    committee: int = 1,
) -> dict[str, RunConfig]:
    """Return the runs of a study by the folder each has in the grid, ``<data set>-<setting>/<code>``.

    Parameters
    ----------
    study : {"figure5", "table1", "past"}
        ``figure5``: accuracy of codes a to f under 0 to 3 attackers, IID and Dirichlet 10, 1, 0.1, 5 repeats (paper,
        "Backdoor Correction"). ``table1``: tracking with codes g and h, IID, 1 to 3 attackers, 10 repeats (paper,
        "Backdoor Tracking"). ``past``: the designer's codes, Finite Aggregation's, and other attacks.
    dataset : str
    repeats : int, optional
        The study's own number by default.
    codes, splits : sequence of str
        Keep only these.
    smoke : bool
        The same pipeline on digits, small.
    seed : int
    attackers : sequence of int
        Keep only the cells with these numbers of attackers; 0 to 3 by default.
    recipe : {"paper", "modern"}
        How sub-models are trained (`codeward.training.choose_recipe`); settings of the modern one end in ``-modern``.
    committee : int
        Networks a sub-model; settings with several end in ``-committee3`` or the like.

    Examples
    --------
    >>> sorted(plan_study("table1", "mnist"))
    ['mnist-iid/btc3416', 'mnist-iid/g', 'mnist-iid/h', 'mnist-iid/h16']
    """
    if study not in STUDIES:
        raise InputError(f"study: expected one of {', '.join(STUDIES)}, got {study!r}")
    runs = dict(STUDIES[study].runs)
    chosen = _SMOKE["dataset"] if smoke else dataset
    if chosen not in _AUGMENTED_DATASETS:
        runs = {path: run for path, run in runs.items() if path.split("/")[0] not in _AUGMENTED}
    for kind, wanted, place in (("code", codes, 1), ("split", splits, 0)):
        known = list(dict.fromkeys(path.split("/")[place] for path in runs))
        for name in wanted:
            if name not in known:
                raise InputError(f"--{kind} {name}: {study} has {', '.join(known)}")
        runs = {path: run for path, run in runs.items() if not wanted or path.split("/")[place] in wanted}
    common: dict[str, Any] = {"dataset": dataset, "repeats": repeats or STUDIES[study].repeats, "seed": seed}
    decoder = "bayes" if recipe == "paper" else "calibrated"
    training = {"recipe": recipe} | ({"committee": committee} if committee > 1 else {})
    common |= {"training": training, "decoder": {"name": decoder}}
    if smoke:
        common |= {**_SMOKE, "training": {**_SMOKE["training"], **training}}
        runs = {path: run for path, run in runs.items() if _is_smoke(path)}
    sizes: dict[str, dict[str, Any]] = {}
    for path, run in runs.items():
        attack = run.get("attack", {})
        most = run["users"] // attack.get("groups", 1)
        # A run that has sizes of its own (everybody attacks alone) keeps those of them that were asked for.
        asked = [size for size in dict.fromkeys(attackers) if size in attack.get("attackers", (size,))]
        for size in asked:
            if not 0 <= size <= most:
                raise InputError(f"--attackers {size}: {path} has room for 0 to {most}")
        if asked or not attackers:
            sizes[path] = {**attack, **({"attackers": tuple(asked)} if attackers else {})}
    ending = ("" if recipe == "paper" else f"-{recipe}") + (f"-committee{committee}" if committee > 1 else "")
    return {
        f"{common['dataset']}-{path.replace('/', f'{ending}/')}": RunConfig.model_validate(
            {**common, **runs[path], "attack": attack}
        )
        for path, attack in sizes.items()
    }


def _is_smoke(path: str) -> bool:
    """Two settings show that both ways of splitting data work; one designed code that the designer and the rest do."""
    setting, _, code = path.partition("/")
    if code in DESIGNED:
        return setting == "iid" and code in ("k2r4d3", "fa")
    return setting not in ("alpha10", "alpha0.1", "iid-each-alone", "iid-each-apart")


def is_usual_attack(config: RunConfig) -> bool:
    """Say whether a run has the paper's attack: one group, a patch in the corner."""
    attack = config.attack
    return (attack.kind, attack.position, attack.groups) == ("patch", "corner", 1)


def choose_parts(config: RunConfig, code: str, repeat: int, n_attackers: int, smoke: bool = False) -> tuple[str, ...]:
    """Return the parts that a cell of a grid gets: the costly ones where they are compared.

    Parameters
    ----------
    config : RunConfig
        Of its run.
    code : str
        Name of its code in the table of studies.
    repeat, n_attackers : int
    smoke : bool
        Leave out what takes over a second a cell.
    """
    if config.attack.groups > 1:  # most parts are for one
        return ("groups", "unreached")
    if config.training.recipe == "modern" and not smoke:  # its own decoder is in the record; certificates by repeat
        named = ("explanations",) if code in (*TABLE1_CODES, "btc2412") else ()
        return ("paper", "unreached", *named, *(() if n_attackers else ("certificates",)))
    iid, usual = config.split.kind == "iid", config.split.kind == "iid" and is_usual_attack(config)
    # With skewed data the records say enough; who is named, and what is detected, is compared where data are IID.
    parts = ["paper", "explanations", "unreached"] if iid or smoke else []
    if repeat == 0 and n_attackers == 0 and not smoke:
        parts.append("certificates")
    if repeat == 0 and code in BESIDE:
        parts.append("assumptions")
    # Partitions and random codes are there for contrast; ten seconds a cell are for the others.
    if repeat == 0 and iid and code not in CONTRAST_CODES and not smoke:
        parts += ["discounted", "scores"]
    if usual and code in (*BESIDE, *DESIGNED):
        parts.append("dial")
    # What the decoder for two groups costs where there is one.
    if repeat == 0 and usual and code in BESIDE and not smoke:
        parts.append("groups")
    return tuple(parts)


@dataclass(frozen=True)
class Printed:
    """Suspects named rightly and wrongly, mean and standard deviation, as the paper's Table 1 prints them."""

    true_positives: float
    true_spread: float
    false_positives: float
    false_spread: float


#: The paper's Table 1, IID, 16 users, 10 repeats, by data set and code, for 1, 2 and 3 attackers.
TABLE1: dict[tuple[str, str], tuple[Printed, ...]] = {
    ("mnist", "g"): (Printed(1.0, 0.0, 0.0, 0.0), Printed(0.29, 0.42, 0.71, 0.42), Printed(0.27, 0.39, 0.73, 0.39)),
    ("mnist", "h"): (Printed(1.0, 0.0, 0.01, 0.0), Printed(1.99, 0.0, 0.01, 0.0), Printed(2.68, 0.94, 0.31, 0.94)),
    ("cifar10", "g"): (Printed(0.97, 0.02, 0.03, 0.02), Printed(0.18, 0.24, 0.82, 0.24), Printed(0.2, 0.4, 0.8, 0.4)),
    ("cifar10", "h"): (
        Printed(0.83, 0.21, 0.38, 0.36),
        Printed(1.72, 0.36, 0.26, 0.27),
        Printed(2.36, 0.56, 0.36, 0.34),
    ),
}

#: Codes a to f on the same task, averaged, in the paper's text ("Backdoor Tracking"): true and false positives.
CONTRAST: tuple[tuple[float, float], ...] = ((0.2, 0.8), (0.5, 1.1), (0.5, 1.2))

#: Codes of ours and what they are beside the paper's: h16 is our reading of its h, h has the same guarantee with fewer
#: models, and btc3416 tracks one attacker more with the models of h16.
PAPER_CODE = {"g": "g", "h16": "h", "h": "h"}
OWN_CODE = "btc3416"

#: Lines of the paper's Figure 5: code and decoder, with the words of its legend.
FIGURE5: tuple[tuple[str, str, str], ...] = (
    ("a", "plurality", "a"),
    ("b", "plurality", "b"),
    ("c", "bayes", "c"),
    ("d", "bayes", "d"),
    ("e", "plurality", "e maj"),
    ("e", "bayes", "e dec"),
    ("f", "plurality", "f maj"),
    ("f", "bayes", "f dec"),
)

#: Whose schemes the codes are.
SCHEMES = {
    "a": "DPA (partition)",
    "b": "DPA (partition)",
    "c": "paper, correcting",
    "d": "paper, correcting",
    "e": "bagging (random)",
    "f": "bagging (random)",
    "g": "paper, tracking",
    "h16": "paper's h, tracking",
    "h": "ours, tracking",
    "btc3416": "ours, tracking",
    "fa": "Finite Aggregation",
}
#: What other codes are.
DESIGNED_SCHEME = "ours, designed"
