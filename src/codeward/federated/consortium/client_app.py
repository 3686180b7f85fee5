"""The Flower ClientApp of a consortium: ``codeward.federated.consortium.client_app:app``.

The client of `codeward.federated.client_app` with every reply signed by the user's key (see `sign_reply`).
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from codeward.federated.client_app import answer_message
from codeward.federated.client_app import query as answer_query
from codeward.federated.consortium._signed_grid import sign_reply

__all__ = ["app"]

app = ClientApp(mods=[sign_reply])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the models of this user's column on its own data, and sign what is sent back."""
    return answer_message(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Send the statistics of this user's own data, signed."""
    return answer_query(message, context)
