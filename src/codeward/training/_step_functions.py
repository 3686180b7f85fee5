"""One training step as functions of tensors: the loss of a batch, its gradient, and the optimizer.

A compiler turns loss and optimizer into few kernels; for the modern networks there are kernels of our own.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from codeward.training._device_batches import KEY_STEP, CounterDropout, Picked, mixed_losses, own_dropout
from codeward.training._engines import TrainingContext
from codeward.training._training_settings import TrainingSettings

Named = dict[str, Tensor]
#: (parameters, buffers, picked samples, labels, shifts, count, share, full batch, position, seed of the keys) -> loss.
Loss = Callable[[Named, Named, Picked, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
#: The same -> the gradient by every parameter.
Gradient = Callable[[Named, Named, Picked, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Named]


def make_loss(context: TrainingContext) -> Loss:
    """Return the loss of one step as a function of tensors only, from the samples of a batch to the mean.

    Everything from augmenting the batch on goes into one function so that a compiler can fuse it. No tensor in it has a
    shape that depends on the length of a training or on the number of samples: kernels are compiled once for a recipe,
    and nothing but a model's own users and the recipe decides which.
    """
    device, half = context.samples.device, context.precision == "bfloat16"
    settings = context.settings
    network = own_dropout(context.build(0), None).train().to(device)
    for name in list_uncounted(network):
        network.get_submodule(name).num_batches_tracked = None  # type: ignore[assignment]
    drops = [name for name, module in network.named_modules() if isinstance(module, CounterDropout)]
    places = torch.arange(settings.batch_size, device=device)

    def loss(
        parameters: Named,
        buffers: Named,
        picked: Picked,
        labels: Tensor,
        shifts: Tensor,
        count: Tensor,
        share: Tensor,
        full: Tensor,
        position: Tensor,
        seed: Tensor,
    ) -> Tensor:
        key, mixed = _find_key(seed, position), share[0] if settings.mixup else None
        images = context.draw_batch(picked, shifts, key, mixed).permute(0, 3, 1, 2)
        state = {**parameters, **buffers, **{f"{name}.key": key for name in drops}}
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = functional_call(network, state, (images,))
        losses = mixed_losses(logits.float(), labels, mixed, settings.label_smoothing)
        if settings.batches == "mixed":  # every place counts
            return losses.mean()
        return (torch.where(places < count, losses, 0) / full[0]).sum()

    return loss


def _find_key(seed: Tensor, position: Tensor) -> Tensor:
    return (seed + position * KEY_STEP).to(torch.int32)[0]


def differentiate(loss: Loss) -> Gradient:
    """Return the gradient of a loss by autograd."""

    def gradient(parameters: Named, *others: Any) -> Named:
        found = torch.autograd.grad(loss(parameters, *others), list(parameters.values()))
        return dict(zip(parameters, found, strict=True))

    return gradient


def make_fast_gradient(context: TrainingContext) -> Gradient | None:
    """Return the gradient of a modern recipe's network by kernels of our own, or None where they do not fit."""
    settings, network = context.settings, context.build(0)
    on_gpu = context.samples.device.type == "cuda" and importlib.util.find_spec("triton") is not None
    if not on_gpu or settings.batches != "mixed":
        return None
    from codeward.training._fast_gradient import FastGradient
    from codeward.training._fused_layers import list_layers

    layers = list_layers(network, context.shape)
    if layers is None:
        return None
    kind = torch.bfloat16 if context.precision == "bfloat16" else torch.float32
    fast = FastGradient(network, layers, settings.batch_size, settings.label_smoothing, kind)

    @torch.compile(dynamic=False)
    def draw(picked: Picked, shifts: Tensor, share: Tensor, position: Tensor, seed: Tensor) -> Tensor:
        mixed = share[0] if settings.mixup else None
        return context.draw_batch(picked, shifts, _find_key(seed, position), mixed).contiguous()

    from codeward.training._warp_kernel import LARGEST, WarpedBatches

    plain = not (settings.mixup or settings.jitter or settings.cutout)
    if settings.augmentation == "warp" and plain and context.shape[1] * context.shape[2] <= LARGEST:
        warped = WarpedBatches(context.samples, kind)

        def draw(picked: Picked, shifts: Tensor, share: Tensor, position: Tensor, seed: Tensor) -> Tensor:
            return warped(picked[0], seed, position)

    @torch.no_grad()
    def gradient(parameters: Named, buffers: Named, picked: Picked, labels: Tensor, *others: Tensor) -> Named:
        shifts, _, share, _, position, seed = others
        return fast(parameters, buffers, draw(picked, shifts, share, position, seed), labels, share)

    return gradient


def list_uncounted(network: nn.Module) -> list[str]:
    """Name the batch norms whose count of batches nothing reads.

    Counting costs a kernel a layer and step, and `GraphTrainer.export` knows the count.
    """
    norms = {name: module for name, module in network.named_modules() if isinstance(module, _BatchNorm)}
    return [name for name, module in norms.items() if module.momentum is not None and module.track_running_stats]


#: torch.optim.Adam's defaults, which the paper's recipe keeps.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

#: Momentum of SGD, Nesterov's form.
MOMENTUM = 0.9

#: (weights, first moment, second moment, gradient, step count, rate, copy of the weights) -> nothing; all updated in
#: place.
Update = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]


def make_update(settings: TrainingSettings) -> Update:
    """Return one step of the recipe's optimizer with L2 decay, elementwise on flat tensors.

    Adam is that of Kingma and Ba 2015, algorithm 1; SGD that of ``torch.optim.SGD`` with Nesterov momentum. Both take
    the rate of the step.
    """
    decay = settings.weight_decay
    # A number that never changes is compiled in, as it always was: the paper's models keep their bytes.
    constant = settings.learning_rate if settings.schedule == "constant" else None

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
        weights: Tensor, first: Tensor, second: Tensor, grad: Tensor, count: Tensor, rate: Tensor, copy: Tensor
    ) -> None:
        # 1. g = grad + decay * w
        total = grad.float() + decay * weights
        # 2. m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        m = BETA1 * first + (1 - BETA1) * total
        v = BETA2 * second + (1 - BETA2) * total * total
        # 3. w = w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        mean = m / (1 - torch.pow(BETA1, count))
        scale = torch.sqrt(v / (1 - torch.pow(BETA2, count))) + EPSILON
        moved = weights - (rate if constant is None else constant) * mean / scale
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
