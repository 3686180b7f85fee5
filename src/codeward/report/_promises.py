"""What the code promises, what it does not, and how to get the same figures."""

from html import escape
from typing import Any

from codeward.certificates import Agreement
from codeward.codes import Inspection
from codeward.report._parts import count_users, write_section
from codeward.report._run import ReportedRun
from codeward.report._svg import draw_code
from codeward.report._tables import write_table

#: The threat models, in words.
THREATS = (
    "<p><b>Deterministic</b>: every sub-model that learned from an attacker says the attackers' one target on a "
    "triggered input. <b>Arbitrary</b>: it says anything. Sub-models that learned from no attacker are as they "
    "would be without the attack.</p>"
)
#: What no code covers, as plain text.
LIMITS = (
    "Wrong votes of sub-models that no attacker reaches, past the margin. Ordinary errors use it up as attacks do: "
    "the guarantee speaks of votes, the accuracy above of this data.",
    "Sub-models that learned from an attacker and do not say the target: under the deterministic threat model each "
    "counts as a wrong vote; the arbitrary one covers them.",
    "Influence around the code: data of one user in another's hands, pre-training on everybody's data, an operator "
    "who changes models, votes or the code.",
    "Inputs crafted to fool a model that was trained on honest data (adversarial examples).",
    "Attack probabilities and suspects are statements under the decoder's assumptions, not proofs. One alarm "
    "convicts nobody.",
    "Certificates hold for the votes of models trained without attackers, on these inputs.",
)


#: Said first where it holds.
FEDERATED = (
    '<p class="trouble">In this run users sent an update for each sub-model, so that an attacker may plant something '
    "else in each. Only what is said of the <b>arbitrary</b> threat model applies; it takes the consensus decoder.</p>"
)


def write_guarantee(run: ReportedRun, kept: Agreement | None) -> str:
    """Say what the code promises, per property and threat model, with margins and the matrix, and what is kept."""
    found = run.inspection
    rows = [
        [meaning, threat, f"{k} of {run.code.n_users} users" if k else "nobody", _name_break(found, name)]
        for meaning, threat, k, name in (
            ("detect a triggered input", "deterministic", found.detect, "detect"),
            ("recover the label", "deterministic", found.correct, "correct"),
            ("recover the label", "arbitrary", found.correct_arbitrary, "correct_arbitrary"),
            ("name the attackers", "deterministic", found.track, "track"),
        )
    ]
    guarantees = write_table(
        "Guarantees of the code",
        "k counts colluding accounts. Broken by: a smallest coalition, or two sets that cannot be told apart.",
        ("property", "threat model", "holds up to k =", "broken by users"),
        rows,
    )
    columns = (found.margin, found.margin_track, found.margin_arbitrary)
    margins = write_table(
        "Margins",
        "Margin d leaves room for (d - 1) / 2 wrong votes, rounded down, of models no attacker reaches; 0: none.",
        ("attackers k", "label", "attackers' names", "label, arbitrary"),
        [
            [str(k), *("not computed" if value is None else str(value) for value in values)]
            for k, values in enumerate(zip(*columns, strict=True), start=1)
        ],
    )
    notes = "".join(f'<p class="hint">{escape(note)}</p>' for note in found.notes)
    picture = (
        f"<figure>{draw_code(run.code)}<figcaption>The code: a row a sub-model, a column a user; filled where the "
        "sub-model learns from the user.</figcaption></figure>"
    )
    sent = FEDERATED if run.records[0].get("federated") else ""
    stated = _state(found) + _state_kept(run, kept)
    body = f'{sent}{stated}{THREATS}<div class="side"><div>{guarantees}{margins}{notes}</div>{picture}</div>'
    return write_section("guarantee", "What is guaranteed", body)


def _state(found: Inspection) -> str:
    if not found.detect:
        return "<p>Nothing: a single user may reach every sub-model of this code.</p>"
    parts = [
        f"shows a triggered input as disagreement with up to <b>{count_users(found.detect)}</b> attacking, if some "
        "sub-model that they do not reach votes rightly"
    ]
    if found.correct:
        margin = found.margin[found.correct - 1]
        spare = (margin - 1) // 2 if margin else 0
        wrong = f"at most {spare} other sub-models err" if spare else "the other sub-models vote rightly"
        parts.append(f"determines the true label with up to <b>{count_users(found.correct)}</b> if {wrong}")
    if found.correct_arbitrary:
        parts.append(
            f"determines it whatever reached sub-models say with up to <b>{count_users(found.correct_arbitrary)}</b>"
        )
    parts.append(
        f"names up to <b>{count_users(found.track)}</b>" if found.track else "does not promise to name anybody"
    )
    return f"<p>This code {'; '.join(parts)}.</p>"


def _state_kept(run: ReportedRun, kept: Agreement | None) -> str:
    """Say what the decoder makes of it: a code promises that some decoder can. Nothing where nothing is promised."""
    if kept is None or not run.inspection.correct:
        return ""
    does = f"undoes every such attack by up to <b>{count_users(kept.n_attackers)}</b> as long as"
    said = (
        "The decoder of this run, with its assumptions and the confusion matrices of these sub-models, "
        f"{does if kept.n_attackers else 'may give in to <b>one user</b> even where'} no other sub-model errs"
    )
    if kept.n_attackers >= min(run.inspection.correct, kept.searched):
        return f"<p>{said}.</p>"
    broken = ""
    if kept.witness is not None:
        names = escape(", ".join(map(run.code.user_name, kept.witness.attackers)))
        some = "user" if len(kept.witness.attackers) == 1 else "users"
        broken = f" ({some} {names}, label {kept.label}, target {kept.witness.target})"
    return (
        f"<p>{said}, less than the code allows for: it may take the honest sub-models for the wrong ones"
        f"{broken}. A code with a larger margin heals that.</p>"
    )


def _name_break(found: Inspection, name: str) -> str:
    broken = found.witness.get(name)
    if broken is None:
        return "nothing found"
    sets = [", ".join(map(found.code.user_name, attackers)) or "nobody" for attackers in broken.attackers]
    return escape(" | ".join(sets))


def write_limits(run: ReportedRun) -> str:
    """Say what the guarantee does not cover."""
    attack, found = run.config["attack"], run.inspection
    items = (
        (
            f"More than {count_users(found.detect)} acting together."
            if found.detect
            else "Any attacker: this code promises nothing."
        )
        + " One person with several accounts counts as several.",
        f"Other attacks: what was measured is one kind ({attack['kind']} trigger), simulated, on one data set. The "
        "guarantee and the certificates do not depend on the kind; the measured figures do.",
        *LIMITS,
    )
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    return write_section("limits", "What is not covered", f"<ul>{listed}</ul>")


def write_recipe(run: ReportedRun) -> str:
    """How to get the same figures."""
    import yaml

    # Where data and models were kept decides no figure, and is nobody's business.
    config: dict[str, Any] = {key: value for key, value in run.config.items() if key not in ("data_dir", "store")}
    text = yaml.safe_dump(config, sort_keys=False)
    record = run.records[0]
    body = (
        '<p>Save the configuration as <span class="code">config.yaml</span>, then:</p>'
        "<pre>codeward run config.yaml -o again\ncodeward report again</pre>"
        f"<pre>{escape(text)}</pre>"
        '<dl class="facts"><dt>configuration</dt><dd class="code">'
        f'{escape(record["config_digest"])}</dd><dt>code</dt><dd class="code">{escape(record["code_digest"])}</dd></dl>'
        '<p class="hint">Same seed, same machine, same versions: same figures. Another machine or device may round '
        "differently.</p>"
    )
    return write_section("again", "How to reproduce it", body)
