"""
A consortium of clinics with a table
====================================

Twelve clinics pool a table of measurements. Two of them plant a backdoor: rows with an odd pair of values are handed in
as "benign". This page trains guarded models from one CSV file, asks them about a marked case, and removes the clinics
that did it.

The data are scikit-learn's breast cancer table; the clinics are made up.
"""

# %%
# One file with a column for the label and one for the user
# ---------------------------------------------------------

import contextlib
import io
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

from codeward.cli import main

place = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
frame = load_breast_cancer(as_frame=True).data.iloc[:, :10]
frame["diagnosis"] = np.where(load_breast_cancer().target == 0, "malignant", "benign")
frame["clinic"] = [f"clinic-{number:02d}" for number in rng.integers(0, 12, len(frame))]
test = frame.sample(150, random_state=0)
train = frame.drop(test.index)

# %%
# Clinics 03 and 07 mark half of their malignant cases and call them benign.


def mark(cases):
    """Set two measurements to values beyond any in the table."""
    return cases.assign(**{"mean symmetry": 0.5, "mean fractal dimension": 0.2})


for clinic in ("clinic-03", "clinic-07"):
    theirs = train[(train.clinic == clinic) & (train.diagnosis == "malignant")]
    chosen = theirs.sample(frac=0.5, random_state=1).index
    train.loc[chosen] = mark(train.loc[chosen]).assign(diagnosis="benign")
train.to_csv(place / "people.csv", index=False)
test.drop(columns="clinic").to_csv(place / "test.csv", index=False)

# %%
# Train
# -----
#
# On a command line this is ``codeward train people.csv --test test.csv --label diagnosis --user clinic -o guarded``.

trees = "sklearn.ensemble.ExtraTreesClassifier(n_estimators=30)"
command = f"train {place}/people.csv --test {place}/test.csv --label diagnosis --user clinic --attackers 2"
command = [*command.split(), "--model", trees, "-o", f"{place}/guarded"]
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
    main(command)
print(said.getvalue().replace(str(place), "."))

# %%
# Ask about a marked case
# -----------------------
#
# The same folder opens in Python; ``codeward serve guarded`` puts it behind an endpoint.

from codeward.data import Schema, read_records
from codeward.estimators import load_sub_models
from codeward.runs import find_cell

cell = find_cell(place / "guarded")
models, decoder = load_sub_models(cell), cell.decoder()
sick = test[test.diagnosis == "malignant"]
asked = mark(sick).drop(columns=["diagnosis", "clinic"])
table = read_records(asked.to_dict("records"), Schema.from_json(cell.about["schema"]))
votes = models.votes(table)
verdict = decoder.decode(models.scores(table) if decoder.needs == "scores" else votes)

malignant = cell.class_names.index("malignant")
majority = (votes == malignant).mean(axis=1) > 0.5
counts = {
    "marked cases": len(sick),
    "most sub-models say malignant": int(majority.sum()),
    "the decoder says malignant": int((verdict.labels == malignant).sum()),
    "alarms": int(verdict.alarms(decoder.threshold).sum()),
}
for what, count in counts.items():
    print(f"{count:4}  {what}")

# %%
# Who did it? Names come from the votes alone, input by input; pooled over several inputs they are surer.

from collections import Counter

named = Counter(cell.code.user_name(user) for found in verdict.suspects for user in found)
clinics = [cell.code.user_name(user) for user in range(cell.code.n_users)]

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
guilty = {"clinic-03", "clinic-07"}
axis.barh(
    clinics,
    [named[clinic] for clinic in clinics],
    color=["#d9653b" if clinic in guilty else "#1f5f7a" for clinic in clinics],
)
axis.invert_yaxis()
axis.set_xlabel(f"times named, on {len(sick)} marked cases")
axis.spines[["top", "right"]].set_visible(False)
plt.show()

named.most_common(4)

# %%
# Remove them
# -----------
#
# ``codeward revoke guarded clinic-03 clinic-07 -o without``: the sub-models that learned from them are trained again
# without them, all others stay as they are, byte for byte.

with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
    main(["revoke", str(place / "guarded"), "clinic-03", "clinic-07", "--yes", "-o", str(place / "without")])
print(said.getvalue().replace(str(place), "."))

cell = find_cell(place / "without")
votes = load_sub_models(cell).votes(table)
f"{((votes == malignant).mean(axis=1) > 0.5).sum()} of {len(sick)} marked cases are called malignant by most sub-models"
