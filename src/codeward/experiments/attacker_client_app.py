"""The ClientApp of a simulation with attackers: ``codeward.experiments.attacker_client_app:app``."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from codeward.data import Samples
from codeward.experiments._malicious_clients import load_attacker
from codeward.federated import Assignment, Reply, train_update
from codeward.federated.client_app import answer_message, read_label

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer as the user the assignment names would: an attacker as one, the others honestly."""
    folder = Path(str(context.run_config["simulation"])) / read_label(message.content) / "attack"

    def update(assignment: Assignment, samples: Samples) -> Reply:
        attacker = load_attacker(folder, assignment.user)
        return attacker(assignment, samples) if attacker is not None else train_update(assignment, samples)

    return answer_message(message, context, update)
