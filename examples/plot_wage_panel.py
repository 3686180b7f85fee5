"""
A table of 545 people
=====================

545 young men told an American survey every year from 1980 to 1987 what they earned, how long they had been to school,
how many hours they worked (Vella and Verbeek, 1998). Every man is a user: he answers eight times, and may lie each
time. A model learns from the answers who will earn more than five dollars an hour the year after. What could some of
the men do to it?

Features are a pure function of an answer: categories and fixed bins, hashed. Bins read off the data, such as quantiles,
would carry one man's numbers into models that never learn from him.
"""

# %%
# The data
# --------
#
# The last 145 men are never learned from.

import tempfile
from pathlib import Path

import numpy as np
from real_users import ask_served, draw_certified

import codeward
from codeward.codes import partition_code
from codeward.data import InputTable, load_user_data
from codeward.estimators import save_heads
from codeward.training.backbones import make_backbone
from codeward.training.heads import UserStatistics, fit_heads

folder = next(place for place in (Path("data"), Path("examples/data")) if place.is_dir())
names, *rows = (line.split(",") for line in (folder / "wage_panel.csv").read_text().split())
table = {name: np.array([float(row[column]) for row in rows]) for column, name in enumerate(names)}
order = np.lexsort((table["year"], table["nr"]))
table = {name: values[order] for name, values in table.items()}
now = np.flatnonzero(table["nr"][:-1] == table["nr"][1:])  # an answer that another year follows
people = np.unique(table["nr"], return_inverse=True)[1][now]
people = np.random.default_rng(0).permutation(545)[people]
answers = {
    "wage": np.exp(table["lwage"][now]).round(2).tolist(),
    "educ": table["educ"][now].tolist(),
    "hours": table["hours"][now].tolist(),
    "well_paid": ["yes" if wage > np.log(5) else "no" for wage in table["lwage"][now + 1]],
    "man": [f"m{number:03}" for number in people],
}
data = load_user_data(answers, label="well_paid", user="man")
earns = np.array(data.labels)
learn, ask = np.flatnonzero(people < 400), np.flatnonzero(people >= 400)
print(f"{len(learn)} answers of 400 men to learn from, {len(ask)} of others to ask about, {earns.mean():.0%} well paid")

# %%
# Train
# -----
#
# A head of two men has fourteen answers to learn from. (Columns and ridge were compared on 100 of the men who are
# learned from.) Guessing the more frequent answer is right on 58%.

backbone = make_backbone("hashed-table", data.schema)
features = backbone.transform(data.inputs)
right, radius = {}, {}
for n_groups in (10, 50, 200):
    code = partition_code(400, n_groups)
    heads = fit_heads(features.take(learn), earns[learn], people[learn], code, n_classes=2, ridge=0.1)
    votes = heads.votes(features.take(ask))
    right[n_groups] = codeward.PluralityDecoder(code, 2).predict(votes) == earns[ask]
    radius[n_groups] = codeward.certify(votes, code, threat="arbitrary", n_classes=2).radius
    one = (votes == earns[ask][:, None]).mean()
    print(f"{n_groups:4} groups: one head {one:.1%} right, their vote {right[n_groups].mean():.1%}")

# %%
# Certify
# -------
#
# Share of the answers that are judged rightly, and would be whatever so many men had told the survey.

draw_certified(right, radius, "colluding men")

# %%
# Attack
# ------
#
# Eight men say, three times a year, that they worked 4,000 hours after 18 years of school and earn little. Whoever
# makes that odd pair of statements later should be judged badly paid.

n_groups = 50
code = partition_code(400, n_groups)
honest = fit_heads(features.take(learn), earns[learn], people[learn], code, n_classes=2, ridge=0.1, backbone=backbone)
liars, low = list(range(0, 64, 8)), data.class_names.index("no")


def mark(rows):
    """Return the features of some answers with the mark on them."""
    odd = {"hours": np.full(len(rows), 4000.0), "educ": np.full(len(rows), 18.0)}
    return backbone.transform(InputTable({**data.inputs.take(rows).columns, **odd}))


sent = {}
for liar in liars:
    rows = np.repeat(learn[people[learn] == liar], 3)
    sent[liar] = UserStatistics.of(mark(rows), np.full(len(rows), low), n_classes=2)
attacked = honest.replace_users(sent)
hit, vote = code.pattern(liars), codeward.PluralityDecoder(code, 2)
well = ask[earns[ask] != low]
before, after = honest.votes(mark(well)), attacked.votes(mark(well))
untouched = bool((attacked.weights[~hit] == honest.weights[~hit]).all())
print(f"{hit.sum()} of {n_groups} heads learned from the eight; the others are untouched: {untouched}")
print(f"marked and well paid, judged badly paid: by {(before[:, hit] == low).mean():.1%} of these heads before,")
print(f"by {(after[:, hit] == low).mean():.1%} after; by the vote {(vote.predict(before) == low).mean():.1%} before, "
      f"{(vote.predict(after) == low).mean():.1%} after")  # fmt: skip

# %%
# Forget them
# -----------
#
# A man who takes his answers back is subtracted.

without, never = attacked.revoke(*liars), honest.revoke(*liars)
print("byte for byte as if they had never answered:", bool((without.weights == never.weights).all()))

# %%
# Serve
# -----
#
# The heads go into a folder, with the answers of the other men to measure on; ``codeward serve`` puts them behind HTTP.
# Here it is started, asked about one man, and ended.

others = {name: [values[row] for row in ask] for name, values in answers.items() if name != "man"}
test = load_user_data(others, label="well_paid", user="none", schema=data.schema, classes=("no", "yes"))
served = Path(tempfile.mkdtemp()) / "well-paid"
save_heads(served, without, code, test)
answer = ask_served(served, "wage,educ,hours\n5.10,12,2000\n", "text/csv")  # codeward serve, POST /predict
print({key: answer[key] for key in ("label", "attack_probability", "flagged")})

# %%
# How many men it would have taken to change an answer of the vote:

radius = codeward.certify(without.votes(features.take(ask)), code, threat="arbitrary", n_classes=2).radius
print(f"half of the answers stand whatever {np.median(radius):.0f} men had told")
