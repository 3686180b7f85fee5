"""The sections of a grid's page."""

from collections.abc import Sequence
from html import escape

from codeward.codes import Inspection, inspect
from codeward.report import LIMITS, THREATS, Table, draw_code, sum_up_shares, write_section, write_table
from codeward.reproduction._accuracy import count_progress, list_records, list_shares
from codeward.reproduction._grid_folder import Grid, GridRun
from codeward.reproduction._naming import list_tracking, tracking_cell
from codeward.reproduction._panels import (
    CERTIFIED_STYLES,
    draw_certified,
    draw_designed,
    draw_figure5,
    write_legend,
)
from codeward.reproduction._paper import DESIGNED_SCHEME, PAPER_CODE, SCHEMES, TABLE1
from codeward.reproduction._rates import draw_dial
from codeward.reproduction._roc import draw_roc

#: Sections by id, with the words of the links at the top.
SECTIONS = {
    "there": "What is complete",
    "attack": "Does the attack work?",
    "figure5": "Figure 5: accuracy under attack",
    "table1": "Table 1: naming attackers",
    "past": "Past the paper",
    "certified": "Certified accuracy",
    "codes": "The codes and what they promise",
    "users": "Who holds what",
    "limits": "What is not covered",
}


def write_links(shown: Sequence[str]) -> str:
    """Return links to the sections that the page has."""
    items = "".join(f'<li><a href="#{name}">{escape(SECTIONS[name])}</a></li>' for name in shown)
    return f'<nav aria-label="Sections"><ul class="toc">{items}</ul></nav>'


def write_part(name: str, body: str) -> str:
    """Return a section; nothing where it has no body."""
    return write_section(name, SECTIONS[name], body) if body else ""


def write_progress(grid: Grid, tables: Sequence[Table]) -> str:
    """Say what is complete and what is not."""
    there, planned, studies = count_progress(grid)
    words = (
        f'<p class="lead">{there:,} of {planned:,} planned cells are there, {studies:,} of them studied beyond their '
        "record. A cell is one repeat with one number of attackers. Figures below are of these cells only; nothing is "
        "extrapolated.</p>"
    )
    return write_part(
        "there", f'{_write_tiles(grid, there, planned)}{words}<div class="side-by-side">{_join(tables)}</div>'
    )


def write_attack(tables: Sequence[Table]) -> str:
    """Say first whether anything was to be defended against."""
    words = (
        '<p class="lead">Attackers stamp a trigger on some of their images and label them with one target. An attack '
        "that does not take hold in the models it reaches makes every defence look good, so this comes first. "
        "Attackers are drawn at random in every repeat, the same for all codes, and nested: 1 within 2 within 3. In "
        "codes c and d some users feed the very same models; who is drawn together decides how many are hit.</p>"
    )
    return write_part("attack", words + (_join(tables) or "<p>No attack was simulated in this grid.</p>"))


def write_figure5(grid: Grid, tables: Sequence[Table]) -> str:
    """Draw the figure as the paper does, and give its numbers."""
    panels = draw_figure5(grid)
    if not panels:
        return write_part("figure5", _join(tables))
    words = (
        '<p class="lead">Right labels against the number of attackers: on clean inputs at 0, on all triggered inputs '
        "after. Points are means over repeats, bars one standard deviation (none with one repeat). Dashed: plurality "
        "vote. Solid: the paper's decoder. A vote falls to the share of inputs whose label is the target anyway. See "
        '<a href="#attack">whether the attack works</a> and <a href="#codes">the codes</a>.</p>'
    )
    return write_part("figure5", words + panels + _join(tables))


def write_table1(tables: Sequence[Table]) -> str:
    """Say who was named."""
    if not tables:
        return ""
    words = (
        '<p class="lead">Which users the decoder names as attackers on a triggered input. The paper\'s decoder may '
        "name any number and prefers few. Codes g and h16 are our readings of the paper's g and h; see "
        '<a href="#codes">the codes</a>.</p>'
    )
    return write_part("table1", words + _join(tables))


def write_past(grid: Grid, tables: Sequence[Table]) -> str:
    """Show codes, attacks, decoders and assumptions that the paper does not have."""
    drawn = draw_designed(grid)
    words = (
        '<p class="lead">Codes of the designer at the row weights of c and d, Finite Aggregation, other triggers, '
        "other decoders on the same votes, and the paper's decoder with wrong assumptions. In the panels the number of "
        "models stands beside the code.</p>"
    )
    pictures = draw_roc(grid) + draw_dial(grid)
    return write_part("past", words + drawn + _join(tables) + pictures) if drawn or tables else ""


def write_certified(grid: Grid, tables: Sequence[Table]) -> str:
    """Show certified accuracy of all codes beside published schemes."""
    panels, kinds = draw_certified(grid)
    if not panels and not tables:
        return ""
    words = (
        '<p class="lead">Inputs whose right label provably no k users can change. Partition (a, b) with a plurality '
        "vote is DPA, random rows (e, f) are bagging, fa is Finite Aggregation. See also what "
        '<a href="#codes">the codes promise</a> and <a href="#limits">what is not covered</a>.</p>'
    )
    legend = write_legend([(CERTIFIED_STYLES[kind], CERTIFIED_STYLES[kind].words) for kind in kinds])
    return write_part("certified", words + _join(tables[:1]) + (legend + panels if panels else "") + _join(tables[1:]))


def write_codes(grid: Grid) -> str:
    """Show every code: picture and promises."""
    runs: dict[str, GridRun] = {}
    for run in grid.runs:
        runs.setdefault(run.code.digest, run)
    rows, pictures = [], ""
    for run in runs.values():
        code, found = run.code, inspect(run.code)
        name = escape(run.code_name)
        rows.append([name, *_list_promises(run, found)])
        pictures += (
            f"<figure>{draw_code(code, numbered=False)}<figcaption><b>{name}</b> {code.n_models} by {code.n_users}<br>"
            f"{escape(SCHEMES.get(run.code_name, DESIGNED_SCHEME))}</figcaption></figure>"
        )
    table = write_table(
        "What the codes promise",
        "Colluding users up to which each property holds, deterministic where nothing else is said. Margin d leaves "
        "room for (d - 1) / 2 wrong votes of models that no attacker reaches, rounded down.",
        (
            "code",
            "models",
            "users a model",
            "detect",
            "recover the label",
            "recover, arbitrary",
            "name attackers",
            "margin at k = 1, 2, 3",
        ),
        rows,
    )
    words = (
        '<p class="lead">A row is a sub-model, a column a user; filled where the sub-model learns from the user. '
        "Detect: some model stays clean. Recover the label, name attackers: no two sets of attackers look alike.</p>"
    )
    return write_part("codes", f'{words}<div class="codes">{pictures}</div>{THREATS}{table}')


def write_users(pictures: Sequence[tuple[str, str]]) -> str:
    """Show class shares of the users, by setting."""
    figures = "".join(
        f"<figure><figcaption><b>{escape(name)}</b></figcaption>{picture}</figure>" for name, picture in pictures
    )
    words = '<p class="lead">Share of each class in the data of each user, in the first repeat.</p>'
    return write_part("users", f'{words}<div class="panels two">{figures}</div>' if figures else "")


def write_limits() -> str:
    """Say what no code covers."""
    first = "More users acting together than a code promises. One person with several accounts counts as several."
    listed = "".join(f"<li>{escape(item)}</li>" for item in (first, *LIMITS))
    return write_part("limits", f"<ul>{listed}</ul>")


def _list_promises(run: GridRun, found: Inspection) -> list[str]:
    weights = sorted({int(weight) for weight in run.code.matrix.sum(axis=1)})
    users = str(weights[0]) if len(weights) == 1 else f"{weights[0]} to {weights[-1]}"
    held = (found.detect, found.correct, found.correct_arbitrary, found.track)
    margins = ", ".join("not computed" if margin is None else str(margin) for margin in found.margin[:3])
    return [str(run.code.n_models), users, *(str(k) if k else "nobody" for k in held), margins]


def _write_tiles(grid: Grid, there: int, planned: int) -> str:
    """Return the headline figures of the first data set: the largest attack on code c and on the paper's h."""
    tiles = [("cells there", f"{there / planned:.0%}", f"{there:,} of {planned:,}")] if planned else []
    top = max(grid.sizes)
    for run in grid.pick(["c"])[:1]:
        hit = [g["success"]["hit_models"] for r in list_records(run, top) for g in r["figures"]["groups"]]
        if hit:
            tiles.append((f"{run.setting.name}: trigger works in hit models", *sum_up_shares(hit)))
        for decoder, word in (("plurality", "a vote"), ("bayes", "the decoder")):
            shares = list_shares(run, top, decoder)
            if top and shares:
                tiles.append((f"code c, {top} attackers: {word} is right", *sum_up_shares(shares)))
    for run in grid.pick(["h16", "h"])[:1]:
        printed = TABLE1.get((run.config.dataset, PAPER_CODE[run.code_name]))
        found = list_tracking(run, 2, "bayes")
        if found and printed is not None:
            cell = tracking_cell(found)
            said = f"paper: {printed[1].true_positives:.2f} / {printed[1].false_positives:.2f}; {cell.of}"
            tiles.append((f"code {run.code_name}, 2 attackers: named rightly / wrongly", cell.value, said))
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd>{escape(of)}</dd></div>" for name, value, of in tiles
    )
    return f'<dl class="tiles">{shown}</dl>'


def _join(tables: Sequence[Table]) -> str:
    return "".join(table.to_html() for table in tables)
