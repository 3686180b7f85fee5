"""Run every benchmark that fits this machine: ``python -m benchmarks [NAME ...]``, all when none is named."""

import importlib
import sys

NAMES = (
    "design",
    "decode",
    "certify",
    "tracking",
    "assumptions",
    "train",
    "cost",
    "cluster",
    "convictions",
    "frontier",
    "alarms",
    "serve",
    "federated_attacks",
    "federated_scale",
)

wanted = sys.argv[1:] or NAMES
for name in wanted:
    if name not in NAMES:
        sys.exit(f"no benchmark is named {name!r}; choose from {', '.join(NAMES)}")
    print(f"== {name}", flush=True)
    sys.argv = [name]
    importlib.import_module(f"benchmarks.{name}").main()
