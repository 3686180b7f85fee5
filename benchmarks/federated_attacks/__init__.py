"""What stops a trigger in federated training? One global model under Flower's strategies against a code's sub-models.

    python -m benchmarks.federated_attacks --dataset digits [--seeds 0 1 2] [--attackers 1 2] [--docs]
    python -m benchmarks.federated_attacks --dataset mnist --images-per-user 1000 --data-dir data --seeds 0

The same users, data, attackers, trigger and local training everywhere; what differs is what the server does with the
replies. *One global model*: 12 users, one network, combined by ``aggregate_train`` of Flower's own strategies.
*codeward*: the sub-models of a code that is BDC(2k) with a margin, each averaged over its row, decoded by plurality, by
the paper's Bayes decoder and by the consensus decoder with k and the e = (margin - 1) / 2 that its theorem allows.

Every cell is one JSON record in ``results/federated-<dataset>/``, written when it is done; cells that are there are not
run again. ``--docs`` writes the tables into docs/federated-attacks.md, from the records alone.
"""

from benchmarks.federated_attacks._command import main
from benchmarks.federated_attacks._global_model import aggregate, make_strategy, run_global
from benchmarks.federated_attacks._records import load_all, write_docs, write_tables
from benchmarks.federated_attacks._sub_models import (
    attack_code,
    choose_framed,
    make_bayes,
    run_code,
    train_hit,
    train_honest,
)
from benchmarks.federated_attacks._trial import TRIALS, draw_group, find_code, prepare

__all__ = [
    "TRIALS",
    "aggregate",
    "attack_code",
    "choose_framed",
    "draw_group",
    "find_code",
    "load_all",
    "main",
    "make_bayes",
    "make_strategy",
    "prepare",
    "run_code",
    "run_global",
    "train_hit",
    "train_honest",
    "write_docs",
    "write_tables",
]
