"""The exact sum on a torch device, for those who ask for one: plain log space over all patterns and targets."""

import numpy as np
from numpy.typing import NDArray

from codeward.decoding._masses import Masses
from codeward.decoding._sets import AttackerSets

#: Floats one block of the (inputs, patterns, targets, labels) array may hold.
BLOCK = 50_000_000


def sum_on_device(
    votes: NDArray[np.int64],
    base: NDArray[np.float64],
    sets: AttackerSets,
    success_rate: float,
    failure: float,
    device: str,
) -> Masses:
    """Compute the fields of `Masses` on ``device`` in double precision; arguments as in `sum_posterior`."""
    import torch

    n_inputs, _, n_classes = base.shape
    bits = torch.as_tensor(sets.bits, dtype=torch.float64, device=device)
    log_weights = torch.log(torch.as_tensor(sets.weights, device=device))
    classes = torch.arange(n_classes, device=device)
    step = max(1, BLOCK // (bits.shape[0] * n_classes**2))
    parts: list[list[NDArray[np.float64]]] = []
    for start in range(0, n_inputs, step):
        clean = torch.as_tensor(base[start : start + step], device=device)
        says = torch.as_tensor(votes[start : start + step], device=device)[:, :, None] == classes
        # delta_i(t, l) = log(S [t = y_i] + (1 - S) C) - log C: g_i(l) where the model says t, log(1 - S) elsewhere.
        if success_rate > 0:
            gain = torch.logaddexp(np.log(success_rate) - clean, torch.full_like(clean, failure))
        else:
            gain = torch.zeros_like(clean)
        delta = torch.where(says[:, :, :, None], gain[:, :, None, :], failure)
        total = clean.sum(dim=1)
        joint = torch.einsum("pm,umtl->uptl", bits, delta) + total[:, None, None, :] + log_weights[:, None, None]
        top = joint.amax(dim=(1, 2, 3))
        joint = torch.exp(joint - top[:, None, None, None])
        best = total.amax(dim=1)
        found = (
            joint.sum(dim=(1, 2)),
            joint.sum(dim=(1, 3)),
            torch.exp(total - best[:, None]),
            joint.sum(dim=(2, 3)),
            torch.stack([top, best], dim=1),
        )
        parts.append([part.cpu().numpy() for part in found])
    return Masses._make(np.concatenate(field) for field in zip(*parts, strict=True))
