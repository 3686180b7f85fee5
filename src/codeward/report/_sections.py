"""The sections of a report, each a piece of HTML made from records, code and vote files."""

from collections.abc import Mapping, Sequence
from html import escape

from codeward.certificates import CertifiedCurve
from codeward.report._evidence import Detection
from codeward.report._parts import Pictures, count_users, write_figure, write_section
from codeward.report._run import ReportedRun
from codeward.report._tables import (
    list_groups,
    show_number,
    show_share,
    tabulate_attack,
    tabulate_clean,
    tabulate_triggered,
    write_table,
)
from codeward.runs import ALARM


def write_summary(run: ReportedRun) -> str:
    """Say what was run, and show the figures to look at first."""
    config, record = run.config, run.records[0]
    hardware = record.get("hardware", {})
    split = config["split"]
    wanted = len(config["attack"]["attackers"]) * config["repeats"]
    there = len(run.records)
    facts = {
        "data set": f"{config['dataset']}, {run.code.n_users} users, {split['kind']} split"
        + (f" (alpha {split['alpha']:g})" if split.get("alpha") is not None else ""),
        "code": f"{run.code.n_models} sub-models of at least {run.code.row_weight} users each"
        + (f"; {run.code.construction}" if run.code.construction else ""),
        "attack": f"{config['attack']['kind']} trigger, groups of attackers: {config['attack']['groups']}, "
        f"{config['attack']['fraction']:.0%} of an attacker's samples poisoned",
        "training": f"{record['training']['architecture']}, {record['training']['epochs']} epochs",
        "decoder": f"up to {config['decoder']['max_attackers']} attackers expected, attack rate "
        f"{config['decoder']['attack_rate']:g}, success rate {config['decoder']['success_rate']:g}",
        "seed, repeats": f"{record['seed']}, {config['repeats']}"
        + ("" if there == wanted else f" ({there} of {wanted} records are there: the run is not finished)"),
        "made": " to ".join(sorted({min(dates := _dates(run)), max(dates)})),
        "versions": ", ".join(f"{name} {number}" for name, number in record.get("versions", {}).items()),
        "hardware": ", ".join(
            str(hardware[key]) + (" cores" if key == "cores" else "")
            for key in ("gpu", "device", "machine", "cores")
            if hardware.get(key)
        ),
    }
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    return write_section("what", "What was run", f'<dl class="facts">{listed}</dl>{_write_tiles(run)}')


def _dates(run: ReportedRun) -> list[str]:
    return [str(record.get("created", ""))[:10] for record in run.records]


def _write_tiles(run: ReportedRun) -> str:
    """Return the headline: the largest simulated attack that the code promises to correct, else the smallest."""
    groups = list_groups(run)
    if not groups:
        return ""
    covered = [size for size in groups if size <= run.inspection.correct]
    size = max(covered) if covered else min(groups)
    chosen = groups[size]
    tiles = [
        ("trigger works in hit models", [group["success"]["hit_models"] for group in chosen]),
        ("plurality right, triggered", [group["triggered"]["all"]["plurality"] for group in chosen]),
        ("decoder right, triggered", [group["triggered"]["all"]["bayes"] for group in chosen]),
        ("alarms on triggered inputs", [group["triggered"]["all"]["alarms"] for group in chosen]),
        ("false alarms on clean inputs", [r["figures"]["clean"]["all"]["alarms"] for r in run.cells[size]]),
    ]
    shown = ""
    for name, shares in tiles:
        value, _, of = show_share(shares).partition("<small>")
        shown += f"<div><dt>{escape(name)}</dt><dd>{value}</dd><dd>{of.removesuffix('</small>')}</dd></div>"
    inside = "within" if covered else "past"
    words = f"With {count_users(size)} attacking ({inside} what the code promises to correct), on all test inputs:"
    return f'<p class="hint">{words}</p><dl class="tiles">{shown}</dl>'


def write_figures(run: ReportedRun, pictures: Pictures) -> str:
    """Accuracy, alarms and suspects; whether the attack worked comes first."""
    attacked = bool(list_groups(run))
    repeats = len({record["repeat"] for record in run.records})
    groups = run.config["attack"]["groups"]
    several = repeats > 1 or (groups > 1 and attacked)
    spread = (
        f"Mean ± standard deviation over {repeats} repeat(s)" + (f" of {groups} groups" if groups > 1 else "") + "."
        if several
        else "One repeat, so there is no spread: differences of a few inputs mean nothing."
    )
    body = f'<p class="hint">{spread} Alarm: attack probability over {ALARM:g}.</p>'
    body += tabulate_attack(run) if attacked else "<p>No attack was simulated in this run.</p>"
    if attacked:
        body += tabulate_triggered(run)
        named = run.inspection.track
        if max(list_groups(run)) > named:
            who = f"more than {count_users(named)}" if named else "anybody"
            body += (
                f'<p class="hint">The code does not promise to name {who}: of sets of users that reach the same '
                "sub-models, the decoder names the smallest, lowest numbers first.</p>"
            )
    body += tabulate_clean(run)
    body += write_figure(
        pictures, "accuracy", "Accuracy by number of attackers: on clean inputs at 0, else on all triggered."
    )
    return write_section("figures", "What was measured", body)


def write_detection(detections: Sequence[Detection], pictures: Pictures) -> str:
    """ROC curves from the vote files."""
    if not detections:
        return write_section(
            "detection", "Telling attacks from clean inputs", "<p>No vote files of attacked models.</p>"
        )
    rows = []
    for size in sorted({detection.n_attackers for detection in detections}):
        chosen = [detection for detection in detections if detection.n_attackers == size]
        hits = [100 * detection.hits_at(detection.every, 0.05) for detection in chosen]
        counts = f"{chosen[0].n_clean:,} clean, {chosen[0].n_every:,} triggered, {chosen[0].n_others:,} others"
        rows.append(
            [
                str(size),
                show_number([detection.every.auc for detection in chosen], 3),
                show_number([detection.others.auc for detection in chosen], 3),
                show_number(hits, 1) + "%",
                counts + (f"<small>{len(chosen)} times</small>" if len(chosen) > 1 else ""),
            ]
        )
    table = write_table(
        "Detection",
        "AUC: chance that a triggered input has a higher attack probability than a clean one, ties counted half; on "
        "all triggered inputs and on those whose label is not the target (others). "
        "The threshold for 5% is set on the same clean inputs.",
        ("attackers", "AUC, all", "AUC, others", "detected at 5% false alarms, all", "inputs"),
        rows,
    )
    picture = write_figure(
        pictures, "roc", "Alarms against false alarms as the threshold falls, on all triggered inputs."
    )
    return write_section("detection", "Telling attacks from clean inputs", table + picture)


def write_certificates(curves: Mapping[str, CertifiedCurve], notes: Sequence[str], pictures: Pictures) -> str:
    """Certified accuracy on clean votes."""
    body = ""
    if curves:
        top = max(int(curve.attackers[-1]) for curve in curves.values())
        total = next(iter(curves.values())).n_inputs
        rows = [
            [escape(name)]
            + [
                f"{100 * curve.accuracy[k]:.1f}%<small>{round(curve.accuracy[k] * total):,} of {total:,}</small>"
                if k < len(curve.accuracy)
                else (f"0.0%<small>0 of {total:,}</small>" if curve.accuracy[-1] == 0 else "not searched")
                for k in range(top + 1)
            ]
            for name, curve in curves.items()
        ]
        body = write_table(
            "Certified accuracy",
            f"Share of {total:,} clean inputs with the right label that no k users can change, whatever the sub-models "
            "they reach say (threat model arbitrary). At k = 0: right at all.",
            ("decoder", *(f"k = {k}" for k in range(top + 1))),
            rows,
        )
        body += write_figure(pictures, "certified", "Certified accuracy against the number of attackers.")
    body += "".join(f'<p class="hint">{escape(note)}</p>' for note in notes)
    return write_section("certified", "What is certified, input by input", body)


def write_users(pictures: Pictures) -> str:
    """Who holds which classes; nothing where the run drew no such picture."""
    picture = write_figure(pictures, "users", "Share of each class in the data of each user (first repeat).")
    return write_section("users", "Who holds what", picture) if picture else ""
