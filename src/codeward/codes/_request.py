"""What a designer is asked for, checked."""

from dataclasses import dataclass

from codeward._errors import InputError, TooLargeError

#: The guarantees a code can be designed for; DESIGN.md, "Properties" and "Two threat models".
GUARANTEES = ("detect", "correct", "correct-arbitrary", "track")
#: Users a code is designed for at most.
MAX_USERS = 100_000


@dataclass(frozen=True)
class Request:
    """A wanted code: n users, at most k attackers, every row of at least r ones, a guarantee and its margin.

    Attributes
    ----------
    n_users, n_attackers, row_weight : int
        The letters n, k, r.
    guarantee : {"detect", "correct", "correct-arbitrary", "track"}
        BDC, BCC (deterministic threat model), BDC(2k) (arbitrary threat model), BTC.
    margin : int
        Least number of rows by which the property holds: zeros of a k-sum (detect) or a 2k-sum (correct-arbitrary),
        the label margin (correct), the label and the tracking margin (track). 1 is the bare property.
    """

    n_users: int
    n_attackers: int
    row_weight: int
    guarantee: str
    margin: int = 1

    @property
    def strength(self) -> int:
        """Size of the sets that a model must avoid: k, or 2k for the arbitrary threat model."""
        return 2 * self.n_attackers if self.guarantee == "correct-arbitrary" else self.n_attackers

    @property
    def block_size(self) -> int:
        """Most zeros a row may have, n - r: the block size of the covering."""
        return self.n_users - self.row_weight

    @property
    def covering_only(self) -> bool:
        """Whether a covering of the users by zero sets is all that is asked."""
        return self.guarantee in ("detect", "correct-arbitrary")


def check_request(n_users: int, n_attackers: int, guarantee: str, margin: int) -> None:
    """Refuse what no row weight could satisfy."""
    for name, value, least in (("users", n_users, 2), ("attackers", n_attackers, 1), ("margin", margin, 1)):
        if isinstance(value, bool) or int(value) != value or value < least:
            raise InputError(f"design: {name} must be a whole number of at least {least}, got {value}")
    if n_users > MAX_USERS:
        raise TooLargeError(f"design: {n_users:,} users are too many; {MAX_USERS:,} are the most")
    if guarantee not in GUARANTEES:
        raise InputError(f"design: guarantee must be one of {', '.join(GUARANTEES)}, got {guarantee!r}")


def make_request(n_users: int, n_attackers: int, row_weight: int, guarantee: str, margin: int) -> Request:
    """Check and build a request.

    For n >= k + r (n >= 2k + r for correct-arbitrary) a code always exists: all rows with at most k (2k) zeros have
    every property, and repeating each row d times gives it the margin d. So this refuses exactly the impossible.

    Raises
    ------
    InputError
        When no such code exists; the message says why.
    """
    check_request(n_users, n_attackers, guarantee, margin)
    if isinstance(row_weight, bool) or int(row_weight) != row_weight or row_weight < 1:
        raise InputError(f"design: the row weight must be a whole number of at least 1, got {row_weight}")
    request = Request(int(n_users), int(n_attackers), int(row_weight), guarantee, int(margin))
    if n_users < request.strength + row_weight:
        sets = "2k (correct-arbitrary must outvote two attacker sets)" if guarantee == "correct-arbitrary" else "k"
        raise InputError(
            f"design: impossible: n = {n_users} users are fewer than {sets} + r = {request.strength} + {row_weight}; "
            f"a model that avoids {request.strength} users has at most {max(n_users - request.strength, 0)} left, "
            f"so ask for a row weight of at most {max(n_users - request.strength, 0)} or for fewer attackers"
        )
    return request
