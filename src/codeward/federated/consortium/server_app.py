"""The Flower ServerApp of a consortium: ``codeward.federated.consortium.server_app:app``.

The environment of the SuperLink, not the run, names the server's folder (``CODEWARD_CONSORTIUM``): whoever submits a
run chooses neither the roster nor the plan.
"""

import os
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from codeward._errors import InputError
from codeward.federated._federation_folder import FederationFolder
from codeward.federated._flower_rounds import run_federation
from codeward.federated._one_round import ONE_ROUND_FILE, OneRoundPlan
from codeward.federated.consortium._consortium_texts import CONSORTIUM, PLAN_FOLDER, ROSTER_FILE
from codeward.federated.consortium._roster import Roster
from codeward.federated.consortium._signed_grid import KeyBinding, SignedGrid
from codeward.federated.server_app import run_one_round

__all__ = ["app"]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the federation of the server's folder with the users of its roster.

    Users are bound by registered key, replies count by signature (see `KeyBinding` and `SignedGrid`). The run
    configuration holds ``join-timeout`` (seconds to wait for users before the first round) and ``quorum`` (users to
    wait for; 0: all).
    """
    folder = Path(os.environ.get(CONSORTIUM, ""))
    if not os.environ.get(CONSORTIUM) or not folder.is_dir():
        raise InputError(f"{CONSORTIUM} must name the server's folder before flower-superlink is started")
    roster = Roster.load(folder / ROSTER_FILE)
    agreed = folder / PLAN_FOLDER / ONE_ROUND_FILE
    once = agreed.is_file()
    code = OneRoundPlan.load(agreed).code if once else FederationFolder(folder / PLAN_FOLDER).load_plan().code
    if roster.code_digest != code.digest:
        raise InputError(f"{ROSTER_FILE} belongs to another code: its columns are not the columns of this one")
    patience, quorum = context.run_config.get("join-timeout", 120), context.run_config.get("quorum", 0)
    if not isinstance(patience, int | float) or not isinstance(quorum, int):
        raise InputError("run config: join-timeout is a number of seconds, quorum a number of users")
    train: Callable[..., object] = run_one_round if once else run_federation
    train(
        SignedGrid(grid, roster),
        folder / PLAN_FOLDER,
        KeyBinding(roster),
        join_timeout=float(patience),
        quorum=quorum or len(roster.members),
    )
