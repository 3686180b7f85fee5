import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import codeward


@pytest.mark.parametrize(
    "statement",
    [
        "import codeward",
        "import codeward; codeward.Code",
        "import codeward.cli",
        "import codeward.decoding, codeward.certificates",
        "import codeward.report",
        "from codeward.training import SubModels",
        "from codeward.reproduction import PackedSetting, build_grid_report, check_claims, is_grid",
    ],
)
def test_what_proves_never_imports_torch(statement):
    check = f"{statement}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_a_label_that_nobody_named_is_asked_for_before_anything_heavy_is_loaded(tmp_path):
    (tmp_path / "data.csv").write_text("age,risk\n1,low\n2,high\n")
    asked = ["train", str(tmp_path / "data.csv"), "-o", str(tmp_path / "run")]
    check = (
        f"from codeward.cli import main; import sys; status = main({asked!r})\n"
        "sys.exit(status != 2 or bool({'torch', 'sklearn', 'numba', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert "give --label COL" in done.stderr
    assert done.returncode == 0


def test_every_public_name_can_be_imported():
    for name in codeward.__all__:
        assert getattr(codeward, name) is not None
    assert set(codeward.__all__) <= set(dir(codeward))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        codeward.nothing_like_it  # noqa: B018


def test_names_are_found_in_a_zip_archive_too(tmp_path):
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", Path(codeward.__file__).parents[1], "codeward")
    check = (
        "import codeward, codeward.runs; print(codeward.__file__, codeward.Code.__name__, codeward.runs.share(1, 2))"
    )
    done = subprocess.run([sys.executable, "-c", check], env={"PYTHONPATH": archive}, capture_output=True, text=True)
    assert done.stdout == f"{archive}/codeward/__init__.py Code {{'count': 1, 'of': 2}}\n"
