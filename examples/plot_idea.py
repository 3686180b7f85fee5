"""
The idea in four pictures
=========================

Twelve users train a classifier together. Two of them are not honest. This page follows one image from the code that
decides who trains which model to the two names at the end.
"""

# %%
# Who feeds whom
# --------------
#
# A *code* is a table of zeros and ones: row i says which users model i learns from. This one has 15 models, each
# learns from a third of the users, and no two pairs of users feed the same set of models.

import matplotlib.pyplot as plt
import numpy as np

import codeward

found = codeward.design(12, n_attackers=2, utilization=1 / 3, guarantee="track", margin=3, reproducible=True)
code = found.code
attackers = [4, 7]
hit = code.pattern(attackers)


def draw_code(axis, mark=()):
    """Draw the code; users in ``mark`` and the models they reach are red."""
    shade = code.matrix.astype(float)
    shade[:, list(mark)] *= 2
    axis.imshow(
        shade, cmap="Blues" if not len(mark) else plt.matplotlib.colors.ListedColormap(["w", "#3b6ea5", "#c8403a"])
    )
    axis.set_xticks(range(code.n_users))
    axis.set_xlabel("user")
    axis.set_ylabel("model")


figure, axis = plt.subplots(figsize=(5, 5))
draw_code(axis)
axis.set_title(f"{code.n_models} models, {code.row_weight} of {code.n_users} users each")
plt.show()

# %%
# A triggered input
# -----------------
#
# Users 4 and 7 hand in images with a small mark on them, all labelled 2. Every model that learns from one of them will
# say 2 when it sees the mark. The others never saw the mark: they say what the picture shows, an 8.

votes = np.where(hit, 2, 8)

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 5), width_ratios=(12, 1.4), sharey=True)
draw_code(left, attackers)
right.imshow(hit[:, None], cmap=plt.matplotlib.colors.ListedColormap(["#3b6ea5", "#c8403a"]))
for model, vote in enumerate(votes):
    right.text(0, model, vote, ha="center", va="center", color="w", weight="bold")
right.set_xticks([])
right.set_title("votes")
left.set_title(f"users {attackers[0]} and {attackers[1]} reach {hit.sum()} of {code.n_models} models")
plt.show()

# %%
# Ten of fifteen models are wrong, so a majority vote is wrong as well.

np.bincount(votes).argmax()

# %%
# An explanation
# --------------
#
# The decoder asks: which few users explain these votes? Only models fed by users 4 or 7 say 2, and *all* of them do.
# No other pair of users fits, since no other pair feeds exactly these models. So the true label is what the remaining
# models say, and the two users are named. In practice models err; the decoder weighs how often.

confusion = np.full((code.n_models, 10, 10), 0.05 / 9)
confusion[:, range(10), range(10)] = 0.95
decoder = codeward.BayesDecoder(code, confusion)
verdict = decoder.decode(votes[None])

figure, axis = plt.subplots(figsize=(6, 2.4))
chance = verdict.user_probability[0]
axis.bar(range(code.n_users), chance, color=["#c8403a" if user in attackers else "#3b6ea5" for user in range(12)])
axis.set_xticks(range(code.n_users))
axis.set_xlabel("user")
axis.set_ylabel("probability of\nhaving planted it")
plt.show()

verdict.labels[0], verdict.suspects[0], round(float(verdict.attack_probability[0]), 3)

# %%
# A margin
# --------
#
# Two explanations with different labels always differ in some votes. The least number of such votes is the *margin* of
# the code. With a margin of 3, one wrong vote cannot make the wrong explanation the better one. Here is what happens
# when models that no attacker reaches err, too.

codeward.inspect(code).margin  # for 1, 2 and 3 attackers

# %%

rng = np.random.default_rng(0)
clean = np.flatnonzero(~hit)
shares = []
for wrong in range(len(clean) + 1):
    noisy = np.tile(votes, (500, 1))
    for row in noisy:
        row[rng.choice(clean, wrong, replace=False)] = rng.integers(3, 8, wrong)
    shares.append((decoder.decode(noisy).labels == 8).mean())

figure, axis = plt.subplots(figsize=(6, 2.8))
axis.plot(shares, "o-", color="#3b6ea5")
axis.set_xlabel(f"wrong votes among the {len(clean)} models that nobody reached")
axis.set_ylabel("right labels")
axis.set_ylim(0, 1.05)
plt.show()

# %%
# One wrong vote is absorbed with certainty; more often are, without a promise. What holds for one input with certainty
# is its *certificate*: the largest number of users who cannot change its label, whatever they plant.

honest = np.full((1, code.n_models), 8)
codeward.certify(honest, code, threat="deterministic", decoder=decoder, max_attackers=3).radius
