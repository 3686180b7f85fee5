"""A consortium: federated training between parties that reach each other over a network and trust nobody fully.

`write_consortium` makes the folders (``codeward federate init``), `Gate` guards the server's port (``codeward federate
gate``), `KeyBinding` and `SignedGrid` make a user out of a key. The Flower components are
`codeward.federated.consortium.server_app:app` and `codeward.federated.consortium.client_app:app`.
"""

from codeward.federated.consortium._binding import KeyBinding, bind_nodes
from codeward.federated.consortium._certificates import Certificates, make_certificates
from codeward.federated.consortium._gate import Gate, GateSettings, run_gate
from codeward.federated.consortium._grid import SignedGrid
from codeward.federated.consortium._roster import Member, Roster
from codeward.federated.consortium._signatures import sign_reply
from codeward.federated.consortium._writing import Consortium, write_consortium

__all__ = [
    "Certificates",
    "Consortium",
    "Gate",
    "GateSettings",
    "KeyBinding",
    "Member",
    "Roster",
    "SignedGrid",
    "bind_nodes",
    "make_certificates",
    "run_gate",
    "sign_reply",
    "write_consortium",
]
