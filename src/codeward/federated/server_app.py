"""The Flower ServerApp: ``codeward.federated.server_app:app``.

The run configuration names the working folder of a simulation and its federations. Nodes are bound to users in order,
as a simulation does; a deployment wraps `run_federation` with a binding by registered keys.
"""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from codeward._errors import InputError
from codeward.federated._federation_folder import FederationFolder
from codeward.federated._flower_one_round import run_one_round
from codeward.federated._flower_rounds import NodeBinding, OrderBinding, pack_assignment, run_federation, unpack_reply
from codeward.federated._one_round import ONE_ROUND_FILE, OneRoundPlan

__all__ = ["NodeBinding", "OrderBinding", "app", "pack_assignment", "run_federation", "unpack_reply"]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the federations of the run configuration, one after the other, on simulated nodes."""
    work, labels = (context.run_config.get(key) for key in ("simulation", "federations"))
    if not isinstance(work, str) or not isinstance(labels, str) or not labels:
        raise InputError("run config: simulation must name a folder and federations those in it, as codeward writes it")
    for label in labels.split(","):
        folder = FederationFolder(Path(work) / label / "server")
        if (folder.path / ONE_ROUND_FILE).is_file():
            users = OneRoundPlan.load(folder.path / ONE_ROUND_FILE).code.n_users
            run_one_round(grid, folder.path, OrderBinding(users), label=label)
        else:
            run_federation(grid, folder.path, OrderBinding(folder.load_plan().code.n_users), label=label)
