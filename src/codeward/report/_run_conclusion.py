"""What a run's page concludes: whether it was defended, one triggered input vote by vote, and what is guaranteed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from codeward._charts import draw_matrix
from codeward._figures import show_percent, sum_up_shares
from codeward.certificates import Agreement, CertifiedCurve, certify
from codeward.codes import Inspection
from codeward.decoding import PluralityDecoder
from codeward.report._page import tile_certified
from codeward.report._run_sections import Content, enter_texts
from codeward.report._table_builder import Table, TableEntry, count_attackers, make_table, share_cell
from codeward.runs import (
    CardCurve,
    Cell,
    count_words,
    decoder_figures,
    draw_input,
    list_class_names,
    pick_input,
    rate,
    share,
    state_guarantees,
    sum_up_guarantees,
)

#: A label counts as defended where the decoder finds at least this part of what models out of reach know.
DEFENDED = 0.9
#: A trigger that fewer hit models than this obey is no attack.
WORKS = 0.5
#: Users up to which is shown what it takes to force a label, and labels and attackers shown at most.
FORCED_USERS, FORCED_LABELS, FORCED_ATTACKERS = 20, 12, 5


def conclude(
    cells: Sequence[Cell], inspection: Inspection, curves: Mapping[str, CertifiedCurve], kept: Agreement | None = None
) -> dict[str, Any]:
    """Say first whether the run was defended, with figures, what is guaranteed, and the figures to look at."""
    said = state_guarantees(inspection, kept)
    if cells[0].threat == "arbitrary":  # users sent updates: what holds for one target for all does not apply
        told = next(one for one in said if one.threat == "arbitrary")
        promise = "Nothing is guaranteed: users sent updates, and a single one may decide the label."
        if told.n_attackers:
            promise = f"Guaranteed with the consensus decoder, whatever users send: {told.sentence}"
    else:
        promise = sum_up_guarantees(said)
    attacked = [cell for cell in cells if cell.record["figures"]["groups"]]
    if not attacked:
        return {"verdict": "", "guaranteed": promise, **_conclude_clean(cells, curves)}
    covered = min(inspection.correct, inspection.track) or inspection.correct
    if cells[0].threat == "arbitrary":
        covered = inspection.correct_arbitrary
    elif kept is not None:
        covered = min(covered, kept.n_attackers)
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


def _conclude_clean(cells: Sequence[Cell], curves: Mapping[str, CertifiedCurve]) -> Content:
    """Say what models that nobody attacks on purpose reach."""
    own = [decoder_figures(cell.record)["clean"] for cell in cells]
    plain = [cell.record["figures"]["clean"]["all"] for cell in cells]
    shares = {
        "decoder right": [part["right"] for part in own],
        "plain vote right": [part["plurality"] for part in plain],
        "one sub-model right": [part["single_model"] for part in plain],
        "false alarms": [part["alarms"] for part in own],
    }
    said = {name: (value, of) for name, found in shares.items() for value, of in [sum_up_shares(found)]}
    text = (
        f"{said['decoder right'][0]} of clean test inputs ({said['decoder right'][1]}) get the right label, "
        f"{said['plain vote right'][0]} by a plain vote of the sub-models; {said['false alarms'][0]} raise a false "
        "alarm. No attack was simulated."
    )
    tiles = [(name, *found) for name, found in said.items()]
    tiles += tile_certified([CardCurve.of(curve) for curve in curves.values()], 1)
    return {"conclusion": text, "tiles_of": tiles}


def _gather(cells: Sequence[Cell]) -> dict[str, list[dict[str, int]]]:
    """Return the shares of one number of attackers, one a repeat and group."""
    names = ("works", "plurality", "right", "unreached", "alarms", "false", "rightly", "wrongly")
    found: dict[str, list[dict[str, int]]] = {name: [] for name in names}
    for cell in cells:
        own, agreed = decoder_figures(cell.record), cell.record["figures"].get("consensus")
        if agreed and cell.threat == "arbitrary":  # the decoder that is promised for users who send updates
            own = {"clean": agreed["clean"], "groups": [{"all": part, "pooled": None} for part in agreed["groups"]]}
        found["false"].append(own["clean"]["alarms"])
        for place, (group, plain) in enumerate(zip(own["groups"], cell.record["figures"]["groups"], strict=True)):
            found["works"].append(plain["success"]["hit_models"])
            found["plurality"].append(plain["triggered"]["all"]["plurality"])
            found["right"].append(group["all"]["right"])
            found["alarms"].append(group["all"]["alarms"])
            if "unreached" in group["all"]:
                found["unreached"].append(group["all"]["unreached"])
            elif cell.has_votes and (free := ~cell.code.pattern(plain["attackers"])).any():
                given = cell.triggered[place]
                known = PluralityDecoder(n_classes=cell.n_classes).predict(given.votes[:, free])
                found["unreached"].append(share(int((known == given.labels).sum()), len(known)))
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
    text = (
        f"{who}, {said['right']} of {total:,} triggered inputs got the right label (a plain vote: "
        f"{said['plurality']}), {said['alarms']} raised an alarm (clean inputs: {said['false']})"
    )
    if "rightly" in said:
        times = sum(one["of"] for one in shares["wrongly"])
        others = f"accused somebody else {said['wrongly']} of {times} times" if mean["wrongly"] else "nobody else"
        named = "all attackers" if mean["rightly"] == 1 else f"{said['rightly']} of the attackers"
        text += f", and five flagged inputs together named {named} and {others}"
    text += "."
    if "unreached" in said:
        text += f" Sub-models that no attacker reached are right on {said['unreached']} of the same inputs."
    return ("Defended" if mean["right"] >= DEFENDED * known else "Not defended"), text


def show_votes(cells: Sequence[Cell], inspection: Inspection) -> dict[str, Any]:
    """Draw what every sub-model says about one triggered input: the first one that a plain vote gets wrong."""
    covered = min(inspection.correct, inspection.track) or inspection.correct
    attacked = sorted((cell for cell in cells if cell.n_attackers and cell.has_votes), key=lambda cell: cell.repeat)
    chosen = [cell for cell in attacked if cell.n_attackers == covered] or attacked
    if not chosen:
        return {"votes_picture": None}
    cell, row = chosen[0], pick_input(chosen[0])
    if row is None:
        return {"votes_picture": None}
    given, group, words = cell.triggered[0], cell.groups[0], list_class_names(cell)
    assert given.labels is not None  # the votes of a cell have labels
    votes, label, users = given.votes[row].tolist(), int(given.labels[row]), ", ".join(group.names)
    counts = Counter(votes)
    winner = min(counts, key=lambda vote: (-counts[vote], vote))
    caption = (
        f"A row is a sub-model, a column a user, filled where the one learns from the other. "
        f"{count_attackers(len(group.attackers)).capitalize()} ({users}), in orange, want {words[group.target]}; the "
        f"input is of class {words[label]}. On the right what each sub-model says, green where it is right: a plain "
        f"vote says {words[winner]} ({counts[winner]} of {len(votes)}). Which rows obey tells who attacked."
    )
    return {"votes_picture": draw_input(cell, row), "votes_caption": caption}


def tell_promise(cells: Sequence[Cell], found: Inspection, kept: Agreement | None) -> Content:
    """Say what the code promises, per property and threat model, with margins and the matrix, and what is kept."""
    code = cells[0].code
    rows = [
        enter_texts(meaning, threat, f"{k} of {code.n_users} users" if k else "nobody", broken)
        for meaning, threat, k, broken in found.list_properties()
    ]
    columns = zip(found.margin, found.margin_track, found.margin_arbitrary, strict=True)
    margins = [
        enter_texts(str(k), *("not computed" if value is None else str(value) for value in values))
        for k, values in enumerate(columns, start=1)
    ]
    return {
        "federated": bool(cells[0].record.get("federated")),
        "inspection": found,
        "matrix": draw_matrix(code.matrix, code.users),
        "promise": list(state_guarantees(found, kept)),
        "kept": state_kept(found, kept),
        "guarantees": make_table(
            "run-guarantees",
            "Guarantees of the code",
            "k counts colluding accounts. Broken by: a smallest coalition, or two sets that cannot be told apart.",
            ("property", "threat model", "holds up to k =", "broken by users"),
            rows,
        ),
        "margins": make_table(
            "run-margins",
            "Margins",
            "Margin d leaves room for (d - 1) / 2 wrong votes, rounded down, of models no attacker reaches; 0: none.",
            ("attackers k", "label", "attackers' names", "label, arbitrary"),
            margins,
        ),
    }


def state_kept(found: Inspection, kept: Agreement | None) -> Markup:
    """Say what the decoder makes of it: a code promises that some decoder can. Nothing where nothing is promised."""
    if kept is None or not found.correct:
        return Markup("")
    if not kept.searched:
        return Markup("That the decoder of this run returns the label that the votes determine is not proved.")
    does = f"undoes every such attack by up to <b>{count_words(kept.n_attackers, 'user')}</b> as long as"
    errors = f"at most {count_words(kept.n_errors, 'other sub-model')} err{'s' * (kept.n_errors == 1)}"
    said = Markup(
        "The decoder of this run, with its assumptions and what is known of these sub-models, "
        f"{does if kept.n_attackers else 'may give in to <b>one user</b> even where'} "
        f"{errors if kept.n_errors else 'no other sub-model errs'}"
    )
    if kept.n_attackers >= min(found.correct, kept.searched):
        return said + "."
    broken = ""
    if kept.witness is not None:
        names = ", ".join(map(found.code.user_name, kept.witness.attackers))
        some = "user" if len(kept.witness.attackers) == 1 else "users"
        broken = f" ({some} {names}, label {kept.label}, target {kept.witness.target})"
    # What is not Markup is escaped as it is added.
    said += f", less than the code allows for: it may take the honest sub-models for the wrong ones{broken}."
    return said + " A code with a larger margin heals that."


def tell_targets(cells: Sequence[Cell], curves: Mapping[str, CertifiedCurve]) -> Content:
    """Say for every label how many inputs of others no k users can make it, by plurality (Proposition 38).

    Nothing where nothing is certified, and where there are more than `FORCED_USERS` users.
    """
    chosen = [cell for cell in cells if cell.n_attackers == 0 and cell.has_votes and cell.clean.labels is not None]
    if not curves or not chosen or chosen[0].code.n_users > FORCED_USERS:
        return {"forced": None}
    votes = np.concatenate([cell.clean.votes for cell in chosen])
    labels = np.concatenate([cell.clean.labels for cell in chosen if cell.clean.labels is not None])
    n_classes, names = chosen[0].n_classes, chosen[0].class_names
    found = certify(votes, chosen[0].code, n_classes=n_classes, threat="arbitrary", targets=True).radius_to
    assert found is not None
    of = {label: found[labels != label, label] for label in range(n_classes) if (labels != label).any()}
    most = min(FORCED_ATTACKERS, max(int(radius.max(initial=0)) for radius in of.values()))
    shown = sorted(sorted(of, key=lambda label: float((of[label] >= 1).mean()))[:FORCED_LABELS])
    rows = [
        (
            TableEntry(str(names[label] if names and label < len(names) else label)),
            *(share_cell([{"count": int((of[label] >= k).sum()), "of": of[label].size}]) for k in range(most + 1)),
        )
        for label in shown
    ]
    left = f" The {len(shown)} easiest to force of {len(of)} labels." if len(shown) < len(of) else ""
    table: Table = make_table(
        "run-forced",
        "Which wrong label can be forced",
        "Share of the clean inputs of other labels that no k users can make this label, whatever the sub-models they "
        f"reach say (plurality vote, threat model arbitrary). At k = 0: that are not taken for it anyway.{left}",
        ("label", *(f"k = {k}" for k in range(most + 1))),
        rows,
    )
    return {"forced": table}
