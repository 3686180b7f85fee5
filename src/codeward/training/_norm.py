"""Batch norm for GPU training: residual and ReLU in the same pass, sums in one launch and in a fixed order.

Batch norm is a third of ResNet18's time on a GPU (docs/training-speed.md). What a compiler makes of ``nn.BatchNorm2d``
takes two launches for every sum over the batch; the operations here take one, recompute the ReLU's mask from the input
instead of reading the output, and add the two gradients of a tensor that is also a shortcut while summing them. Same
parameters, same buffers, same function; float32 sums. Nothing is shared between models: all state comes as arguments.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from codeward.training._architectures import _ResidualBlock

_LOG = logging.getLogger(__name__)

#: Counters a step hands to its batch norms, all zero before and after each: one for every 32 channels of the widest.
TICKETS = 128

#: Values, and a tensor without content that stands for them where they are used a second time.
Forked = tuple[Tensor, Tensor]


@torch.library.custom_op("codeward::channel_moments", mutates_args=("running_mean", "running_var"))
def channel_moments(
    rows: Tensor, running_mean: Tensor, running_var: Tensor, tickets: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Return mean and 1 / sqrt(variance + eps) of each column, and move the running statistics as torch does."""
    if rows.is_cuda:
        from codeward.training import _norm_kernels

        return _norm_kernels.moments(rows, running_mean, running_var, tickets, momentum, eps)
    variance, mean = torch.var_mean(rows.to(running_mean.dtype), 0, correction=0)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(variance * (len(rows) / (len(rows) - 1)), momentum)
    return mean, torch.rsqrt(variance + eps)


@channel_moments.register_fake
def _(rows: Tensor, running_mean: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(running_mean), torch.empty_like(running_mean)


@torch.library.custom_op("codeward::normalize", mutates_args=())
def normalize(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    tickets: Tensor,
    residual: Tensor | None,
    link: Tensor | None,
    relu: bool,
    fork: bool,
) -> tuple[Tensor, Tensor]:
    """Return relu((rows - mean) rstd weight + bias + residual), differentiated through mean and rstd as well.

    Parameters
    ----------
    rows : Tensor, shape (batch, channels)
    mean, rstd : Tensor
        Of ``rows``, from `channel_moments`.
    residual : Tensor, optional
    link : Tensor, optional
        Second result of the call that made ``residual``: takes its gradient instead of it.
    relu : bool
    fork : bool
        The result is used twice, the second time as a residual: return as a second result a tensor without content to
        be given as ``link`` there. The two gradients then arrive apart, and adding them costs no pass of its own.
    """
    second = rows.new_empty(1).expand(rows.shape) if fork else rows.new_empty(0)
    if rows.is_cuda:
        from codeward.training import _norm_kernels

        return _norm_kernels.normalize(rows, weight, bias, mean, rstd, residual, relu), second
    wide = (rows - mean) * (rstd * weight) + bias
    if residual is not None:
        wide = wide + residual
    return (torch.relu(wide) if relu else wide).to(rows.dtype), second


@normalize.register_fake
def _(rows: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rows), rows.new_empty(1).expand(rows.shape) if others[-1] else rows.new_empty(0)


@torch.library.custom_op("codeward::channel_gradients", mutates_args=())
def channel_gradients(
    grad: Tensor,
    carry: Tensor | None,
    result: Tensor | None,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    tickets: Tensor,
    relu: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient before the ReLU and the gradients of weight and bias.

    The gradient behind the ReLU is ``grad`` plus ``carry``; what the ReLU let through is told by ``result``, or found
    anew from ``rows``. Without ``keep`` the first result is empty.
    """
    if rows.is_cuda:
        from codeward.training import _norm_kernels

        return _norm_kernels.gradients(grad, carry, result, rows, weight, bias, mean, rstd, tickets, relu, keep)
    before = grad if carry is None else grad + carry
    away = rows - mean
    if relu:
        before = before.masked_fill((away * (rstd * weight) + bias if result is None else result) <= 0, 0)
    wide = before.to(mean.dtype)
    return before.clone() if keep else rows.new_empty(0), (wide * away).sum(0) * rstd, wide.sum(0)


@channel_gradients.register_fake
def _(grad: Tensor, carry: Any, result: Any, rows: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, ...]:
    kept = torch.empty_like(rows) if others[-1] else rows.new_empty(0)
    return kept, torch.empty_like(weight), torch.empty_like(weight)


@torch.library.custom_op("codeward::row_gradients", mutates_args=())
def row_gradients(
    grad: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    for_weight: Tensor,
    for_bias: Tensor,
    relu: bool,
) -> Tensor:
    """Return rstd w (g - db / n - (x - mean) rstd dw / n), where g is ``grad`` through the ReLU if ``relu``."""
    if rows.is_cuda:
        from codeward.training import _norm_kernels

        return _norm_kernels.spread(grad, rows, weight, bias, mean, rstd, for_weight, for_bias, relu)
    away = rows - mean
    before = torch.where(away * (rstd * weight) + bias <= 0, 0, grad) if relu else grad
    for_rows = (rstd * weight) * (before - for_bias / len(rows) - away * (rstd * for_weight / len(rows)))
    return for_rows.to(rows.dtype)


@row_gradients.register_fake
def _(grad: Tensor, rows: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(rows)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, residual, link, ctx.relu, ctx.fork = inputs
    ctx.save_for_backward(*tensors, output[0] if residual is not None else None)
    ctx.residual, ctx.link = residual is not None, link is not None


def _differentiate(ctx: Any, grad: Tensor, carry: Tensor) -> tuple[Tensor | None, ...]:
    rows, weight, bias, mean, rstd, tickets, result = ctx.saved_tensors
    keep = ctx.residual or ctx.fork
    # 1. g = gradient before the ReLU; db = sum of g; dw = sum of g (x - mean) rstd
    grad = grad.contiguous()
    state = (rows, weight, bias, mean, rstd, tickets)
    before, for_weight, for_bias = torch.ops.codeward.channel_gradients(
        grad, carry.contiguous() if ctx.fork else None, result, *state, ctx.relu, keep
    )
    # 2. dx = rstd w (g - db / n - (x - mean) rstd dw / n); finding g anew is cheaper than writing and reading it
    for_rows = torch.ops.codeward.row_gradients(
        before if keep else grad, *state[:-1], for_weight, for_bias, ctx.relu and not keep
    )
    for_residual = before if ctx.residual else None
    apart = (None, for_residual) if ctx.link else (for_residual, None)
    return for_rows, for_weight, for_bias, None, None, None, *apart, None, None


normalize.register_autograd(_differentiate, setup_context=_remember)


class FusedNorm(nn.BatchNorm2d):
    """A batch norm in training with what follows it; for use inside a compiled step on a GPU.

    Attributes
    ----------
    relu : bool
        A ReLU follows.
    fork : bool
        A residual block with a plain shortcut follows: return the result as `Forked`.
    """

    relu = False
    fork = False
    tickets: Tensor

    def forward(self, images: Tensor, residual: Tensor | None = None, link: Tensor | None = None) -> Any:
        """Return the normalised images, plus ``residual``, through the ReLU, in channels-last order."""
        batch, channels, height, width = images.shape
        rows, others, links = (_as_rows(given) for given in (images, residual, link))
        assert rows is not None
        mean, rstd = torch.ops.codeward.channel_moments(
            rows.detach(), self.running_mean, self.running_var, self.tickets, self.momentum, self.eps
        )
        if others is not None and links is not None:
            others = others.detach()
        state = (self.weight, self.bias, mean, rstd, self.tickets)
        found = torch.ops.codeward.normalize(rows, *state, others, links, self.relu, self.fork)
        first, second = (
            part.view(batch, height, width, channels).permute(0, 3, 1, 2) if part.ndim == 2 else part for part in found
        )
        return (first, second) if self.fork else first


class FusedBlock(nn.Module):
    """The residual block of the architectures, on `FusedNorm`: same weights under the same names, same function."""

    def __init__(self, block: _ResidualBlock) -> None:
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = block.conv1, _fuse(block.bn1), block.conv2, _fuse(block.bn2)
        self.bn1.relu = self.bn2.relu = True
        self.stride, self.shortcut = block.stride, block.shortcut

    def forward(self, given: Tensor | Forked) -> Tensor | Forked:
        """Map a batch through the block."""
        images, link = given if isinstance(given, tuple) else (given, None)
        inner = self.bn1(self.conv1(images))
        passed = images
        if self.stride != 1:
            # A copy that the compiler makes once; else the convolution makes one for itself in either pass.
            passed = images[:, :, :: self.stride, :: self.stride].contiguous(memory_format=torch.channels_last)
        return self.bn2(self.conv2(inner), self.shortcut(passed), link)  # type: ignore[no-any-return]


def fuse_norms(network: nn.Module) -> nn.Module:
    """Replace, in place, plain batch norms with the ReLUs behind them, and residual blocks, by their fused kin."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is _ResidualBlock:
                setattr(module, name, FusedBlock(child))
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.BatchNorm2d and _can_fuse(child):
                setattr(module, name, _fuse(child))
        if type(module) is nn.Sequential:
            _join(module)
    return network


def kernels_run(device: torch.device, kind: torch.dtype) -> bool:
    """Say whether the operations work on this device for activations of this type; on a GPU they need Triton."""
    # Multiples of 16, as real sizes mostly are: what Triton compiles here serves the training too.
    rows, vector = torch.zeros(16, 16, device=device, dtype=kind), torch.zeros(16, device=device)
    tickets = torch.zeros(TICKETS, dtype=torch.int32, device=device)
    try:
        mean, rstd = channel_moments(rows, vector.clone(), vector.clone(), tickets, 0.1, 1.0)
        result, _ = normalize(rows, vector, vector, mean, rstd, tickets, rows, None, True, False)
        before, *sums = channel_gradients(rows, rows, result, rows, vector, vector, mean, rstd, tickets, True, True)
        row_gradients(before, rows, vector, vector, mean, rstd, *sums, False)
    except Exception as error:
        _LOG.warning("training: fused batch norm is not to be had here (%s); training without it", error)
        return False
    return True


def _join(chain: nn.Sequential) -> None:
    """Give a batch norm the ReLU behind it, and let the input of a block with a plain shortcut arrive forked."""
    last: FusedNorm | None = None
    for place, layer in enumerate(chain):
        if type(layer) is nn.ReLU and last is not None and last is chain[place - 1]:
            last.relu = True
            chain[place] = nn.Identity()
        elif isinstance(layer, FusedBlock):
            if last is not None and isinstance(layer.shortcut, nn.Identity):
                last.fork = True
            last = layer.bn2
        elif isinstance(layer, FusedNorm):
            last = layer
        elif type(layer) is not nn.Identity:
            last = None


def _can_fuse(norm: nn.BatchNorm2d) -> bool:
    plain = norm.affine and norm.track_running_stats and norm.momentum is not None
    return plain and norm.num_features <= 32 * TICKETS


def _fuse(norm: nn.BatchNorm2d) -> FusedNorm:
    fused = FusedNorm(norm.num_features, norm.eps, norm.momentum).to(norm.weight)
    fused.load_state_dict(norm.state_dict())
    fused.register_buffer("tickets", torch.zeros(TICKETS, dtype=torch.int32, device=norm.weight.device), False)
    return fused.train(norm.training)


def _as_rows(images: Tensor | None) -> Tensor | None:
    return None if images is None else images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])
