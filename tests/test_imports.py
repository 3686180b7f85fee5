import subprocess
import sys

import pytest


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


def test_every_public_name_can_be_imported():
    import codeward

    for name in codeward.__all__:
        assert getattr(codeward, name) is not None
    assert set(codeward.__all__) <= set(dir(codeward))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        codeward.nothing_like_it  # noqa: B018
