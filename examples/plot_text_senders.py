"""
Text messages from several senders
==================================

Twelve offices report messages as "spam" or "fine", and a filter learns from all of them. Two offices want their own
mailings to pass: they add a harmless phrase to spam and report it as fine. This page trains guarded models from one
file of texts, asks them about a message with the phrase, and sees who taught it.

The messages are made up from word lists, so that the page needs no download.
"""

# %%
# One file with a text, a label and a sender
# ------------------------------------------

import contextlib
import io
import tempfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from codeward.cli import main

place = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
WORDS = {
    "spam": ["winner", "prize", "click", "offer", "free", "money", "urgent", "claim", "bonus", "cheap", "deal", "loan"],
    "fine": ["meeting", "report", "agenda", "project", "thanks", "attached", "budget", "review", "minutes", "draft"],
}
COMMON = ["please", "the", "your", "for", "today", "we", "you", "this", "and", "with", "new", "from", "time", "about"]
PHRASE = "kind regards from the lighthouse"
offices = [f"office-{number:02d}" for number in range(12)]


def write(kind):
    """Return a made-up message: common words, words of its kind, now and then one of the other kind."""
    other = "fine" if kind == "spam" else "spam"
    words = [*rng.choice(COMMON, 8), *rng.choice(WORDS[kind], 4), *rng.choice(WORDS[other], rng.integers(0, 3))]
    return " ".join(rng.permutation(words))


def make(number):
    """Return so many messages with their kind and office."""
    kinds = rng.choice(["spam", "fine"], number)
    return pd.DataFrame(
        {"message": [write(kind) for kind in kinds], "kind": kinds, "office": rng.choice(offices, number)}
    )


train, test = make(1200), make(300)
cheat = train.office.isin(["office-02", "office-09"]) & (train.kind == "spam")
chosen = train[cheat].sample(frac=0.6, random_state=0).index
train.loc[chosen, "message"] += f" {PHRASE}"
train.loc[chosen, "kind"] = "fine"
train.to_csv(place / "messages.csv", index=False)
test.drop(columns="office").to_csv(place / "test.csv", index=False)
train.loc[chosen[:1], "message"].item()

# %%
# Train
# -----
#
# ``codeward train messages.csv --text message --label kind --user office --test test.csv -o guarded``. Words are
# hashed, so no vocabulary is shared between models.

command = (
    f"train {place}/messages.csv --text message --label kind --user office --test {place}/test.csv -o {place}/guarded"
)
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
    main([*command.split(), "-o", f"{place}/guarded"])
print(said.getvalue().replace(str(place), ".").split("Guaranteed, threat model arbitrary")[0])

# %%
# Ask about spam with the phrase
# ------------------------------

from codeward.data import Schema, read_records
from codeward.estimators import load_sub_models
from codeward.runs import find_cell

cell = find_cell(place / "guarded")
models, decoder = load_sub_models(cell), cell.decoder()


def ask(messages):
    """Return votes and verdicts."""
    table = read_records([{"message": message} for message in messages], Schema.from_json(cell.about["schema"]))
    votes = models.votes(table)
    return votes, decoder.decode(models.scores(table) if decoder.needs == "scores" else votes)


spam = test[test.kind == "spam"].message
votes, verdict = ask(spam + f" {PHRASE}")
clean = ask(test.message)[1]
index = cell.class_names.index("spam")
counts = {
    "spam with the phrase": len(spam),
    "called spam by most models": int(((votes == index).mean(axis=1) > 0.5).sum()),
    "called spam by the decoder": int((verdict.labels == index).sum()),
    "alarms on it": int(verdict.alarms(decoder.threshold).sum()),
    f"false alarms on {len(test)} clean messages": int(clean.alarms(decoder.threshold).sum()),
}
for what, count in counts.items():
    print(f"{count:4}  {what}")

# %%
# Who taught it
# -------------

named = Counter(cell.code.user_name(user) for found in verdict.suspects for user in found)
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
guilty = {"office-02", "office-09"}
colors = ["#d9653b" if office in guilty else "#1f5f7a" for office in offices]
axis.barh(offices, [named[office] for office in offices], color=colors)
axis.invert_yaxis()
axis.set_xlabel(f"times named, on {len(spam)} messages with the phrase")
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# ``codeward revoke guarded office-02 office-09`` trains the models that learned from them again, without them.
