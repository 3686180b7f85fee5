"""A consortium: federated training between parties that reach each other over a network and trust nobody fully.

`write_consortium` makes the folders (``codeward federate init``), `NodeGate` guards the server's port (``codeward
federate gate``), `KeyBinding` and `SignedGrid` make a user out of a key. The Flower components are
`codeward.federated.consortium.server_app:app` and `codeward.federated.consortium.client_app:app`.
"""

from codeward.federated.consortium import _consortium_texts as layout
from codeward.federated.consortium._consortium_folder import (
    Consortium,
    TlsCertificates,
    make_certificates,
    write_consortium,
)
from codeward.federated.consortium._node_gate import GateSettings, NodeGate, run_gate
from codeward.federated.consortium._roster import Member, Roster
from codeward.federated.consortium._signed_grid import KeyBinding, SignedGrid, bind_nodes, sign_reply

__all__ = [
    "Consortium",
    "GateSettings",
    "KeyBinding",
    "Member",
    "NodeGate",
    "Roster",
    "SignedGrid",
    "TlsCertificates",
    "bind_nodes",
    "layout",
    "make_certificates",
    "run_gate",
    "sign_reply",
    "write_consortium",
]
