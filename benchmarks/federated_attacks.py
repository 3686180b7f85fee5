"""What stops a trigger in federated training? One global model under Flower's strategies against a code's sub-models.

    python -m benchmarks.federated_attacks --dataset digits [--seeds 0 1 2] [--attackers 1 2] [--docs]
    python -m benchmarks.federated_attacks --dataset mnist --images-per-user 1000 --data-dir data --seeds 0

The same users, data, attackers, trigger and local training everywhere; what differs is what the server does with the
replies. *One global model*: 12 users, one network, combined by ``aggregate_train`` of Flower's own strategies.
*codeward*: the sub-models of a code that is BDC(2k) with a margin, each averaged over its row, decoded by plurality, by
the paper's Bayes decoder and by the consensus decoder with k and the e = (margin - 1) / 2 that its theorem allows.

Every cell is one JSON record in ``results/federated-<dataset>/``, written when it is done; cells that are there are not
run again. ``--docs`` writes the tables into docs/federated.md, from the records alone.
"""

import argparse
import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial, reduce
from importlib.metadata import version
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codeward._files import write_text_atomic
from codeward.attacks import AttackGroup, poison_users, trigger_inputs
from codeward.codes import Code, design, inspect
from codeward.data import DatasetPair, Samples
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder, estimate_confusion
from codeward.experiments._cells import draw_attack
from codeward.experiments._federated_attacks import MaliciousUpdate, choose_targets, make_attackers
from codeward.experiments._federated_config import FederatedConfig, load_federated_config
from codeward.experiments._federation import plan_cell
from codeward.experiments._records import describe_machine, load_record, save_record, share
from codeward.experiments._setting import Draw, Setting, load_pair, prepare_setting
from codeward.federated import (
    Arrays,
    Assignment,
    Federation,
    FederationPlan,
    Reply,
    Update,
    answer,
    train_federated,
    train_model,
    train_update,
)
from codeward.federated._federation import derive_seed
from codeward.training import Ensemble, plan_models

USERS = 12
ROW_WEIGHT = 4  # a third of the users, as in the paper's code c
MARGINS = {1: 5, 2: 3}
MISSING = "not run"
RULES = ("FedAvg", "Krum", "MultiKrum", "FedMedian", "FedTrimmedAvg")
BEHAVIOURS = ("directed", "replacement", "poison")
CODED = ("poison", "replacement", "split-targets", "framing")


@dataclass(frozen=True)
class DirectedUpdate:
    """What an attacker sends that knows the server's rule: its honest update, and the backdoor alone on top.

    sent = start + drift (honest - start) + push (poisoned - honest), both trained from the same start with the same
    seed, so that their difference is the backdoor and little else.

    Attributes
    ----------
    poisoned : Samples
        The attacker's data after poisoning.
    drift, push : float
    claim : int, optional
        Samples it says it has; by default the truth.
    """

    poisoned: Samples
    drift: float
    push: float
    claim: int | None = None

    def __call__(self, assignment: Assignment, samples: Samples) -> Reply:
        """Answer for the one global model."""
        start, sent = assignment.models[0], {}
        honest, bad = train_model(assignment, 0, samples), train_model(assignment, 0, self.poisoned)
        for name, value in honest.items():
            moved = start[name] + self.drift * (value - start[name]) + self.push * (bad[name] - value)
            sent[name] = moved.astype(value.dtype)
        return answer(assignment, self.claim or len(samples), {0: sent})


#: Drift, push and claim against each rule. A mean is moved by scale. Krum takes the reply nearest to the others, and
#: one that drifts less is nearer. MultiKrum besides weighs whom it selects by the samples they claim. A median or
#: trimmed mean sees on which side a value lies and hardly how far, so the backdoor's direction is pushed to the end.
DIRECTED: dict[str, tuple[float, float, int | None]] = {
    "FedAvg": (1.0, 4.0, None),
    "Krum": (0.7, 0.3, None),
    "MultiKrum": (0.7, 0.3, 1_000_000),
    "FedMedian": (1.0, 100.0, None),
    "FedTrimmedAvg": (1.0, 100.0, None),
}


@dataclass(frozen=True)
class Trial:
    """A data set, what is trained on it and how it is attacked."""

    dataset: str
    data_dir: str | None
    images_per_user: int | None
    rounds: int
    local_epochs: int
    batch_size: int
    learning_rate: float
    architecture: str
    fraction: float
    opacity: float

    def config(self) -> FederatedConfig:
        """Return the configuration that all cells share."""
        values = {
            "dataset": self.dataset, "users": USERS, "code.name": "c", "attack.fraction": self.fraction,
            "attack.kind": "blended",
            "training.architecture": self.architecture, "training.batch_size": self.batch_size,
            "training.learning_rate": self.learning_rate,
            "federated.rounds": self.rounds, "federated.local_epochs": self.local_epochs,
        }  # fmt: skip
        if self.data_dir:
            values["data_dir"] = self.data_dir
        return load_federated_config(None, [f"{name}={value}" for name, value in values.items()])


TRIALS = {
    "digits": Trial("digits", None, None, 15, 4, 32, 1e-2, "mlp", 0.5, 0.3),
    "mnist": Trial("mnist", None, 2000, 15, 1, 64, 3e-3, "mlp", 0.5, 0.15),
}


@cache
def find_code(n_attackers: int) -> Code:
    """Design the code for k attackers and check what the consensus decoder needs of it."""
    margin = MARGINS[n_attackers]
    code = design(
        USERS, n_attackers, row_weight=ROW_WEIGHT, guarantee="correct-arbitrary", margin=margin, time_limit=10, seed=0
    ).code
    found = inspect(code).margin_arbitrary[n_attackers - 1]
    if found is None or found < margin:
        raise AssertionError(f"code for {n_attackers} attackers: margin {found}, asked for {margin}")
    return code


def prepare(trial: Trial, pair: DatasetPair, seed: int, code: Code) -> Setting:
    """Deal the data; only the first images of each user are kept where the trial says so."""
    setting = prepare_setting(trial.config(), seed, pair, code)
    if trial.images_per_user is None:
        return setting
    kept = np.arange(trial.images_per_user)
    return replace(setting, users=tuple(samples.take(kept) for samples in setting.users))


# --- one global model, combined by Flower -----------------------------------------------------------------------------


def make_strategy(rule: str, n_attackers: int) -> Any:
    """Return Flower's strategy, told the true number of attackers where it asks for one; the rest are its defaults."""
    from flwr.serverapp import strategy

    more: dict[str, Any] = {}
    if "Krum" in rule:
        more["num_malicious_nodes"] = n_attackers
    if rule == "MultiKrum":
        more["num_nodes_to_select"] = USERS - n_attackers
    return getattr(strategy, rule)(**more)


def aggregate(strategy: Any, number: int, replies: Sequence[tuple[int, Arrays]]) -> Arrays:
    """Let a Flower strategy combine replies (claimed samples, weights)."""
    from flwr.app import Array, ArrayRecord, Metadata, MetricRecord, RecordDict
    from flwr.app.message.message import make_message

    messages = []
    for user, (samples, arrays) in enumerate(replies):
        record = ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})
        content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": samples})})
        metadata = Metadata(1, f"{number}-{user}", user, 0, "", "", time.time(), 600.0, "train")
        messages.append(make_message(metadata=metadata, content=content))
    combined, _ = strategy.aggregate_train(number, messages)
    # Flower's means and medians come in double precision.
    return {name: combined[name].numpy().astype(value.dtype) for name, value in replies[0][1].items()}


def train_global(
    users: Sequence[Samples], plan: FederationPlan, strategy: Any, updates: Mapping[int, Update]
) -> Arrays:
    """Train one network on all users; seeds, local training and attackers are those of `train_federated`."""
    federation = Federation(plan)
    assignments, model = federation.assign(), federation.models[0]
    seed = plan_models(plan.code, plan.seed)[0].seed
    for number in range(1, plan.settings.rounds + 1):
        replies = []
        for user, first in assignments.items():
            asked = replace(first, round=number, seeds={0: derive_seed(seed, user, number)}, models={0: model})
            reply = updates.get(user, train_update)(asked, users[user])
            assert reply is not None
            arrays = {name: parcel.open() for name, parcel in reply.models["0"].items()}
            replies.append((int(str(reply.envelope["samples"])), arrays))
        model = aggregate(strategy, number, replies)
    return model


def attack_global(
    setting: Setting, groups: list[AttackGroup], behaviour: str, rule: str
) -> tuple[list[Samples], Mapping[int, Update]]:
    """Return everybody's data and what attackers do instead of training honestly."""
    config, seed = setting.config, [setting.config.seed, setting.repeat, int(Draw.POISON)]
    assert isinstance(config, FederatedConfig)
    users = poison_users(setting.users, groups, seed)
    if behaviour == "directed":
        liars = [user for group in groups for user in group.attackers]
        return list(setting.users), {user: DirectedUpdate(users[user], *DIRECTED[rule]) for user in liars}
    section = config.federated.model_copy(update={"behaviour": behaviour})
    return users, make_attackers(section, groups, setting.code, setting.users, setting.n_classes, seed)


def run_global(
    trial: Trial, pair: DatasetPair, seed: int, n_attackers: int, behaviour: str, rule: str
) -> dict[str, Any]:
    """Train and measure one global model."""
    setting = prepare(trial, pair, seed, Code(np.ones((1, USERS), dtype=bool)))
    group = draw_group(trial, setting, n_attackers)
    users, updates = attack_global(setting, [group], behaviour, rule)
    plan = plan_cell(setting)
    model = train_global(users, plan, make_strategy(rule, n_attackers), updates)
    ensemble = gather(setting, [model])
    evaluation = setting.evaluation
    others = evaluation.labels != group.target
    clean = ensemble.votes(evaluation)[:, 0]
    triggered = ensemble.votes(lay_trigger(setting, group))[:, 0]
    return {
        "target": group.target,
        "attackers": list(group.attackers),
        "directed": DIRECTED[rule] if behaviour == "directed" else None,
        "figures": {
            "clean_right": share(int((clean == evaluation.labels).sum()), clean.size),
            "triggered_right": share(int((triggered == evaluation.labels)[others].sum()), int(others.sum())),
            "success": share(int((triggered == group.target)[others].sum()), int(others.sum())),
        },
    }


def draw_group(trial: Trial, setting: Setting, n_attackers: int) -> AttackGroup:
    """Draw attackers, target and a random pattern that is blended into the whole image."""
    (group,) = draw_attack(setting, n_attackers)
    alpha = np.full_like(group.trigger.alpha, trial.opacity)
    return replace(group, trigger=replace(group.trigger, alpha=alpha))


def lay_trigger(setting: Setting, group: AttackGroup) -> Samples:
    """Return the evaluation inputs with the trigger on each."""
    return trigger_inputs(setting.evaluation, group, [setting.config.seed, setting.repeat, int(Draw.TRIGGER)])


def gather(setting: Setting, models: Sequence[Arrays]) -> Ensemble:
    """Return networks that can be asked."""
    weights = {
        str(number): {name: torch.tensor(value) for name, value in arrays.items()}
        for number, arrays in enumerate(models)
    }
    shape, cpu = plan_cell(setting).shape, torch.device("cpu")
    return Ensemble(tuple(weights), len(models), 0, setting.training, shape, cpu, "float32", weights, None)


# --- the sub-models of a code -----------------------------------------------------------------------------------------


def choose_framed(code: Code, attackers: Sequence[int]) -> tuple[int, ...]:
    """Choose whom to frame: the k users whose data would explain, under one target, why so many models dissent.

    The attackers plant their target only where the framed users have no part and behave well elsewhere. A decoder that
    believes in one target a trigger then sees: the framed ones attack, and the target is the true label. Attackers know
    the code and the decoder, so they try every k users on votes of models that make no mistakes of their own.
    """
    k, hit = len(attackers), code.pattern(attackers)
    sets = [users for users in combinations(range(code.n_users), k) if users != tuple(attackers)]
    votes = np.array([np.where(hit & ~code.pattern(users), 1, 0) for users in sets])
    matrix = np.full((10, 10), 0.03 / 9) + np.eye(10) * (0.97 - 0.03 / 9)
    decoder = make_bayes(code, np.repeat(matrix[None], code.n_models, axis=0), k)
    # Ties go to the first set.
    return sets[int(np.argmax(decoder.decode(votes).label_probability[:, 1]))]


def make_bayes(code: Code, confusion: NDArray[np.float64], k: int) -> BayesDecoder:
    """Return the paper's decoder with the assumptions of a run's configuration and the true k as the most attackers."""
    return BayesDecoder(code, confusion, attack_rate=0.5, success_rate=0.99, attackers_prior=(1 / (k + 1),) * (k + 1))


def attack_code(
    setting: Setting, group: AttackGroup, behaviour: str
) -> tuple[dict[int, MaliciousUpdate], NDArray[np.int64]]:
    """Return what the attackers send for the models of the code, and the target planted in each model (-1: none)."""
    config, code = setting.config, setting.code
    assert isinstance(config, FederatedConfig)
    hit, n_models = code.pattern(group.attackers), code.n_models
    seed = [config.seed, setting.repeat, int(Draw.POISON)]
    kind = "split-targets" if behaviour == "split-targets" else "replacement"
    section = config.federated.model_copy(update={"behaviour": kind, "boost": 1.0 if behaviour == "poison" else None})
    updates = make_attackers(section, [group], code, setting.users, setting.n_classes, seed)
    planted = np.full(n_models, group.target)
    if behaviour == "split-targets":
        planted = np.array(choose_targets(group, n_models, setting.n_classes))
    if behaviour == "framing":
        hit = hit & ~code.pattern(choose_framed(code, group.attackers))
        kept = {int(model): int(model) for model in np.flatnonzero(hit)}
        updates = {user: _restrict(update, kept) for user, update in updates.items()}
    return updates, np.where(hit, planted, -1)


def _restrict(update: MaliciousUpdate, models: Mapping[int, int]) -> MaliciousUpdate:
    """Keep the lies about some models only, under new numbers."""
    return replace(
        update,
        samples={models[old]: samples for old, samples in update.samples.items() if old in models},
        boosts={models[old]: boost for old, boost in update.boosts.items() if old in models},
    )


def train_hit(
    setting: Setting, honest: Sequence[Arrays], updates: Mapping[int, MaliciousUpdate], attackers: Sequence[int]
) -> list[Arrays]:
    """Train the models the attackers may touch; the others are bit for bit those of the run without attackers."""
    rows = np.flatnonzero(setting.code.pattern(attackers))
    numbers = {int(old): new for new, old in enumerate(rows)}
    plan = replace(plan_cell(setting), code=Code(setting.code.matrix[rows]))
    restricted = {user: _restrict(update, numbers) for user, update in updates.items()}
    found = train_federated(setting.users, plan, restricted).models
    models = list(honest)
    for old, new in numbers.items():
        models[old] = found[new]
    return models


def count_labels(labels: NDArray[np.int64], truth: NDArray[np.int64], planted: NDArray[np.int64]) -> dict[str, Any]:
    """Count right labels, wrong ones that some hit model was made to say, other wrong ones, and no verdicts."""
    right, none = labels == truth, labels < 0
    fooled = ~right & np.isin(labels, planted[planted >= 0])
    counts = {"right": right, "fooled": fooled, "otherwise_wrong": ~right & ~none & ~fooled, "no_verdict": none}
    return {name: share(int(found.sum()), labels.size) for name, found in counts.items()}


def measure_code(
    setting: Setting, models: Sequence[Arrays], group: AttackGroup, planted: NDArray[np.int64]
) -> dict[str, Any]:
    """Ask the models, decode three ways, and count; triggered inputs are those whose label the group is not after."""
    code, k = setting.code, len(group.attackers)
    errors = (MARGINS[k] - 1) // 2
    ensemble, validation = gather(setting, models), setting.validation
    confusion = estimate_confusion(ensemble.votes(validation), validation.labels, setting.n_classes)
    decoders: dict[str, PluralityDecoder | BayesDecoder | ConsensusDecoder] = {
        "plurality": PluralityDecoder(code, setting.n_classes),
        "bayes": make_bayes(code, confusion, k),
        "consensus": ConsensusDecoder(code, k, errors, setting.n_classes),
    }
    hit, lies = code.pattern(group.attackers), planted >= 0
    figures: dict[str, Any] = {}
    for name, samples in (("clean", setting.evaluation), ("triggered", lay_trigger(setting, group))):
        votes, labels = ensemble.votes(samples), samples.labels
        if name == "triggered" and len(set(planted[lies])) == 1:
            votes, labels = votes[labels != group.target], labels[labels != group.target]
        figures[name] = {
            rule: count_labels(decoder.predict(votes), labels, planted) for rule, decoder in decoders.items()
        }
        unhit = votes[:, ~hit] == labels[:, None]
        figures[name]["clean_models_right"] = share(int(unhit.sum()), unhit.size)
        # The theorem speaks of these inputs, and of all of them.
        covered = (~unhit).sum(axis=1) <= errors
        kept = decoders["consensus"].predict(votes[covered]) == labels[covered]
        assert kept.all() or not covered.any()
        figures[name]["theorem_applies"] = share(int(covered.sum()), covered.size)
        if name == "triggered" and lies.any():
            says = (votes == planted)[:, lies][labels[:, None] != planted[lies]]
            figures["success_in_planted_models"] = share(int(says.sum()), says.size)
    figures["models"] = {"all": code.n_models, "hit": int(hit.sum()), "planted": int(lies.sum())}
    return figures


def run_code(
    trial: Trial, setting: Setting, n_attackers: int, behaviour: str, honest: Callable[[], Sequence[Arrays]]
) -> dict[str, Any]:
    """Train and measure the sub-models under one attack."""
    group = draw_group(trial, setting, n_attackers)
    updates, planted = attack_code(setting, group, behaviour)
    models = train_hit(setting, honest(), updates, group.attackers)
    framed = list(choose_framed(setting.code, group.attackers)) if behaviour == "framing" else None
    return {
        "target": group.target, "attackers": list(group.attackers), "framed": framed, "planted": planted.tolist(),
        "code": {"matrix": setting.code.matrix.astype(int).tolist(), "margin_arbitrary": MARGINS[n_attackers]},
        "consensus": {"n_attackers": n_attackers, "n_errors": (MARGINS[n_attackers] - 1) // 2},
        "figures": measure_code(setting, models, group, planted),
    }  # fmt: skip


# --- records and tables -----------------------------------------------------------------------------------------------


def run_cells(
    trial: Trial, seeds: Sequence[int], sizes: Sequence[int], folder: Path, rules: Sequence[str] = RULES
) -> None:
    """Run every cell whose record is not there yet."""
    importlib.import_module("flwr.serverapp.strategy")  # sets its own level of logging
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    pair = load_pair(trial.config())
    for seed, k in product(seeds, sizes):
        setting = prepare(trial, pair, seed, find_code(k))
        honest = cache(partial(_train_honest, setting))
        cells = [
            ("codeward", behaviour, partial(run_code, trial, setting, k, behaviour, honest)) for behaviour in CODED
        ]
        cells += [
            (rule, behaviour, partial(run_global, trial, pair, seed, k, behaviour, rule))
            for behaviour, rule in product(BEHAVIOURS, rules)
        ]
        for defence, behaviour, run in cells:
            file = folder / f"seed{seed}-attackers{k}-{behaviour}-{defence}.json"
            if file.exists():
                continue
            begin = time.process_time()
            told = {
                "dataset": trial.dataset,
                "defence": defence,
                "behaviour": behaviour,
                "n_attackers": k,
                "seed": seed,
            }
            record = told | run()
            seconds = round(time.process_time() - begin, 1)
            settings = {name: value for name, value in asdict(trial).items() if name != "data_dir"} | {"users": USERS}
            machine = describe_machine("cpu")
            machine["versions"]["flwr"] = version("flwr")
            save_record(record | {"settings": settings, "cpu_seconds": seconds, **machine}, file)
            print(f"{file.name}: {seconds} s", flush=True)


def _train_honest(setting: Setting) -> Sequence[Arrays]:
    return train_federated(setting.users, plan_cell(setting)).models


def load_figures(folder: Path) -> dict[tuple[int, str, str], list[dict[str, Any]]]:
    """Read the figures of all records: by attackers, behaviour and defence, one entry a seed."""
    found: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("seed*.json")):
        record = load_record(file)
        cell = record["n_attackers"], record["behaviour"], record["defence"]
        found.setdefault(cell, []).append(record["figures"])
    return found


def _pool(figures: Sequence[dict[str, Any]], *path: str) -> str:
    """Return a share of all seeds together, in percent."""
    shares = [reduce(lambda inner, name: inner[name], path, entry) for entry in figures]
    return f"{100 * sum(one['count'] for one in shares) / max(1, sum(one['of'] for one in shares)):.0f}"


def write_tables(folder: Path) -> str:
    """Return both tables of a data set as Markdown; cells without a record say so."""
    found = load_figures(folder)
    sizes = sorted({cell[0] for cell in found})
    columns = [(k, behaviour) for k in sizes for behaviour in BEHAVIOURS]
    lines = ["| one global model | " + " | ".join(f"k={k} {behaviour}" for k, behaviour in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for rule in RULES:
        cells = [found.get((k, behaviour, rule), []) for k, behaviour in columns]
        texts = [
            " / ".join(_pool(cell, name) for name in ("success", "triggered_right", "clean_right")) if cell else MISSING
            for cell in cells
        ]
        lines.append(f"| {rule} | " + " | ".join(texts) + " |")
    columns = [(k, behaviour) for k in sizes for behaviour in CODED]
    lines += ["", "| codeward | " + " | ".join(f"k={k} {behaviour}" for k, behaviour in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    cells = [found.get((k, behaviour, "codeward"), []) for k, behaviour in columns]
    for name in ("plurality", "bayes", "consensus"):
        texts = [
            " / ".join(_pool(cell, "triggered", name, kind) for kind in ("fooled", "right", "no_verdict"))
            + " / "
            + _pool(cell, "clean", name, "right")
            if cell
            else MISSING
            for cell in cells
        ]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    rest = {
        "*trigger works in planted models*": ("success_in_planted_models",),
        "*models not hit right, triggered*": ("triggered", "clean_models_right"),
        "*at most e of them wrong: right for sure*": ("triggered", "theorem_applies"),
    }
    for title, path in rest.items():
        lines.append(f"| {title} | " + " | ".join(_pool(cell, *path) if cell else MISSING for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write_docs(page: Path, dataset: str, tables: str) -> None:
    """Put tables between the markers of a data set."""
    begin, end = (f"<!-- {word}: federated attacks, {dataset} -->" for word in ("begin", "end"))
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise SystemExit(f"{page}: no markers {begin} and {end}")
    head, _, rest = text.partition(begin)
    write_text_atomic(page, f"{head}{begin}\n{tables}{end}{rest.partition(end)[2]}")


def main() -> None:
    """Run what is missing, print the tables, and write them into the docs when asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", choices=sorted(TRIALS), default="digits")
    parser.add_argument("--data-dir", help="folder of data sets; by default $CODEWARD_DATA")
    parser.add_argument("--images-per-user", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--attackers", type=int, nargs="+", default=[1, 2], choices=sorted(MARGINS))
    parser.add_argument("--output", type=Path, help="by default results/federated-<dataset>")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/federated.md and run nothing")
    options = parser.parse_args()
    folder = options.output or Path("results") / f"federated-{options.dataset}"
    trial = replace(TRIALS[options.dataset], data_dir=options.data_dir or os.environ.get("CODEWARD_DATA"))
    if options.images_per_user:
        trial = replace(trial, images_per_user=options.images_per_user)
    if not options.docs:
        run_cells(trial, options.seeds, options.attackers, folder)
    tables = write_tables(folder)
    print(tables)
    if options.docs:
        write_docs(Path("docs") / "federated.md", options.dataset, tables)


if __name__ == "__main__":
    main()
