"""Machine code never outlives the sources it was made from."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import codeward
from codeward import _compiled

PACKAGE = Path(codeward.__file__).parent

CODE = """
import numpy as np
from codeward.codes import Code
rng = np.random.default_rng(0)
code = Code([[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 1, 0], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 0, 0]])
"""
UNION = """
import numpy as np
from codeward.decoding._pruned_search import widest_union
print(widest_union(np.array([[1], [2], [4]], dtype=np.uint64), 2))
"""
BAYES = """
from codeward.decoding import BayesDecoder
confusion = np.full((6, 3, 3), 0.1) + 0.7 * np.eye(3)
votes = rng.integers(0, 3, (4, 6))
print(BayesDecoder(code, confusion, method="METHOD").decode(votes).attack_probability.round(12).tolist())
"""
SOFT = """
from codeward.decoding.soft import SoftDecoder
labels = rng.integers(0, 3, 120)
scores = rng.normal(size=(120, 6, 3)) + 3 * np.eye(3)[labels][:, None, :]
scores -= np.log(np.exp(scores).sum(axis=2, keepdims=True))
decoder = SoftDecoder(code, attackers_prior=(0.5, 0.5), n_simulated=60).fit(scores, labels)
print(decoder.decode(scores[:9]).attack_probability.round(12).tolist())
"""
#: Where a function is, and what to change in it.
COUNT = ("def bit_count(", "v = np.uint64(value)\n", "v = np.uint64(value) ^ np.uint64(64)\n")
GAIN = ("def log_gain(", "np.log(success_rate * np.exp(-base)", "np.log(0.5 * success_rate * np.exp(-base)")
TREES = ("def add_trees(", "totals[n] += values", "totals[n] -= values")


def answer(program, source, cache):
    environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(cache)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def copy_package(folder):
    shutil.copytree(PACKAGE, folder / "codeward", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def change(source, where, old, new):
    (path,) = [path for path in source.rglob("*.py") if where in path.read_text(encoding="utf-8")]
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("program", "changed"),
    [
        pytest.param(UNION, COUNT, id="another file"),
        pytest.param(CODE + BAYES.replace("METHOD", "exact"), GAIN, id="exact", marks=pytest.mark.slow),
        pytest.param(CODE + BAYES.replace("METHOD", "pruned"), GAIN, id="pruned", marks=pytest.mark.slow),
        pytest.param(CODE + SOFT, TREES, id="soft", marks=pytest.mark.slow),
    ],
)
def test_a_changed_function_changes_what_kernels_that_call_it_answer(tmp_path, program, changed):
    source, cache = copy_package(tmp_path / "source"), tmp_path / "cache"
    before = answer(program, source, cache)
    old = {path.name for path in cache.glob("*/kernels-*")}
    assert len(old) == 1
    kept = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
    assert answer(program, source, cache) == before
    # The second process compiled nothing.
    assert kept == {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}

    change(source, *changed)
    assert answer(program, source, cache) != before
    # The old machine code is gone.
    assert old.isdisjoint(path.name for path in cache.glob("*/kernels-*"))


def test_everything_a_kernel_uses_is_in_the_digest():
    covered = _compiled._kernel_sources()
    assert len(covered) >= 10
    for path, source in covered.items():
        tree = ast.parse(source)
        kernels = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and any("compiled" in ast.unparse(mark) for mark in node.decorator_list)
        ]
        used = {name.id for kernel in kernels for name in ast.walk(kernel) if isinstance(name, ast.Name)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("codeward"):
                needed = [alias.name for alias in node.names if (alias.asname or alias.name) in used]
                # A package that only passes a name on would not do: its definition may lie in a file left out.
                home = PACKAGE.joinpath(*node.module.split(".")[1:]).with_suffix(".py").resolve()
                assert not needed or home in covered, f"{path.name} compiles {needed} of {node.module}"


def test_only_one_place_asks_numba_to_compile():
    marks = ("njit", "@jit", "vectorize(", "cfunc(")
    found = [path.name for path in PACKAGE.rglob("*.py") if any(mark in path.read_text("utf-8") for mark in marks)]
    assert found == ["_compiled.py"]


def test_without_a_folder_to_write_kernels_still_run(tmp_path):
    (tmp_path / "file").write_text("")
    run = "from codeward.decoding._posterior_kernels import log_gain; print(log_gain._cache)"
    for folder in (tmp_path / "file" / "below", tmp_path / "fine"):
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "NUMBA_CACHE_DIR": str(folder)}
        subprocess.run([sys.executable, "-c", run], env=environment, check=True, capture_output=True)


def test_a_removed_folder_is_only_a_miss(tmp_path):
    run = """
import shutil, sys
from codeward.decoding._posterior_kernels import log_gain
shutil.rmtree(sys.argv[1])
print(abs(log_gain(-0.5, 0.9) - log_gain.py_func(-0.5, 0.9)) < 1e-12)
"""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", run, str(tmp_path / "cache")]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
