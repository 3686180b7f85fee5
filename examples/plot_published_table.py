"""
Reproduce a published table
===========================

The paper's Table 1 counts how many attackers its decoder names: 16 users train on MNIST, one to three of them collude.
The votes of all sub-models are kept in this repository, so the table is computed again in seconds, without training.

Needs the folder ``results/`` of the repository.
"""

# %%
# The votes
# ---------
#
# One packed file holds every run of a setting. Two of the paper's codes are tracking codes: *g* (6 models) is made for
# one attacker, *h* (16 models) for two. We add a code of the same 16 models for three, found by ``codeward design``.

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import codeward
from codeward.decoding import name_attackers
from codeward.reproduction import PackedRun, PackedSetting

results = next(place for place in (Path("results"), Path("../results")) if place.is_dir())
setting = PackedSetting(results / "mnist-iid")
runs = {"g": PackedRun(setting, "g"), "h": PackedRun(setting, "h16"), "designed": PackedRun(setting, "btc3416")}

for name, run in runs.items():
    names = codeward.inspect(run.code).track
    print(f"{name:8}  {run.code.n_models:2} models, {run.code.n_users} users, attackers it can name: {names}")

# %%
# One cell
# --------
#
# A cell is one repeat with one number of attackers. Its validation votes tell how often each sub-model errs; from that
# the Bayes decoder of the paper weighs every explanation of the votes. For each of 500 triggered inputs (of
# other classes than the target) it names the users of the best one.


def count_named(run, repeat, n_attackers):
    """Return attackers named and others named, both on a mean triggered input."""
    cell = run.cell(repeat, n_attackers)
    clean, triggered = cell.load_votes("validation"), cell.load_votes("triggered")
    confusion = codeward.estimate_confusion(clean.votes, clean.labels, n_classes=10)
    decoder = codeward.BayesDecoder(run.code, confusion, attackers_prior=[0.25] * 4)
    (group,) = cell.about["groups"]
    attackers = set(group["attackers"])
    fooled = triggered.votes[triggered.labels != group["target"]][:500]
    named = [set(found) for found in name_attackers(decoder, fooled)]
    return np.mean([len(found & attackers) for found in named]), np.mean([len(found - attackers) for found in named])


rightly, wrongly = count_named(runs["h"], repeat=0, n_attackers=3)
f"rightly {rightly:.2f} of 3, wrongly {wrongly:.2f}"

# %%
# The table
# ---------
#
# Ten repeats, 500 triggered inputs each. The paper's figures are those it prints.

printed = {"g": [(1.00, 0.00), (0.29, 0.71), (0.27, 0.73)], "h": [(1.00, 0.01), (1.99, 0.01), (2.68, 0.31)]}
measured = {
    name: np.array([np.mean([count_named(run, repeat, k) for repeat in range(10)], axis=0) for k in (1, 2, 3)])
    for name, run in runs.items()
}

print("attackers named rightly / others named, on a mean triggered input")
print(f"{'attackers':>9}  {'g, paper':>11}  {'g, here':>11}  {'h, paper':>11}  {'h, here':>11}  {'designed':>11}")
for k in range(3):
    cells = [printed["g"][k], measured["g"][k], printed["h"][k], measured["h"][k], measured["designed"][k]]
    print(f"{k + 1:9}  " + "  ".join(f"{good:.2f} / {bad:.2f}" for good, bad in cells))

# %%
# In a picture: the share of attackers that are named. Code *g* knows one attacker, and past that it is lost, as its
# guarantee says. Codes for two and three name nearly everybody.

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for shift, (name, color) in enumerate({"g": "#9aa5b1", "h": "#1f5f7a", "designed": "#1c6b45"}.items()):
    share = measured[name][:, 0] / np.arange(1, 4)
    axis.bar(np.arange(3) + 0.25 * shift, share, 0.23, color=color, label=name)
axis.set_xticks(np.arange(3) + 0.25, ["1", "2", "3"])
axis.set_xlabel("attackers among 16 users")
axis.set_ylabel("share named")
axis.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
plt.show()

# %%
# To train everything again instead (hours on two cores, minutes on a GPU)::
#
#     codeward data fetch mnist --data-dir data
#     codeward reproduce table1 --dataset mnist --data-dir data -o results-again
#     codeward report results-again
