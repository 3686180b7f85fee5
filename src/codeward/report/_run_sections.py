"""What the sections of a run's page say: facts, sentences, tables and charts from records, code and vote files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from codeward._charts import Panel, draw_roc
from codeward._figures import Share, show_percent, sum_up_rates, sum_up_shares
from codeward._progress import Progress
from codeward.certificates import Agreement, CertifiedCurve
from codeward.codes import Inspection
from codeward.report._page import tell_curves
from codeward.report._table_builder import Table, TableEntry, make_table, show_number
from codeward.runs import (
    ALARM,
    Card,
    CardCurve,
    Cell,
    certify_clean,
    certify_kept,
    count_words,
    decoder_figures,
    describe_detection,
    draw_accuracy,
    load_revocation,
)

Content = dict[str, Any]
_KEPT, _SIDES = ("all", "other_labels"), ("rightly", "wrongly")
#: What the chart of accuracy is of.
_CHART_NOTE = "By number of attackers: on clean inputs at 0, else on all triggered ones."


@dataclass(frozen=True)
class Detection:
    """How well the alarms of one group of attackers tell triggered from clean inputs.

    Attributes
    ----------
    n_attackers : int
    auc, auc_others : float
        Areas under the ROC curves: all triggered inputs, and those whose label is not the target, against clean inputs
        of the same models.
    detected : dict of float to float
        Share of triggered inputs that raise an alarm by the share of clean ones that may.
    n_clean, n_every, n_others : int
        The denominators.
    """

    n_attackers: int
    auc: float
    auc_others: float
    detected: dict[float, float]
    n_clean: int
    n_every: int
    n_others: int

    @classmethod
    def read(cls, n_attackers: int, found: dict[str, Any]) -> "Detection":
        """Take what `codeward.runs.describe_detection` says."""
        detected = {float(share): value for share, value in found["detected"].items()}
        return cls(n_attackers, found["auc"], found["auc_others"], detected, *found["inputs"].values())


def name_run(cells: Sequence[Cell]) -> str:
    """Return data set, users and sub-models in a few words."""
    code = cells[0].code
    return f"{Path(cells[0].record['config']['dataset']).stem}: {code.n_users} users, {code.n_models} sub-models"


def tell_run(cells: Sequence[Cell], inspection: Inspection) -> Content:
    """Say what was run, how to run it again, and the figures to look at first."""
    record, code = cells[0].record, cells[0].code
    config, hardware = record["config"], record.get("hardware", {})
    split, attack, decoder = config["split"], config["attack"], config["decoder"]
    wanted, there = len(attack["attackers"]) * config["repeats"], len(cells)
    own = bool(config.get("train"))  # made by `codeward train`: nothing is simulated
    dates = sorted({str(cell.record.get("created", ""))[:10] for cell in cells})
    gone = load_revocation(cells[0].folder.path)
    facts = {
        "revoked": ", ".join(gone.names(gone.revoked)),
        "data set": f"{config['dataset']}, {code.n_users} users, "
        + ("each with its own samples" if own else f"{split['kind']} split")
        + (f" (alpha {split['alpha']:g})" if split.get("alpha") is not None else ""),
        "code": f"{code.n_models} sub-models of at least {code.row_weight} users each"
        + (f"; {code.construction}" if code.construction else ""),
        "attack": "none: the users' data as they are"
        if own
        else f"{attack['kind']} trigger, groups of attackers: {attack['groups']}, "
        f"{show_percent(attack['fraction'])} of an attacker's samples poisoned",
        "training": describe_training(record),
        "decoder": describe_decoder(decoder),
        "seed, repeats": f"{record['seed']}, {config['repeats']}"
        + ("" if there == wanted else f" ({there} of {wanted} records are there: the run is not finished)"),
        "made": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        "versions": ", ".join(f"{name} {number}" for name, number in record.get("versions", {}).items()),
        "hardware": ", ".join(
            str(hardware[key]) + (" cores" if key == "cores" else "")
            for key in ("gpu", "device", "machine", "cores")
            if hardware.get(key)
        ),
    }
    # Where data and models were kept decides no figure, and is nobody's business.
    kept = {key: value for key, value in config.items() if key not in ("data_dir", "store")}
    covered = inspection.correct_arbitrary if record.get("federated") else inspection.detect
    limits = (
        (
            f"More than {count_words(covered, 'user')} acting together."
            if covered
            else "Any attacker: this code promises nothing."
        )
        + " One person with several accounts counts as several.",
        "Whether somebody attacks: these are the users' own data. Accuracy and alarms were measured on test inputs."
        if own
        else f"Other attacks: what was measured is one kind ({attack['kind']} trigger), simulated, on one data set. "
        "The guarantee and the certificates do not depend on the kind; the measured figures do.",
    )
    return {
        "facts_of": facts,
        "record": record,
        "recipe": yaml.safe_dump(kept, sort_keys=False),
        "limits_of": limits,
        "again": _say_again(record, bool(facts["revoked"])),
        "revoked": facts["revoked"],
    }


def _say_again(record: Mapping[str, Any], revoked: bool) -> tuple[str, str]:
    """Return what to do before running it again, and the command."""
    config, federated = record["config"], record.get("federated")
    if federated and federated.get("engine") in ("consortium", "one-round"):
        before, command = "From the folder of the federation:", "federate collect SERVER --data TEST"
    elif config.get("train"):
        before, command = "With the same data and options:", "train DATA"
    else:
        before, command = "Save the configuration as config.yaml, then:", "run config.yaml"
        command = "federate simulate config.yaml" if federated else command
    return before, f"codeward {command} -o again" + "\ncodeward revoke again USERS -o without" * revoked


def tell_figures(cells: Sequence[Cell], inspection: Inspection) -> Content:
    """Give accuracy, alarms and suspects; whether the attack worked comes first."""
    groups = list_groups(cells)
    repeats, n_groups = len({cell.repeat for cell in cells}), cells[0].record["config"]["attack"]["groups"]
    spread = "One repeat, so there is no spread: differences of a few inputs mean nothing."
    if repeats > 1 or (n_groups > 1 and groups):
        of_groups = f" of {n_groups} groups" if n_groups > 1 else ""
        spread = f"Mean ± standard deviation over {repeats} repeat(s){of_groups}."
    unnamed = []
    if groups and max(groups) > inspection.track:
        who = f"more than {count_words(inspection.track, 'user')}" if inspection.track else "anybody"
        unnamed.append(
            f"The code does not promise to name {who}: where sets of users reach the same sub-models nobody is singled "
            "out. The single best explanation of one input, as in the paper, is the smallest set, lowest numbers first."
        )
    filled = {"attack": _tabulate_attack, "triggered": _tabulate_triggered, "named": _tabulate_named}
    attacked = {name: fill(cells, inspection) for name, fill in filled.items()} if groups else {}
    return {
        "alarm": f"{decoder_figures(cells[0].record).get('threshold', ALARM):g}",
        "attacked": bool(groups),
        "spread": spread,
        "unnamed": unnamed,
        "measured": {**attacked, "clean": _tabulate_clean(cells, inspection)},
        "accuracy_panels": [Panel("Right labels", "", draw_accuracy(cells), _CHART_NOTE)] if groups else [],
    }


def tell_detection(detections: Sequence[Detection]) -> Content:
    """Tell how well attacks are told from clean inputs, from the vote files."""
    if not detections:
        return {"detected": None, "roc_panels": []}
    rows = []
    curves: dict[int, list[tuple[Sequence[float], Sequence[float]]]] = {}
    for size in sorted({detection.n_attackers for detection in detections}):
        chosen = [detection for detection in detections if detection.n_attackers == size]
        hits = [detection.detected[0.05] for detection in chosen]
        counts = f"{chosen[0].n_clean:,} clean, {chosen[0].n_every:,} triggered, {chosen[0].n_others:,} others"
        times = f"{len(chosen)} times" if len(chosen) > 1 else ""
        auc, of_others = [found.auc for found in chosen], [found.auc_others for found in chosen]
        numbers = (show_number(auc, 3), show_number(of_others, 3), sum_up_rates(hits))
        rows.append((*enter_texts(str(size), *numbers), TableEntry(counts, spread=times)))
        curves[size] = [(list(found.detected), list(found.detected.values())) for found in chosen]
    table = make_table(
        "run-detection",
        "Detection",
        "AUC: chance that a triggered input has a higher attack probability than a clean one, ties counted half; on "
        "all triggered inputs and on those whose label is not the target (others). "
        "The threshold for 5% is set on the same clean inputs.",
        ("attackers", "AUC, all", "AUC, others", "detected at 5% false alarms, all", "inputs"),
        rows,
    )
    chart = draw_roc(curves, "ROC curves of detection")
    note = "As the threshold falls, on all triggered inputs, by number of attackers."
    return {"detected": table, "roc_panels": [Panel("Alarms against false alarms", "", chart, note)]}


def tell_certificates(curves: Mapping[str, CertifiedCurve], notes: Sequence[str]) -> Content:
    """Give certified accuracy on clean votes."""
    if not curves:
        return {"certified": None, "certified_panels": [], "certificate_notes": notes}
    total = next(iter(curves.values())).n_inputs
    own = [name for name, curve in curves.items() if curve.threat == "deterministic"]
    more = f" {own[0].capitalize()}: where these say one target, and as far as votes alone determine it." if own else ""
    table, panel = tell_curves(
        "run-certified",
        f"Share of {total:,} clean inputs with the right label that no k users can change, whatever the sub-models "
        f"they reach say (threat model arbitrary).{more} At k = 0: right at all.",
        {f"{name}, {curve.threat}": CardCurve.of(curve) for name, curve in curves.items()},
    )
    return {"certified": table, "certified_panels": [panel], "certificate_notes": notes}


def _tabulate_attack(cells: Sequence[Cell], inspection: Inspection) -> Table:
    """Say whether the attack worked at all: the share of target votes in hit and in clean models."""
    code, rows = cells[0].code, []
    names = next((cell.class_names for cell in cells if cell.has_votes), None)
    for size, groups in list_groups(cells).items():
        who = "; ".join(
            f"{', '.join(map(code.user_name, group['attackers']))} → "
            f"{names[group['target']] if names and group['target'] < len(names) else group['target']}"
            for group in groups[:4]
        ) + (f"; {len(groups) - 4} more" if len(groups) > 4 else "")
        shares = [
            show_share([group["success"][models] for group in groups]) for models in ("hit_models", "clean_models")
        ]
        rows.append((_enter_size(size, inspection), *shares, TableEntry(who, mark="wrap")))
    return make_table(
        "run-attack",
        "Whether the trigger works",
        "Votes for the target on triggered inputs whose label is another. Little in hit models: nothing was defended "
        "against.",
        ("attackers", "hit models say the target", "clean models say the target", "attackers → target"),
        rows,
    )


def _tabulate_clean(cells: Sequence[Cell], inspection: Inspection) -> Table:
    """Right labels and false alarms on inputs without a trigger."""
    rows = []
    for size in sorted({cell.n_attackers for cell in cells}):
        chosen = [cell.record for cell in cells if cell.n_attackers == size]
        plain = [record["figures"]["clean"]["all"] for record in chosen]
        own = [decoder_figures(record)["clean"] for record in chosen]
        shares = [show_share([part[name] for part in plain]) for name in ("single_model", "plurality")]
        shares += [show_share([part[name] for part in own]) for name in ("right", "alarms")]
        rows.append((_enter_size(size, inspection), *shares))
    return make_table(
        "run-clean",
        "Clean inputs",
        "Shares of all test inputs, without trigger; with attackers, the models they poisoned judge them too.",
        ("attackers", "one sub-model right", "plurality vote right", "decoder right", "false alarms"),
        rows,
    )


def _tabulate_triggered(cells: Sequence[Cell], inspection: Inspection) -> Table:
    """Right labels, alarms and suspects on triggered inputs, on all and on those whose label is not the target."""
    rows = []
    for size, groups in list_groups(cells).items():
        own = [group for cell in cells if cell.n_attackers == size for group in decoder_figures(cell.record)["groups"]]
        shares = [show_share([group["triggered"][kept]["plurality"] for group in groups]) for kept in _KEPT]
        shares += [show_share([group[kept][name] for group in own]) for name in ("right", "alarms") for kept in _KEPT]
        known = [group["all"]["unreached"] for group in own if "unreached" in group["all"]]
        rows.append((_enter_size(size, inspection), *shares, show_share(known) if known else TableEntry("")))
    heads = [f"{what}, {of}" for what in ("plurality right", "decoder right", "alarms") for of in ("all", "others")]
    return make_table(
        "run-triggered",
        "Triggered inputs",
        "All: every triggered test input. Others: those whose true label is not the target. Known: right labels of the "
        "plurality of models that no attacker reaches, all.",
        ("attackers", *heads, "known"),
        rows,
    )


def _tabulate_named(cells: Sequence[Cell], inspection: Inspection) -> Table:
    """Who was named, by one input with the paper's decoder and by several together."""
    rows = []
    for size, groups in list_groups(cells).items():
        own = [group for cell in cells if cell.n_attackers == size for group in decoder_figures(cell.record)["groups"]]
        pooled = [group["pooled"] for group in own if group["pooled"] is not None]
        together = [show_share([one[side] for one in pooled]) if pooled else TableEntry("") for side in _SIDES]
        right, wrong = (
            show_number([group["tracking"][side] for group in groups]) for side in ("true_positives", "false_positives")
        )
        rows.append((_enter_size(size, inspection), *together, TableEntry(right, f"of {size}"), TableEntry(wrong)))
    return make_table(
        "run-named",
        "Who was named",
        "Together: evidence of five flagged inputs pooled; a user is named who is in every good explanation. Attackers "
        "named, of all there were; and times that anybody else was. One input: the paper's decoder's single best "
        "explanation, mean number of users per triggered input.",
        ("attackers", "together, rightly", "together, wrongly", "one input, rightly", "one input, wrongly"),
        rows,
    )


def list_groups(cells: Sequence[Cell]) -> dict[int, list[dict[str, Any]]]:
    """Return the attacking groups of all repeats by number of attackers, without 0."""
    found: dict[int, list[dict[str, Any]]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.n_attackers, cell.repeat)):
        if cell.record["figures"]["groups"]:
            found.setdefault(cell.n_attackers, []).extend(cell.record["figures"]["groups"])
    return found


def show_share(shares: Sequence[Share]) -> TableEntry:
    """Return `sum_up_shares` as an entry of a table."""
    return TableEntry(*sum_up_shares(shares))


def _enter_size(size: int, inspection: Inspection) -> TableEntry:
    """Return a number of attackers, marked where the code does not promise to correct so many."""
    return TableEntry(str(size)) if size <= inspection.correct else TableEntry(str(size), "past the guarantee", "past")


def enter_texts(*texts: str) -> tuple[TableEntry, ...]:
    """Return plain texts as entries of a row."""
    return tuple(TableEntry(text) for text in texts)


def measure_detection(cells: Sequence[Cell], progress: Progress) -> list[Detection]:
    """Return detection as the records say it; records of the paper's decoder do not, so its votes are decoded here.

    Cells without vote files are then left out.
    """
    found: list[Detection] = []
    for known in cells:
        told = [group.get("detection") for group in decoder_figures(known.record)["groups"]]
        if not any(told) and known.n_attackers and known.has_votes:
            cell = Cell(known.folder, known.repeat, known.n_attackers)  # its votes go when it is done
            decoder = cell.decoder("bayes")
            clean = decoder.decode(cell.clean.votes).attack_probability
            for group, triggered in zip(cell.groups, cell.triggered, strict=True):
                alarmed: NDArray[np.float64] = decoder.decode(triggered.votes).attack_probability
                others = np.asarray(triggered.labels != group.target)
                told.append(describe_detection(clean, alarmed, others) if others.any() else None)
        found += [Detection.read(known.n_attackers, one) for one in told if one]
        progress.advance()
    return sorted(found, key=lambda detection: detection.n_attackers)


def certify_cells(
    cells: Sequence[Cell], inspection: Inspection, progress: Progress
) -> tuple[dict[str, CertifiedCurve], list[str]]:
    """Certify the clean votes of models that nobody attacked, all repeats together (`codeward.runs.certify_clean`).

    No curves where there are no such votes, and where the folder's card says that nothing is certified.
    """
    chosen = [cell for cell in cells if cell.n_attackers == 0 and cell.has_votes]
    file = cells[0].folder.card_file
    card = Card.load(file) if file.is_file() else None
    if chosen and (card is None or card.certified):
        return certify_clean(chosen, inspection, progress)
    progress.advance(2)
    if chosen and card is not None:
        return {}, [f"Nothing is certified: {warning}" for warning in card.warnings]
    return {}, ["The folder has no votes of models trained without attackers, which certificates are about."]


def certify_promise(cells: Sequence[Cell]) -> Agreement | None:
    """Find what the run's decoder keeps of the code's promise, as fitted to its first cell (`certify_kept`).

    None where the folder has no votes.
    """
    cell = min(cells, key=lambda cell: (cell.n_attackers, cell.repeat))
    return certify_kept(cell) if cell.has_votes else None


def describe_training(record: dict[str, Any]) -> str:
    """Return the recipe: a network and its epochs, or the model that `codeward train` was given."""
    trained, given = record["training"], record["config"].get("train") or {}
    if "architecture" in trained:
        return f"{trained['architecture']}, {trained['epochs']} epochs"
    return str(
        (given.get("backbone") and f"heads on {given['backbone']}") or given.get("model") or "the default for such data"
    )


def describe_decoder(section: dict[str, Any]) -> str:
    """Return the decoder of a configuration with what it assumes."""
    name, many = section.get("name", "bayes"), f"up to {section['max_attackers']} attackers expected"
    if name in ("bayes", "groups"):
        return f"{name}, {many}, attack rate {section['attack_rate']:g}, success rate {section['success_rate']:g}"
    return f"{name}, {many}, {show_percent(section['false_alarm_rate'])} false alarms"
