"""What a run's page opens with: whether it was defended, in numbers, and one triggered input vote by vote."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from codeward._figures import show_percent
from codeward.codes import Code, Inspection
from codeward.report._table_builder import count_attackers, sum_up_shares
from codeward.runs import Cell, decoder_figures, rate, state_guarantees, sum_up_guarantees

#: A label counts as defended where the decoder finds at least this part of what models out of reach know.
DEFENDED = 0.9
#: A trigger that fewer hit models than this obey is no attack.
WORKS = 0.5


def conclude(cells: Sequence[Cell], inspection: Inspection) -> dict[str, Any]:
    """Say first whether the run was defended, with figures, what is guaranteed, and the figures to look at."""
    promise = sum_up_guarantees(state_guarantees(inspection))
    attacked = [cell for cell in cells if cell.record["figures"]["groups"]]
    if not attacked:
        return {"conclusion": "No attack was simulated.", "verdict": "", "guaranteed": promise, "tiles_of": []}
    covered = min(inspection.correct, inspection.track) or inspection.correct
    within = [cell.n_attackers for cell in attacked if cell.n_attackers <= covered]
    size = max(within) if within else min(cell.n_attackers for cell in attacked)
    chosen = [cell for cell in attacked if cell.n_attackers == size]
    shares = _gather(chosen)
    word, sentence = _judge(shares, size, inspection.code.n_users, bool(within))
    names = {
        "works": "trigger works in hit models",
        "plurality": "plain vote right, triggered",
        "right": "decoder right, triggered",
        "alarms": "alarms on triggered inputs",
        "false": "false alarms on clean inputs",
        "rightly": "attackers named",
        "wrongly": "times somebody else accused",
    }
    tiles = [(told, *sum_up_shares(shares[name])) for name, told in names.items() if shares[name]]
    return {"conclusion": sentence, "verdict": word, "guaranteed": promise, "tiles_of": tiles}


def _gather(cells: Sequence[Cell]) -> dict[str, list[dict[str, int]]]:
    """Return the shares of one number of attackers, one a repeat and group."""
    names = ("works", "plurality", "right", "unreached", "alarms", "false", "rightly", "wrongly")
    found: dict[str, list[dict[str, int]]] = {name: [] for name in names}
    for cell in cells:
        own = decoder_figures(cell.record)
        found["false"].append(own["clean"]["alarms"])
        for group, plain in zip(own["groups"], cell.record["figures"]["groups"], strict=True):
            found["works"].append(plain["success"]["hit_models"])
            found["plurality"].append(plain["triggered"]["all"]["plurality"])
            found["right"].append(group["all"]["right"])
            found["alarms"].append(group["all"]["alarms"])
            if "unreached" in group["all"]:
                found["unreached"].append(group["all"]["unreached"])
            if group["pooled"] is not None:
                found["rightly"].append(group["pooled"]["rightly"])
                found["wrongly"].append(group["pooled"]["wrongly"])
    return found


def _judge(shares: dict[str, list[dict[str, int]]], size: int, n_users: int, within: bool) -> tuple[str, str]:
    mean = {name: float(np.mean([rate(one) for one in found])) for name, found in shares.items() if found}
    said = {name: show_percent(value) for name, value in mean.items()}
    total = shares["right"][0]["of"]
    who = f"With {size} of {n_users} users attacking ({'within' if within else 'past'} the guarantee)"
    known = mean.get("unreached", 1.0)
    if not mean["works"] >= WORKS:
        return (
            "No attack",
            f"{who}, the trigger worked in {said['works']} of the votes it reached: nothing to defend against.",
        )
    beside = f"; sub-models out of the attackers' reach know {said['unreached']}" if "unreached" in said else ""
    text = (
        f"{who}, {said['right']} of {total:,} triggered inputs got the right label, {said['plurality']} by a plain "
        f"vote{beside}. {said['alarms']} of them raised an alarm, as did {said['false']} of clean inputs."
    )
    if "rightly" in said:
        text += (
            f" Five flagged inputs together named {said['rightly']} of the attackers; somebody else was accused "
            f"{said['wrongly']} of the times."
        )
    return ("Defended" if mean["right"] >= DEFENDED * known else "Not defended"), text


def show_votes(cells: Sequence[Cell], inspection: Inspection) -> dict[str, Any]:
    """Draw what every sub-model says about one triggered input: the first one that a plain vote gets wrong."""
    covered = min(inspection.correct, inspection.track) or inspection.correct
    attacked = sorted((cell for cell in cells if cell.n_attackers and cell.has_votes), key=lambda cell: cell.repeat)
    chosen = [cell for cell in attacked if cell.n_attackers == covered] or attacked
    if not chosen:
        return {"votes_picture": None}
    cell, group = chosen[0], chosen[0].groups[0]
    given = cell.triggered[0]
    assert given.labels is not None  # the votes of a cell have labels
    says_target = (given.votes == group.target).sum(axis=1)
    others = np.flatnonzero(given.labels != group.target)
    if not others.size:
        return {"votes_picture": None}
    row = int(others[np.argmax(says_target[others] * 2 > cell.code.n_models)])
    label, names = int(given.labels[row]), cell.class_names
    words = [str(names[one]) if names else str(one) for one in range(cell.n_classes)]
    users = ", ".join(group.names)
    caption = (
        f"One triggered input of class {words[label]}. A row is a sub-model, a column a user, filled where the one "
        f"learns from the other; {count_attackers(len(group.attackers))} ({users}), in orange, want "
        f"{words[group.target]}. On the right what each sub-model says: those that learned from an attacker obey, the "
        "others know better, and which rows obey tells who attacked."
    )
    picture = draw_votes(cell.code, given.votes[row].tolist(), group.attackers, label, words)
    return {"votes_picture": picture, "votes_caption": caption}


def draw_votes(code: Code, votes: Sequence[int], attackers: Sequence[int], label: int, words: Sequence[str]) -> Markup:
    """Draw a code with the vote of every sub-model beside its row, attackers' columns in another colour.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> picture = draw_votes(named_code("d"), [1, 0, 0, 1, 1, 0], [3], label=1, words=["cat", "dog"])
    >>> "6 sub-models vote" in picture, picture.count(">dog<")
    (True, 3)
    """
    size, gap, left, top = 14, 2, 24, 18
    m, n = code.matrix.shape
    bad, parts = set(attackers), {"zero": "", "one": "", "bad": ""}
    for i in range(m):
        for j in range(n):
            kind = ("bad" if j in bad else "one") if code.matrix[i, j] else "zero"
            parts[kind] += f"M{left + j * size} {top + i * size}h{size - gap}v{size - gap}h{gap - size}z"
    step = -(-n // 24)
    drawn = "".join(f'<path class="{kind}" d="{path}"></path>' for kind, path in parts.items() if path)
    drawn += "".join(
        f'<text class="{"bad" if j in bad else "user"}" x="{left + j * size + 6}" y="{top - 6}" '
        f'text-anchor="middle">{j}</text>'
        for j in range(0, n, step)
    )
    edge = left + n * size
    for i, vote in enumerate(votes):
        kind = "right" if vote == label else "wrong"
        drawn += f'<text x="{left - 6}" y="{top + i * size + 9}" text-anchor="end">{i}</text>'
        drawn += f'<text class="says {kind}" x="{edge + 8}" y="{top + i * size + 10}">{escape(words[vote])}</text>'
    width = edge + 20 + 6 * max(len(word) for word in words)
    told = f"{m} sub-models vote on one triggered input; {sum(v == label for v in votes)} say the true label"
    return Markup(
        f'<svg class="matrix votes" viewBox="0 0 {width} {top + m * size}" style="max-width:{width * 1.4:.0f}px" '
        f'role="img" aria-label="{told}">{drawn}</svg>'
    )
