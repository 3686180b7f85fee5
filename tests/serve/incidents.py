"""Incidents, and ways to spoil the database they are in."""

import hashlib
from dataclasses import replace

from codeward.codes import named_code
from codeward.serve import Incident

CODE = named_code("g")


def make_incident(number: int = 0, **changes) -> Incident:
    whole = Incident(
        votes=(3, 3, 7, 3, 3, 3),
        attack_probability=0.9,
        label=7,
        target=3,
        suspects=(2,),
        user_probability=(0.0,) * 2 + (1.0,) + (0.0,) * 13,
        digest=hashlib.sha256(str(number).encode()).hexdigest(),
        code_digest=CODE.digest,
        run="run/repeat0-attackers1",
    )
    return replace(whole, **changes)


def change(ledger, statement):
    with ledger._engine.begin() as connection:
        connection.exec_driver_sql(statement)
