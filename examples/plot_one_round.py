"""
Federated learning in one round
===============================

Linear heads on fixed features need no rounds of updates. A user sends one message: the Gram matrix of its features and
the sum of its features for each class. The server adds up messages; a sub-model is one linear solve. Since a user sends
*one* message for all its sub-models, it cannot tell them different things.
"""

# %%
# Twelve users, fixed features
# ----------------------------
#
# The features are a pure function of the image: here its pixels, scaled to length one. Nothing is learned from users.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import codeward
from codeward.training.heads import StatisticsSet, fit_heads, gather_statistics, pack_statistics, unpack_statistics

images, labels = load_digits(return_X_y=True)
features = images / np.linalg.norm(images, axis=1, keepdims=True)
train, test = np.arange(0, 1200), np.arange(1200, 1797)
users = np.arange(1200) % 12

# %%
# What a user sends
# -----------------

own = gather_statistics(features[train], labels[train], users, n_classes=10)
messages = [pack_statistics(user) for user in own.users]
{name: array.shape for name, array in messages[0].items()}

# %%
# What the server checks
# ----------------------
#
# Users are not trusted. A message must be one that real samples could give: on the grid of features, within the number
# of samples it claims, positive semidefinite. User 4 tries to count a hundred times:

greedy = {name: array * 100 if name != "counts" else array for name, array in messages[4].items()}
try:
    unpack_statistics(greedy, width=64, n_classes=10, sender="user 4")
except codeward.InputError as error:
    print(error)

# %%
# Sub-models from twelve messages
# -------------------------------

received = StatisticsSet(tuple(unpack_statistics(message, 64, 10) for message in messages))
code = codeward.design(12, n_attackers=2, utilization=1 / 3, guarantee="track", margin=3, reproducible=True).code
heads = fit_heads(received, None, None, code, n_classes=10, form="primal")
votes = heads.votes(features[test])
accuracy = (votes == labels[test][:, None]).mean(axis=0)
print(
    f"{code.n_models} sub-models, each right on {accuracy.min():.1%} to {accuracy.max():.1%} of {len(test)} test images"
)

# %%
# The same heads as from pooled data, to the last bit: sums of features on the grid are exact in any order.

pooled = fit_heads(features[train], labels[train], users, code, n_classes=10, form="primal")
bool((pooled.weights == heads.weights).all())

# %%
# How many users could not have changed an answer, whatever they had sent:

radius = codeward.certify(votes, code, threat="arbitrary", n_classes=10).radius
right = codeward.PluralityDecoder(code).predict(votes) == labels[test]
curve = [(right & (radius >= k)).mean() for k in range(4)]
figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
axis.bar(range(4), curve, color="#1f5f7a")
for k, share in enumerate(curve):
    axis.text(k, share + 0.02, f"{share:.1%}", ha="center")
axis.set_xticks(range(4))
axis.set_xlabel("colluding users")
axis.set_ylabel("right and certified")
axis.set_ylim(0, 1.1)
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Somebody leaves
# ---------------
#
# Taking a user out is a subtraction, and gives the bytes of never having had it.

without = heads.revoke(5)
others = StatisticsSet(received.users[:5] + received.users[6:])
never = fit_heads(others, None, None, codeward.Code(np.delete(code.matrix, 5, axis=1)), n_classes=10, form="primal")
bool((without.weights == never.weights).all())
