"""
Real people as users: the writers of MNIST
==========================================

The training images of MNIST were written by 539 people, and it is known who wrote which. So a *user* is a person here,
and the question is what colluding people could do. Each person's images go to some of the models; every model is a
linear head on fixed features that nobody trained.

The images are not part of this repository. This page reads the records that the study left in ``results/writers``.
"""

# %%
# Groups of people
# ----------------
#
# The simplest code assigns people to groups, one model a group: whoever cheats spoils one model. More groups withstand
# more cheaters, and each model knows less.

from pathlib import Path

import matplotlib.pyplot as plt

from codeward.runs import read_record_folder

folder = next(place for place in (Path("results/writers"), Path("../results/writers")) if place.is_dir())
kept = read_record_folder(folder)
records = {number: kept[f"partition-{number}.json"] for number in (12, 50, 100, 539)}

figure, axis = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for (number, record), color in zip(records.items(), ("#9aa5b1", "#1f5f7a", "#1c6b45", "#d9653b"), strict=True):
    share = [count / record["inputs"] for count in record["certified"]]
    axis.plot(range(len(share)), share, color=color, label=f"{number} groups")
axis.set_xlim(0, 150)
axis.set_ylim(0, 1.02)
axis.set_xlabel("colluding people")
axis.set_ylabel("right and certified")
axis.spines[["top", "right"]].set_visible(False)
axis.legend(frameon=False)
plt.show()

# %%
# The same as numbers: right without attackers, and right whatever 10 or 100 people had handed in. The 10,000 test
# images are by other people than the training images.

for number, record in records.items():
    at = {k: record["certified"][k] / record["inputs"] if k < len(record["certified"]) else 0 for k in (0, 10, 100)}
    print(f"{number:4} groups:  {at[0]:.1%} right,  {at[10]:.1%} against 10,  {at[100]:.1%} against 100")

# %%
# So one chooses by whom one fears: 50 groups for ten people, 539 (every person alone) for a hundred. The price is paid
# in the first column.

# %%
# People who plant a trigger
# --------------------------
#
# Groups name nobody. A tracking code does: 48 models, each learns from a third of the people, and any two cheaters
# leave a pattern of their own. Here one, two, three and ten people put a patch on all their images and gave them one
# label.

attack = kept["attack-track2-48.json"]
cells = {int(number): cell for number, cell in attack["cells"].items() if int(number)}

figure, axis = plt.subplots(figsize=(6.5, 3), layout="constrained")
places = range(len(cells))
for shift, (what, label, color) in enumerate(
    (("plurality_right", "majority of the models", "#9aa5b1"), ("right", "decoder", "#1f5f7a"))
):
    shares = [cell[what] / cell["inputs"] for cell in cells.values()]
    axis.bar([place + 0.4 * shift for place in places], shares, 0.38, color=color, label=label)
axis.set_xticks([place + 0.2 for place in places], cells)
axis.set_xlabel("people who plant the trigger")
axis.set_ylabel("right labels on\ntriggered images")
axis.spines[["top", "right"]].set_visible(False)
axis.legend(frameon=False)
plt.show()

# %%
# Who is named, from all alarms together:

for number, cell in cells.items():
    reached, pooled = cell["models_hit"], cell["pooled"]
    print(f"{number:2} reach {reached} of 48 models: {pooled['rightly']} named rightly, {pooled['wrongly']} wrongly")

# %%
# The code is made for two. With two, both are named and the labels survive. Three are past the promise: most labels
# survive, not all names. Ten reach every model, and nothing is left.

# %%
# Do it yourself
# --------------
#
# With the data (about 60 MB) and some minutes::
#
#     codeward data fetch mnist-writers --data-dir data
#     codeward reproduce writers --data-dir data -o again
#
# For your own people: ``codeward train FILE --user COLUMN --backbone strokes`` for handwriting, or another of
# ``codeward features list``.
