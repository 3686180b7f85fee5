"""The Flower ServerApp: ``codeward.federated.server_app:app``.

The run configuration names the server's folder (``federation``). Nodes are bound to users in order, as a simulation
does; a deployment wraps `run_federation` with a binding by registered keys.
"""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from codeward._errors import InputError
from codeward.federated._binding import NodeBinding, OrderBinding
from codeward.federated._folder import open_folder
from codeward.federated._serving import run_federation

__all__ = ["NodeBinding", "OrderBinding", "app", "find_folder", "run_federation"]

app = ServerApp()


def find_folder(context: Context) -> str:
    """Return the server's folder that the run configuration names."""
    folder = context.run_config.get("federation")
    if not isinstance(folder, str) or not folder:
        raise InputError("run config: federation must name the server's folder, as codeward federate writes it")
    return folder


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the federation of the run configuration on simulated nodes."""
    folder = find_folder(context)
    run_federation(grid, folder, OrderBinding(open_folder(folder).load_plan().code.n_users))
