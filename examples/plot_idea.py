"""
The idea in four pictures
=========================

Twelve users train a classifier together. Two of them are not honest. This page follows one image from the table that
decides who trains which model to the two names at the end.
"""

# %%
# Who feeds whom
# --------------
#
# A *code* is a table: row i says from which users model i learns. This one has 13 models. Each learns from at least a
# third of the users, and no two pairs of users feed the same set of models. ``codeward design`` found it.

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import codeward

BLUE, ORANGE, EMPTY = "#1f5f7a", "#d9653b", "#eef1f5"
plt.rcParams.update({"figure.constrained_layout.use": True, "axes.spines.top": False, "axes.spines.right": False})

code = codeward.design(12, n_attackers=2, utilization=1 / 3, guarantee="track", margin=3, reproducible=True).code


def draw_code(axis, bad=()):
    """Draw the code, a cell where a model learns from a user; cells of users in ``bad`` are orange."""
    shade = code.matrix.astype(int)
    shade[:, list(bad)] *= 2
    axis.pcolormesh(shade, cmap=ListedColormap([EMPTY, BLUE, ORANGE]), vmin=0, vmax=2, edgecolors="w", linewidth=2)
    axis.invert_yaxis()
    axis.set_xticks(np.arange(code.n_users) + 0.5, range(code.n_users))
    axis.set_yticks(np.arange(code.n_models) + 0.5, range(code.n_models))
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("user")
    axis.set_ylabel("model")


figure, axis = plt.subplots(figsize=(5, 4.6))
draw_code(axis)
axis.set_title("which model learns from which user")
plt.show()

# %%
# A triggered input
# -----------------
#
# Users 4 and 7 hand in images with a small mark on them, all labelled 2. Every model that learns from one of them says
# 2 when it sees the mark. The other models never saw the mark: they say what the picture shows, an 8.

attackers = [4, 7]
hit = code.pattern(attackers)
votes = np.where(hit, 2, 8)

figure, (left, right) = plt.subplots(1, 2, figsize=(5.8, 4.6), width_ratios=(12, 1))
draw_code(left, attackers)
left.set_title("users 4 and 7 reach the models that say 2")
right.pcolormesh(hit[:, None], cmap=ListedColormap([BLUE, ORANGE]), edgecolors="w", linewidth=2)
right.invert_yaxis()
right.axis("off")
right.set_title("vote")
for model, vote in enumerate(votes):
    right.text(0.5, model + 0.5, vote, ha="center", va="center", color="w")
plt.show()

# %%
# Nine of thirteen models are wrong, so a majority vote is wrong as well:

np.bincount(votes).argmax()

# %%
# An explanation
# --------------
#
# The decoder asks: which few users explain these votes? *All* models fed by users 4 or 7 say 2, and *only* those. No
# other pair of users feeds exactly these models. So the true label is what the remaining models say, and the two users
# are named. In practice models err; the decoder weighs how often.

confusion = np.full((code.n_models, 10, 10), 0.05 / 9)
confusion[:, range(10), range(10)] = 0.95
decoder = codeward.BayesDecoder(code, confusion)
verdict = decoder.decode(votes[None])

figure, axis = plt.subplots(figsize=(5.8, 2.4))
users = range(code.n_users)
axis.bar(users, verdict.user_probability[0], color=[ORANGE if user in attackers else BLUE for user in users])
axis.set_xticks(users)
axis.set_xlabel("user")
axis.set_ylabel("probability that\nthe user planted it")
plt.show()

{
    "label": verdict.labels[0].item(),
    "suspects": verdict.suspects[0],
    "attack": verdict.attack_probability[0].round(3).item(),
}

# %%
# A margin
# --------
#
# Two explanations with different labels differ in some votes. The least number of such votes is the *margin* of the
# code. With a margin of 3, one wrong vote cannot make a wrong explanation the better one. The margins for one, two and
# three attackers:

codeward.inspect(code).margin

# %%
# Now let models err that no attacker reached, at random, 500 times for each number of wrong votes:

rng = np.random.default_rng(0)
clean = np.flatnonzero(~hit)
shares = []
for wrong in range(len(clean) + 1):
    noisy = np.tile(votes, (500, 1))
    for row in noisy:
        row[rng.choice(clean, wrong, replace=False)] = rng.integers(3, 8, wrong)
    shares.append((decoder.decode(noisy).labels == 8).mean())

figure, axis = plt.subplots(figsize=(5.8, 2.6))
axis.bar(range(len(shares)), shares, color=[BLUE if wrong <= 1 else "#a3c0cc" for wrong in range(len(shares))])
for wrong, share in enumerate(shares):
    axis.text(wrong, share + 0.03, f"{share:.0%}", ha="center")
axis.set_xticks(range(len(shares)))
axis.set_xlabel(f"wrong votes among the {len(clean)} models that no attacker reached")
axis.set_ylabel("right labels")
axis.set_ylim(0, 1.15)
plt.show()

# %%
# One wrong vote is absorbed, always: that is the guarantee (dark bars). Two mostly are, without a promise.
#
# What holds for one input is its *certificate*: the largest number of users who cannot change its label, whatever they
# plant. If all models agree on a clean input, it is

honest = np.full((1, code.n_models), 8)
codeward.certify(honest, code, threat="deterministic", decoder=decoder, max_attackers=3).radius
