"""Tables from studies, past the paper: designed codes, other attacks and decoders, rates, detection, certificates."""

from dataclasses import replace
from itertools import product
from typing import Any

from codeward.codes import inspect
from codeward.report import (
    Groups,
    Share,
    Table,
    TableEntry,
    auc_cell,
    count_attackers,
    make_table,
    shaded_cell,
    share_cell,
)
from codeward.reproduction._grid_folder import (
    Grid,
    GridRun,
    list_certified,
    list_common,
    list_shares,
    list_success,
)
from codeward.reproduction._studies import BESIDE, DESIGNED, DESIGNED_SCHEME, SCHEMES

DECODERS = {
    "plurality": "vote",
    "bayes": "paper's decoder",
    "discounted": "our decoder",
    "soft": "score decoder, earlier",
}
#: Of the score decoder's figures.
EARLIER = "Earlier: the score decoder as it was when these models were trained; their scores were not kept."
#: Certificates by how their names in studies start, in words.
CERTIFICATES = (("plurality", "vote"), ("runoff", "run-off"), ("consensus", "consensus"), ("bayes", "paper's"))


def compare_designed(grid: Grid) -> dict[tuple[str, int], tuple[list[GridRun], set[int]]]:
    """Return designed codes and the paper's at the same row weight, by setting, with the repeats that all of them have.

    Only settings in which some designed code has records; attackers and data of a repeat are the same for all codes.
    """
    found: dict[tuple[str, int], list[GridRun]] = {}
    for run in grid.pick([*BESIDE, *DESIGNED]):
        found.setdefault((run.setting.name, run.code.row_weight), []).append(run)
    return {
        key: (runs, set.intersection(*(run.repeats for run in runs)))
        for key, runs in found.items()
        if any(run.code_name in DESIGNED for run in runs)
    }


def tabulate_designed(grid: Grid) -> Table:
    """Models and accuracy of designed codes beside c and d."""
    groups: Groups = {}
    for (setting, weight), (runs, repeats) in compare_designed(grid).items():
        for run in runs:
            cells = [share_cell(list_shares(run, size, "bayes", repeats=repeats)) for size in grid.sizes]
            row = (TableEntry(run.code_name), TableEntry(str(run.code.n_models)), *cells)
            groups.setdefault(f"{setting}, at least {weight} users a model", []).append(row)
    return make_table(
        "designed",
        "Designed codes beside c and d",
        "Right labels of the paper's decoder by number of attackers, on the repeats that all codes of a group have. "
        "btc2412: what `codeward run` takes, which names two. k2r4d3: designed to correct 2 attackers with 4 users a "
        "model and margin 3. fa: Finite Aggregation. Of the calibrated decoder: see its own table.",
        ("code", "models", *map(count_attackers, grid.sizes)),
        groups,
    )


def tabulate_attacks(grid: Grid) -> Table:
    """Other attacks on c and d beside the paper's, whether they work first."""
    others = grid.pick(BESIDE, attack=True)
    repeats = {repeat for run in others for repeat in run.repeats}
    datasets = {(run.setting.dataset, run.config.split.kind) for run in others}
    usual = [run for run in grid.pick(BESIDE) if (run.setting.dataset, run.config.split.kind) in datasets]
    sizes = [size for size in grid.sizes if size]
    groups: Groups = {}
    for run in [*usual, *others] if others else ():
        found = {size: list_success(run, size, repeats=repeats) for size in sizes}
        cells = [share_cell(found[size], weak_under=0.9) for size in sizes]
        for decoder in ("plurality", "bayes"):
            cells += [share_cell(list_shares(run, size, decoder, repeats=repeats)) for size in sizes]
        name = run.setting.name if run.setting.attack else f"{run.setting.name}, the paper's patch in a corner"
        if any(cell.value for cell in cells):
            groups.setdefault(name, []).append((TableEntry(run.code_name), *cells))
    kinds = ("trigger works, hit models", "vote", "paper's decoder")
    return make_table(
        "attacks",
        "Other attacks",
        "Votes for the target in hit models, then right labels on all triggered inputs, by number of attackers (of "
        "each group). Marked: the trigger works on fewer than 90%.",
        ("code", *(f"{kind}, {size}" for kind in kinds for size in sizes)),
        groups,
    )


def tabulate_groups(grid: Grid) -> Table:
    """Show decoders that know one attacking group and two, where there are two, and where there is one."""
    names = {"plurality": "vote", "bayes": "paper's decoder", "two-groups": "for two groups"}
    groups: Groups = {}
    for run in grid.pick(attack=None):
        studies = [(study["n_attackers"], study["groups"]) for study in run.studies if "groups" in study]
        cells = []
        for size, name in product(grid.sizes, names):
            here = [found for k, found in studies if k == size]
            # All triggers together.
            counts = [
                [part[name]["right"] for part in (found["triggered"] if size else [found["clean"]])] for found in here
            ]
            cells.append(share_cell([{key: sum(c[key] for c in found) for key in ("count", "of")} for found in counts]))
        if studies:
            groups.setdefault(run.setting.name, []).append((TableEntry(run.code_name), *cells))
    return make_table(
        "groups",
        "Independent groups",
        "Right labels of the plain vote, the paper's decoder, which knows one attacking group, and ours for two; on "
        "clean inputs at 0, else on the triggered inputs of all groups, by number of attackers (of each group).",
        ("code", *(f"{size}: {words}" for size in grid.sizes for words in names.values())),
        groups if any("2 groups" in name for name in groups) else {},
    )


def tabulate_decoders(grid: Grid) -> list[Table]:
    """Right labels and alarms by decoder; the best mean of each number of attackers is marked."""
    runs = [run for run in grid.pick(attack=None) if any(study.get("decoders") for study in run.studies)]
    names = [name for name in DECODERS if any(name in s.get("decoders", {}) for run in runs for s in run.studies)]
    tables = []
    for figure, title, note, kept in (
        ("right", "Right labels by decoder", "0: clean inputs; else all triggered inputs. Bold: the best mean.", "all"),
        (
            "alarms",
            "Alarms by decoder",
            "0: false alarms on clean inputs; else alarms on triggered inputs whose label is not the target.",
            "other_labels",
        ),
    ):
        shown = [name for name in names if name != "plurality" or figure == "right"]
        groups: Groups = {}
        for run in runs:
            cells: list[TableEntry] = []
            for size in grid.sizes:
                found = list_common(run, size, "decoders", shown)
                shares = [
                    [c["triggered"][kept][figure] if size else c["clean"][figure] for c in found[n]] for n in shown
                ]
                cells += _compare(shares, figure == "right")
            groups.setdefault(run.setting.name, []).append((TableEntry(run.code_name), *cells))
        heads = ("code", *(f"{size}: {DECODERS[name]}" for size in grid.sizes for name in shown))
        said = f"By number of attackers, on the repeats that all decoders of a code have. {note} {EARLIER}"
        tables.append(make_table(f"decoders-{figure}", title, said, heads, groups, folded=figure != "right"))
    return tables


def tabulate_detection(grid: Grid) -> Table:
    """Area under the ROC curve, and hits at 5% false alarms."""
    sizes = [size for size in grid.sizes if size]
    runs = [run for run in grid.pick(attack=None) if any(study.get("detection") for study in run.studies)]
    groups: Groups = {}
    for run in runs:
        common = {size: list_common(run, size, "detection", list(DECODERS)) for size in sizes}
        for name in DECODERS:
            found = {size: common[size][name] for size in sizes}
            if any(found.values()):
                of = sorted({figure["hits_at_5"]["of"] for figures in found.values() for figure in figures})
                inputs = f"{of[0]:,}" if len(of) == 1 else f"{of[0]:,} to {of[-1]:,}"
                cells = [auc_cell([figure["auc"] for figure in found[size]], inputs) for size in sizes]
                cells += [shaded_cell([figure["hits_at_5"] for figure in found[size]]) for size in sizes]
                label = TableEntry(f"{run.code_name}, {DECODERS[name]}")
                groups.setdefault(run.setting.name, []).append((label, *cells))
    return make_table(
        "detection",
        "Telling triggered inputs from clean ones",
        "AUC of the ROC curve of the attack probability (1: always told apart, 0.5: guessing), and the share found at "
        "5% false alarms, on triggered inputs whose label is not the target; by number of attackers, on "
        f"the repeats that all decoders of a code have. {EARLIER}",
        ("code and decoder", *(f"AUC, {size}" for size in sizes), *(f"found at 5%, {size}" for size in sizes)),
        groups,
        quiet=True,
    )


def tabulate_certified_shades(grid: Grid) -> Table:
    """Give the certified accuracy of all codes at a glance, IID settings only."""
    runs = [run for run in grid.pick() if run.config.split.kind == "iid"]
    tops = {kind: max((k for run in runs for k in list_certified(run, kind)), default=-1) for kind, _ in CERTIFICATES}
    groups: Groups = {}
    for run in runs:
        cells = [
            shaded_cell(list_certified(run, kind).get(k, [])) for kind, _ in CERTIFICATES for k in range(tops[kind] + 1)
        ]
        if any(cell.value for cell in cells):
            row = (TableEntry(run.code_name), *cells, TableEntry(SCHEMES.get(run.code_name, DESIGNED_SCHEME)))
            groups.setdefault(f"{run.setting.name}, {run.config.users} users", []).append(row)
    heads = [f"{word}, k = {k}" for kind, word in CERTIFICATES for k in range(tops[kind] + 1)]
    return make_table(
        "certified-shades",
        "Certified accuracy at a glance",
        "Right labels that no k users can change. Vote, run-off and consensus: whatever the models they reach say. "
        "Paper's decoder: if these all say one target.",
        ("code", *heads, "scheme"),
        groups,
        quiet=True,
    )


def tabulate_certified(grid: Grid) -> Table:
    """Certified accuracy of every code, threat model and decoder."""
    runs = [run for run in grid.pick() if any(study.get("certified") for study in run.studies)]
    curves = {
        (run.path, name): c["threat"] for run in runs for s in run.studies for name, c in s.get("certified", {}).items()
    }
    top = max((k for run in runs for k in list_certified(run, "")), default=0)
    groups: Groups = {}
    for run in runs:
        for (path, name), threat in curves.items():
            if path == run.path:
                found = list_certified(run, name)
                cells = [share_cell(found.get(k, [])) for k in range(top + 1)]
                scheme = SCHEMES.get(run.code_name, DESIGNED_SCHEME)
                row = (TableEntry(f"{run.code_name}, {name}"), TableEntry(threat), TableEntry(scheme), *cells)
                groups.setdefault(run.setting.name, []).append(row)
    return make_table(
        "certified-all",
        "Certified accuracy of every code, decoder and threat model",
        "Share of clean inputs, judged by models that nobody attacked, with the right label that no k users can "
        "change: whatever the models they reach say (arbitrary), or if these all say one target (deterministic). At "
        "k = 0: right at all. Empty: not searched.",
        ("code and decoder", "threat model", "scheme", *(f"k = {k}" for k in range(top + 1))),
        groups,
        folded=True,
    )


def _compare(choices: list[list[Share]], marked: bool) -> list[TableEntry]:
    """Return cells side by side, the highest mean marked; equals share the mark."""
    means = [sum(s["count"] / s["of"] for s in shares) / len(shares) if shares else -1.0 for shares in choices]
    best = round(max(means), 3)
    cells = [share_cell(shares) for shares in choices]
    return [
        replace(cell, mark="good" if marked and cell.value and round(mean, 3) == best else "")
        for cell, mean in zip(cells, means, strict=True)
    ]


def tabulate_dial(grid: Grid) -> Table:
    """Show what becomes of clean and of triggered inputs as the paper's decoder expects fewer attacks."""
    return _tabulate_rates(
        grid,
        grid.pick([*BESIDE, *DESIGNED]),
        "dial",
        "The attack rate as a dial",
        "The paper's decoder told that a share A of inputs is triggered (the paper: A = 0.5, S = 0.99). First the "
        "most attackers whose every attack it undoes when all models that they leave alone are right (proved with the "
        "confusion matrices of every repeat, up to 3), and the most that the code lets any decoder undo. Without "
        "attackers on clean inputs, else right labels on all triggered inputs.",
        with_kept=True,
    )


def tabulate_assumed(grid: Grid) -> Table:
    """Show what becomes of the paper's decoder under wrong rates of attack and success."""
    return _tabulate_rates(
        grid,
        grid.pick(attack=None),
        "assumed",
        "Wrong assumptions",
        "The paper's decoder told that a share A of inputs is triggered and that hit models obey with probability S "
        "(the paper: A = 0.5, S = 0.99). Without attackers on clean inputs, else right labels on all triggered inputs.",
    )


def _tabulate_rates(
    grid: Grid, runs: list[GridRun], part: str, title: str, note: str, with_kept: bool = False
) -> Table:
    sizes = [size for size in grid.sizes if size]
    groups: Groups = {}
    for run in runs:
        rows = [(study["n_attackers"], row) for study in run.studies for row in study.get(part, [])]
        name = f"{run.setting.name}, code {run.code_name}"
        for rate, success in dict.fromkeys((row["attack_rate"], row["success_rate"]) for _, row in rows):
            here = [(size, r) for size, r in rows if (r["attack_rate"], r["success_rate"]) == (rate, success)]
            cells = [_show_kept(run, [row for _, row in here])] if with_kept else []
            cells += [
                share_cell([row["clean_right"] for size, row in here if size == 0]),
                share_cell([row["clean_alarms"] for size, row in here if size == 0]),
                *(share_cell([row["right"] for k, row in here if k == size and "right" in row]) for size in sizes),
            ]
            groups.setdefault(name, []).append((TableEntry(f"A = {rate:g}, S = {success:g}"), *cells))
    kept = ("undone if no model errs",) if with_kept else ()
    heads = ("assumed", *kept, "clean right", "false alarms", *map(count_attackers, sizes))
    return make_table(part, title, note, heads, groups, folded=True)


def _show_kept(run: GridRun, rows: list[dict[str, Any]]) -> TableEntry:
    """Return the attackers that are undone as long as no model errs, beside those that the code could undo."""
    kept = [row["kept"] for row in rows if "kept" in row]
    if not kept:
        return TableEntry("")
    told = str(min(kept)) if min(kept) == max(kept) else f"{min(kept)} to {max(kept)}"
    return TableEntry(told, f"code: {inspect(run.code).correct}")


def tabulate_unreached(grid: Grid) -> Table:
    """Tell what the trigger itself costs from what the decoder loses, for designed codes, c and d, all attacks."""
    sizes = [size for size in grid.sizes if size]
    groups: Groups = {}
    for run in grid.pick([*BESIDE, *DESIGNED], attack=None):
        cells = [cell for size in sizes for cell in _list_unreached(run, size)]
        if any(cell.value for cell in cells):
            groups.setdefault(run.setting.name, []).append((TableEntry(run.code_name), *cells))
    kinds = ("one model, clean", "one model, triggered", "attackers known", "paper's decoder")
    return make_table(
        "unreached",
        "What the trigger itself costs",
        "Right labels of one model that no attacker feeds, on clean and on triggered inputs; of all such models by "
        "likelihood, as if the attackers were known; and of the paper's decoder, which does not know them. By number "
        "of attackers (of each group), on all inputs. Empty: every model is reached.",
        ("code", *(f"{size}: {kind}" for size in sizes for kind in kinds)),
        groups,
        folded=True,
        quiet=True,
    )


def _list_unreached(run: GridRun, size: int) -> list[TableEntry]:
    found = {
        study["repeat"]: study["unreached"]
        for study in run.studies
        if study["n_attackers"] == size and study.get("unreached", {}).get("models")
    }
    figures = list(found.values())
    clean = [part["single"]["clean"] for part in figures]
    single, known = ([share for part in figures for share in part[name]["triggered"]] for name in ("single", "known"))
    decoded = list_shares(run, size, "bayes", repeats=set(found))
    return [shaded_cell(shares) for shares in (clean, single, known, decoded)]
