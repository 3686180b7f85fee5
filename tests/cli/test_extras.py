"""A core install: commands that need an extra say in one line which."""

import subprocess
import sys

import pytest

import codeward

BLOCKED = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
from codeward.cli import main
sys.exit(main({arguments!r}))
"""


def call(missing, arguments, folder):
    program = BLOCKED.format(missing=missing, arguments=arguments)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        (["torch", "pydantic", "yaml"], ["run"], "train"),
        (["torch", "fastapi", "uvicorn", "sqlalchemy"], ["serve", "."], "codeward["),
        (["sqlalchemy"], ["ledger", "list"], "serve"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(missing, arguments, extra, tmp_path):
    done = call(missing, arguments, tmp_path)
    assert done.returncode == 2
    assert "pip install 'codeward[" in done.stderr
    assert extra in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_command_says_its_version_and_is_a_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "codeward", "--version"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"codeward {codeward.__version__}\n")


def test_what_needs_no_extra_works_without(tmp_path):
    import numpy as np

    from codeward.codes import named_code
    from codeward.decoding import save_votes

    code = named_code("d")
    code.save(tmp_path / "code.json")
    save_votes(tmp_path / "votes.npz", np.zeros((5, code.n_models), dtype=np.int64))
    missing = ["joblib", "pydantic", "yaml", "jinja2", "platformdirs", "sqlalchemy"]
    for told in (["decode", "votes.npz", "--decoder", "plurality"], ["certify", "votes.npz", "--threat", "arbitrary"]):
        done = call(missing, [*told, "--code", "code.json", "--classes", "2", "--json"], tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    program = "import sys; sys.modules['joblib'] = None\nfrom codeward import CodedClassifier"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr.splitlines()[-1].endswith("needs joblib; pip install 'codeward[train]' brings it")
