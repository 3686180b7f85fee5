"""What the paper prints, to stand beside what was measured."""

from dataclasses import dataclass


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
