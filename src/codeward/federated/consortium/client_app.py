"""The Flower ClientApp of a consortium: ``codeward.federated.consortium.client_app:app``.

The client of `codeward.federated.client_app` with every reply signed by the user's key (see `sign_reply`).
"""

from flwr.clientapp import ClientApp

from codeward.federated.client_app import query, train
from codeward.federated.consortium._signed_grid import sign_reply

__all__ = ["app"]

app = ClientApp(mods=[sign_reply])
app.train()(train)
app.query()(query)
