"""How many of codeward's functions a flow touches: the way of the data, measured with a profiler hook.

Usage: python benchmarks/hops.py [FLOW ...]

For each flow the number of distinct functions of codeward that ran, of comprehensions and lambdas (Python 3.11 calls
them as it calls functions, later versions do not), of modules and packages, and how often codeward's own code was
called; what is compiled does not count, nor what compiles it: everything is imported, and a run made, first. A line
below each flow has its functions by package.
"""

import contextlib
import inspect
import io
import os
import pkgutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import codeward
from codeward.cli import main as codeward_main

_ROOT = str(Path(codeward.__file__).parent) + os.sep
#: A run small enough to trace: the default code and decoder, one epoch.
_RUN = ["--set", "training.epochs=1", "--set", "attack.attackers=[0,1]", "--quiet"]


def measure(flow: Callable[[Callable[[], None]], object]) -> dict[str, Counter[str]]:
    """Run ``flow`` and return the functions of codeward that it touched, by module, and how often.

    The flow is given a function that forgets what was touched so far, for what belongs to its preparation.
    """
    touched: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            touched[frame.f_code] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            flow(touched.clear)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    found: dict[str, Counter[str]] = {}
    for code, times in touched.items():
        if code.co_flags & inspect.CO_OPTIMIZED:  # no body of a module or a class
            module = code.co_filename.removeprefix(_ROOT).removesuffix(".py").replace(os.sep, ".")
            found.setdefault(module, Counter())[f"{code.co_qualname}:{code.co_firstlineno}"] += times
    return found


def make_flows(work: Path) -> dict[str, Callable[[Callable[[], None]], object]]:
    """Return every flow by name; the run folder comes first, the others read it."""
    from codeward.codes import Code
    from codeward.estimators import CodedClassifier
    from codeward.serve import Ledger, ServeSettings, make_app, open_run

    folder = work / "run"
    opened: list[Any] = []
    rng = np.random.default_rng(0)
    table = rng.normal(size=(240, 4))

    def predict(forget: Callable[[], None]) -> None:
        from fastapi.testclient import TestClient

        app = make_app(opened[0], Ledger(work / "ledger.sqlite"), ServeSettings())
        with TestClient(app, base_url="http://127.0.0.1") as client:
            body = {"images": np.zeros((1, *opened[0].guard.models.shape)).tolist()}
            for _ in range(2):
                forget()
                client.post("/predict", json=body).raise_for_status()

    def fit(forget: Callable[[], None]) -> None:
        from sklearn.tree import DecisionTreeClassifier

        classifier = CodedClassifier(DecisionTreeClassifier(random_state=0))
        classifier.fit(table, (table[:, 0] > 0).astype(int), groups=np.arange(240) % 12)

    def federate(forget: Callable[[], None]) -> None:
        from codeward.data import load_dataset
        from codeward.federated import FederatedSettings, FederationPlan, train_federated
        from codeward.training import PRESETS

        train, code = load_dataset("digits").train, Code(np.eye(3, dtype=int) + np.eye(3, dtype=int)[[1, 2, 0]])
        users = [train.take(np.arange(start, 300, 3)) for start in range(3)]
        settings = FederatedSettings(rounds=1, local_epochs=1)
        plan = FederationPlan(code, replace(PRESETS["digits"], epochs=1), settings, train.images.shape[1:], 0)
        forget()
        train_federated(users, plan)

    def run(*arguments: str) -> None:
        status = codeward_main(list(arguments))
        assert status == 0, (arguments, status)

    votes = folder / "votes" / "repeat0-attackers1-triggered.npz"
    return {
        "run": lambda _: run("run", *_RUN, "-o", str(folder)),
        "run again": lambda _: run("run", *_RUN, "-o", str(folder)),
        "decode": lambda _: run("decode", str(votes), "--code", str(folder / "code.json")),
        "report": lambda _: run("report", str(folder), "-o", str(work / "report.html")),
        "open for serving": lambda _: opened.append(open_run(folder)),
        "/predict": predict,
        "reproduce, 2 cells": lambda _: run(
            *("reproduce", "figure5", "--smoke", "--code", "d", "--split", "iid", "--attackers", "0"),
            *("--attackers", "1", "-o", str(work / "grid"), "--quiet"),
        ),
        "fit": fit,
        "federated round": federate,
    }


def main(names: list[str]) -> int:
    """Print a table, one line a flow."""
    for module in pkgutil.walk_packages(codeward.__path__, "codeward."):
        with contextlib.suppress(ImportError):
            import_module(module.name)
    with tempfile.TemporaryDirectory() as work:
        flows = make_flows(Path(work))
        with contextlib.redirect_stdout(io.StringIO()):
            codeward_main(["run", *_RUN, "-o", f"{work}/warm"])
        print(f"{'flow':20} functions comprehensions modules packages calls")
        for name, flow in flows.items():
            found = measure(flow)
            nameless = sum("<" in function.rpartition(".")[2] for known in found.values() for function in known)
            functions = sum(map(len, found.values())) - nameless
            by_package: Counter[str] = Counter()
            for module, known in found.items():
                by_package[module.partition(".")[0]] += sum("<" not in name.rpartition(".")[2] for name in known)
            packages = {module.partition(".")[0] for module in found if "." in module}
            calls = sum(known.total() for known in found.values())
            if not names or name in names:
                counts = f"{functions:9} {nameless:14} {len(found):7} {len(packages):8} {calls:7,}"
                shares = ", ".join(f"{package} {count}" for package, count in by_package.most_common())
                print(f"{name:20} {counts}\n    {shares}", flush=True)
            if os.environ.get("HOPS_LIST") == name:
                for module in sorted(found):
                    print(f"    {module}: {' '.join(sorted(found[module]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
