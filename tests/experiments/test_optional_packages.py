import subprocess
import sys

import pytest

# A machine that only trains has torch, but not the packages that fetch, solve and plot.
BLOCK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
{statement}
"""
ALWAYS = ("platformdirs", "pooch", "ortools", "matplotlib")


@pytest.mark.parametrize(
    ("statement", "blocked"),
    [
        ("import codeward.data, codeward.attacks, codeward.training", (*ALWAYS, "pydantic", "yaml", "sklearn")),
        ("import codeward.experiments", ALWAYS),
        ("from codeward.data import load_dataset; load_dataset('digits')", (*ALWAYS, "pydantic", "yaml")),
        ("import codeward.cli", (*ALWAYS, "pydantic", "yaml", "sklearn", "torch")),
    ],
)
def test_packages_are_imported_only_where_they_are_used(statement, blocked):
    code = BLOCK.format(blocked=set(blocked), statement=statement)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_needs_no_matplotlib_for_its_plots(tmp_path):
    options = ["code.name=d", "decoder.name=bayes", "training.epochs=1", "attack.attackers=[1]"]
    arguments = ["run", *(part for option in options for part in ("--set", option)), "-o", str(tmp_path), "--quiet"]
    code = BLOCK.format(blocked=set(ALWAYS), statement=f"from codeward.cli import main; sys.exit(main({arguments!r}))")
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (tmp_path / "records" / "repeat0-attackers1.json").exists()
    assert {file.name for file in (tmp_path / "plots").iterdir()} == {"accuracy.svg", "code.svg", "users.svg"}
