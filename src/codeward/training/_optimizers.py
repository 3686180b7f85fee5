"""Adam and SGD as elementwise functions that a compiler turns into one pass over weights, moments and gradient."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from codeward.training._training_settings import TrainingSettings

#: torch.optim.Adam's defaults, which the paper's recipe keeps.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

#: Momentum of SGD, Nesterov's form.
MOMENTUM = 0.9

#: (weights, first moment, second moment, gradient, step count, rate, copy of the weights) -> nothing; all updated in
#: place.
Update = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]


def make_update(settings: TrainingSettings) -> Update:
    """Return one step of the recipe's optimizer with L2 decay, elementwise on flat tensors.

    Adam is that of Kingma and Ba 2015, algorithm 1, at a constant rate; SGD that of ``torch.optim.SGD`` with Nesterov
    momentum, at the rate of the step.
    """
    rate, decay = settings.learning_rate, settings.weight_decay

    def update_sgd(
        weights: Tensor, first: Tensor, second: Tensor, grad: Tensor, count: Tensor, rate: Tensor, copy: Tensor
    ) -> None:
        total = grad.float() + decay * weights
        velocity = MOMENTUM * first + total
        moved = weights - rate * (total + MOMENTUM * velocity)
        weights.copy_(moved)
        first.copy_(velocity)
        copy.copy_(moved)

    def update_adam(
        weights: Tensor, first: Tensor, second: Tensor, grad: Tensor, count: Tensor, _: Tensor, copy: Tensor
    ) -> None:
        # 1. g = grad + decay * w
        total = grad.float() + decay * weights
        # 2. m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        m = BETA1 * first + (1 - BETA1) * total
        v = BETA2 * second + (1 - BETA2) * total * total
        # 3. w = w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        mean = m / (1 - torch.pow(BETA1, count))
        scale = torch.sqrt(v / (1 - torch.pow(BETA2, count))) + EPSILON
        moved = weights - rate * mean / scale
        weights.copy_(moved)
        first.copy_(m)
        second.copy_(v)
        copy.copy_(moved)

    return update_sgd if settings.optimizer == "sgd" else update_adam


class WeightGroup:
    """Weights of one kind in one flat float32 buffer, with moments and a copy in the type of the arithmetic.

    Parameters
    ----------
    tensors : sequence of Tensor
        Initial weights; their shapes and memory formats are kept.
    compute : torch.dtype
        Type of the copy that the network reads; gradients arrive in it.
    joined : bool
        Update all weights in one call, after joining their gradients: for many small weights. Large ones are updated
        one by one, which spares the joining.
    update : callable
        From `make_update`, compiled or not.
    """

    def __init__(self, tensors: Sequence[Tensor], compute: torch.dtype, joined: bool, update: Update) -> None:
        device = tensors[0].device
        self.update = update
        # Starts at multiples of 64 keep every weight aligned for the widest loads, as in an allocation of its own.
        places = [-(-tensor.numel() // 64) * 64 for tensor in tensors]
        total = sum(places)
        state = [torch.zeros(total, device=device) for _ in range(3)]
        self.weights, self.first, self.second = state
        self.copy = torch.zeros(total, device=device, dtype=compute)
        self.count = torch.zeros((), device=device)
        self.tensors = tensors
        self.masters: list[Tensor] = []
        self.leaves: list[Tensor] = []
        #: Weights, moments and copy of each call of ``update``.
        self.parts: list[tuple[Tensor, ...]] = []
        start = 0
        for tensor, place in zip(tensors, places, strict=True):
            shape, strides = tensor.shape, tensor.stride()
            self.masters.append(self.weights.as_strided(shape, strides, start))
            self.leaves.append(self.copy.as_strided(shape, strides, start).detach().requires_grad_())
            if not joined:
                self.parts.append(tuple(flat[start : start + tensor.numel()] for flat in (*state, self.copy)))
            start += place
        self.grad: Tensor | None = None
        if joined:
            self.parts = [(*state, self.copy)]
            self.grad = torch.zeros_like(self.copy)
            self.gaps = [self.copy.new_zeros(p - t.numel()) for t, p in zip(tensors, places, strict=True)]

    def step(self, grads: Sequence[Tensor], rate: Tensor) -> None:
        """Take one step."""
        flat = [_flatten(grad, tensor) for grad, tensor in zip(grads, self.tensors, strict=True)]
        if self.grad is not None:
            pieces = [piece for pair in zip(flat, self.gaps, strict=True) for piece in pair if piece.numel()]
            flat = [torch.cat(pieces, out=self.grad)]
        self.count += 1
        for grad, (weights, first, second, copy) in zip(flat, self.parts, strict=True):
            self.update(weights, first, second, grad, self.count, rate, copy)

    def reset(self) -> None:
        """Forget the moments and read the copy anew from the weights."""
        for tensor in (self.first, self.second, self.count):
            tensor.zero_()
        self.copy.copy_(self.weights)


def _flatten(grad: Tensor, like: Tensor) -> Tensor:
    """Return the values of ``grad`` in the memory order of ``like``, without a copy where they already are."""
    axes = [axis for axis, size in enumerate(like.shape) if size > 1]
    if [grad.stride(axis) for axis in axes] != [like.stride(axis) for axis in axes]:
        grad = torch.empty_like(like, dtype=grad.dtype).copy_(grad)
    return grad.as_strided((grad.numel(),), (1,))
