"""
A spam filter that learns from 2,000 senders
============================================

A spam filter learns from mails that somebody labelled, and anybody can send mails. Here the *sender* is the user: real
mails of 2,559 real addresses (SpamAssassin's public corpus), most of whom sent one. How many senders would have to
collude to change the filter's mind about a mail?

Features are hashed words: a pure function, so there is nobody to trust, and no vocabulary that senders could shape.
"""

# %%
# The data
# --------
#
# Words are kept as numbers, in no order, at most fifty a mail; senders are numbers too. The last 559 senders are never
# learned from: the filter is asked about their mails.

import tempfile
from pathlib import Path

import numpy as np
from real_users import ask_served, draw_certified

import codeward
from codeward.codes import partition_code
from codeward.data import load_user_data
from codeward.estimators import save_heads
from codeward.training.backbones import make_backbone
from codeward.training.heads import UserStatistics, fit_heads

folder = next(place for place in (Path("data"), Path("examples/data")) if place.is_dir())
held = np.load(folder / "spam_senders.npz")
mails = [" ".join(np.base_repr(word, 36) for word in words) for words in np.split(held["words"], held["starts"][1:-1])]
spam, sender = held["spam"].astype(int), held["sender"].astype(int)
learn, ask = np.flatnonzero(sender < 2000), np.flatnonzero(sender >= 2000)
print(f"{len(learn)} mails of 2,000 senders to learn from, {len(ask)} of others to ask about, {spam.mean():.0%} spam")

# %%
# Train
# -----
#
# Senders are assigned into groups, one linear head a group. More groups: a sender reaches less, and a head learns less.

backbone = make_backbone("hashed-text")
features = backbone.transform(mails)
right, radius = {}, {}
for n_groups in (10, 40, 120):
    code = partition_code(2000, n_groups)
    heads = fit_heads(features.take(learn), spam[learn], sender[learn], code, n_classes=2, ridge=0.03)
    votes = heads.votes(features.take(ask))
    right[n_groups] = codeward.PluralityDecoder(code, 2).predict(votes) == spam[ask]
    radius[n_groups] = codeward.certify(votes, code, threat="arbitrary", n_classes=2).radius
    one = (votes == spam[ask][:, None]).mean()
    print(f"{n_groups:4} groups: one head {one:.1%} right, their vote {right[n_groups].mean():.1%}")

# %%
# Certify
# -------
#
# Share of the mails that are judged rightly, and would be whatever so many of the senders had sent.

draw_certified(right, radius, "colluding senders")

# %%
# Attack
# ------
#
# Five senders put a word that nobody uses into all their mails and have them pass as ham. Then somebody sends spam with
# that word. Only the groups of the five can learn it; the other heads are those of an honest world, byte for byte.

n_groups, mark = 40, "markmark"
code = partition_code(2000, n_groups)
honest = fit_heads(features.take(learn), spam[learn], sender[learn], code, n_classes=2, ridge=0.03, backbone=backbone)
busiest = np.argsort(-np.bincount(sender[learn], minlength=2000), kind="stable")[:5]
sent = {}
for bad in busiest.tolist():
    texts = [f"{mails[row]} {mark}" for row in learn[sender[learn] == bad] for _ in range(4)]
    sent[bad] = UserStatistics.of(backbone.transform(texts), np.zeros(len(texts), int), n_classes=2)
attacked = honest.replace_users(sent)
hit = code.pattern(busiest.tolist())
marked = backbone.transform([f"{mails[row]} {mark} {mark} {mark}" for row in ask if spam[row]])
votes = attacked.votes(marked)
vote = codeward.PluralityDecoder(code, 2)
untouched = bool((attacked.weights[~hit] == honest.weights[~hit]).all())
print(f"{hit.sum()} of {n_groups} heads learned from the five; the others are untouched: {untouched}")
print(
    f"marked spam passes {1 - votes[:, hit].mean():.1%} of the reached heads, {1 - votes[:, ~hit].mean():.1%} of others"
)

# %%
# What the vote catches: spam without the mark, marked spam if nobody had attacked (a strange word alone makes a mail a
# little less like spam), marked spam after the attack.

plain = honest.votes(features.take(ask[spam[ask] == 1]))
[f"{vote.predict(found).mean():.1%}" for found in (plain, honest.votes(marked), votes)]

# %%
# Forget them
# -----------
#
# Revoking a sender is a subtraction of what it handed in: the bytes of never having had it.

without = attacked
for bad in busiest:
    without = without.revoke(int(bad))
never = honest
for bad in busiest:
    never = never.revoke(int(bad))
print("byte for byte as if they had never sent anything:", bool((without.weights == never.weights).all()))

# %%
# Serve
# -----
#
# The heads go into a folder, with the mails of the other senders to measure on; ``codeward serve`` puts them behind
# HTTP. Here it is started, asked about one mail, and ended.

kinds = np.array(["ham", "spam"])
table = {"mail": [mails[row] for row in ask], "kind": kinds[spam[ask]].tolist()}
test = load_user_data(table, label="kind", user="none", text="mail", classes=("ham", "spam"))
served = Path(tempfile.mkdtemp()) / "spam-filter"
save_heads(served, without, code, test)
answer = ask_served(served, mails[ask[0]], "text/plain")  # starts codeward serve, posts the mail to /predict
print({key: answer[key] for key in ("label", "attack_probability", "flagged")})

# %%
# How many senders it would have taken to change that vote:

radius = codeward.certify(without.votes(features.take(ask[:1])), code, threat="arbitrary", n_classes=2).radius[0]
print(f"{answer['label']}, whatever {radius} senders had sent")
