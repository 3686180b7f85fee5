"""What the models that no attacker feeds make of triggered inputs, beside the decoder that does not know them."""

from codeward.report import Cell, Groups, Table, make_table, shaded_cell
from codeward.reproduction._accuracy import list_shares
from codeward.reproduction._grid_folder import Grid, GridRun
from codeward.reproduction._past import BESIDE
from codeward.reproduction._studies import DESIGNED


def tabulate_unreached(grid: Grid) -> Table | None:
    """Tell what the trigger itself costs from what the decoder loses, for designed codes, c and d, all attacks."""
    sizes = [size for size in grid.sizes if size]
    groups: Groups = {}
    for run in grid.pick([*BESIDE, *DESIGNED], attack=None):
        cells = [cell for size in sizes for cell in _compare(run, size)]
        if any(cell.value for cell in cells):
            groups.setdefault(run.setting.name, []).append((Cell(run.code_name), *cells))
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


def _compare(run: GridRun, size: int) -> list[Cell]:
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
