"""GPU kernels of `_norm`: sums over the rows of a matrix in a fixed order, and the normalisation itself.

Each sum takes one launch: every program adds up a slice of the rows and leaves its partial sums; the program that finds
itself the last (by a ticket) adds the partial sums up, always in the order of the slices. Which program that is changes
nothing in the result, no program waits for another, and the tickets are back at zero at the end.

What a pass reads for the last time in a while is marked ``evict_first``: lanes share one cache, and what comes next
should find its place there.

Needs Triton, which comes with torch for GPUs; nothing else imports this module.
"""

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

#: Rows and channels of a tile, partial sums added at a time, warps, programs at most, tiles loaded ahead: the best of
#: those tried on an H200 (docs/training-speed.md). Fixed, because another division of the rows has other last bits.
_MOMENTS = (64, 32, 128, 4, 264, 5)
_GRADIENTS = (64, 32, 128, 4, 132, 5)
_GRADIENTS_KEPT = (32, 64, 64, 4, 132, 5)
#: Tiles loaded ahead where values have four bytes: more would not fit beside each other on smaller GPUs.
_FEWER_STAGES = 3
#: Rows and channels of a tile, warps.
_PASS = (32, 64, 4)


@triton.jit
def _add_partial(partial, parts, channels, cols, valid, step: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add up the two tables of partial sums, each (parts, channels)."""
    first = tl.zeros([step, width], tl.float32)
    second = tl.zeros([step, width], tl.float32)
    for start in range(0, parts, step):
        some = start + tl.arange(0, step)
        inside = (some < parts)[:, None] & valid[None, :]
        at = some[:, None] * channels + cols[None, :]
        # Past the first-level cache, which does not see what other multiprocessors wrote.
        first += tl.load(partial + at, mask=inside, other=0.0, cache_modifier=".cg")
        second += tl.load(partial + parts * channels + at, mask=inside, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _is_last(partial, first, second, tickets, channels, cols, valid):  # type: ignore[no-untyped-def]
    """Leave this program's partial sums; say whether those of all programs of these channels are there now."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    place = part * channels + cols
    tl.store(partial + place, tl.sum(first, 0), mask=valid)
    tl.store(partial + parts * channels + place, tl.sum(second, 0), mask=valid)
    # All threads have stored before one of them releases the ticket.
    tl.debug_barrier()
    return tl.atomic_add(tickets + tl.program_id(1), 1) == parts - 1


@triton.jit
def _moments(  # type: ignore[no-untyped-def]
    rows,
    partial,
    tickets,
    mean,
    rstd,
    running_mean,
    running_var,
    n_rows,
    channels,
    slice_rows,
    momentum,
    eps,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
):
    cols = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    valid = cols < channels
    # Sums of x - x_0, x_0 the first row: one pass, and no cancellation where the mean is far from zero.
    origin = tl.load(rows + cols, mask=valid, other=0.0).to(tl.float32)
    first = tl.zeros([HIGH, WIDE], tl.float32)
    second = tl.zeros([HIGH, WIDE], tl.float32)
    start = tl.program_id(0) * slice_rows
    end = tl.minimum(start + slice_rows, n_rows)
    for row in tl.range(start, end, HIGH, num_stages=STAGES):
        some = row + tl.arange(0, HIGH)
        inside = (some < end)[:, None] & valid[None, :]
        value = tl.load(rows + some[:, None] * channels + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - origin[None, :], 0.0)
        first += value
        second += value * value
    if _is_last(partial, first, second, tickets, channels, cols, valid):
        one, two = _add_partial(partial, tl.num_programs(0), channels, cols, valid, STEP, WIDE)
        # mean = x_0 + E[x - x_0],  variance = E[(x - x_0)^2] - E[x - x_0]^2, which rounding may push below zero
        moved = one / n_rows
        variance = two / n_rows - moved * moved
        variance = tl.where(variance < 0, 0.0, variance)
        centre = origin + moved
        tl.store(mean + cols, centre, mask=valid)
        tl.store(rstd + cols, 1 / tl.sqrt(variance + eps), mask=valid)
        old = tl.load(running_mean + cols, mask=valid, other=0.0)
        tl.store(running_mean + cols, old * (1 - momentum) + centre * momentum, mask=valid)
        old = tl.load(running_var + cols, mask=valid, other=0.0)
        unbiased = variance * (n_rows / (n_rows - 1.0))
        tl.store(running_var + cols, old * (1 - momentum) + unbiased * momentum, mask=valid)
        tl.store(tickets + tl.program_id(1), 0)


@triton.jit
def _gradients(  # type: ignore[no-untyped-def]
    grad,
    carry,
    result,
    rows,
    weight,
    bias,
    mean,
    rstd,
    before,
    partial,
    tickets,
    for_weight,
    for_bias,
    n_rows,
    channels,
    slice_rows,
    CARRY: tl.constexpr,
    RELU: tl.constexpr,
    RESULT: tl.constexpr,
    KEEP: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
):
    cols = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    valid = cols < channels
    centre = tl.load(mean + cols, mask=valid, other=0.0)
    scale = tl.load(rstd + cols, mask=valid, other=0.0)
    slope = scale * tl.load(weight + cols, mask=valid, other=0.0)
    offset = tl.load(bias + cols, mask=valid, other=0.0)
    first = tl.zeros([HIGH, WIDE], tl.float32)
    second = tl.zeros([HIGH, WIDE], tl.float32)
    start = tl.program_id(0) * slice_rows
    end = tl.minimum(start + slice_rows, n_rows)
    for row in tl.range(start, end, HIGH, num_stages=STAGES):
        some = row + tl.arange(0, HIGH)
        inside = (some < end)[:, None] & valid[None, :]
        at = some[:, None] * channels + cols[None, :]
        value = tl.load(grad + at, mask=inside, other=0.0)
        away = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]
        if CARRY:
            total = value.to(tl.float32) + tl.load(carry + at, mask=inside, other=0.0).to(tl.float32)
            value = total.to(value.dtype)
        if RELU:
            # "Not at most zero" rather than "above": NaN goes through, as in torch.
            if RESULT:
                dead = tl.load(result + at, mask=inside, other=0.0).to(tl.float32) <= 0
            else:
                dead = away * slope[None, :] + offset[None, :] <= 0
            value = tl.where(dead, 0.0, value.to(tl.float32)).to(value.dtype)
        if KEEP:
            tl.store(before + at, value, mask=inside)
        first += value.to(tl.float32)
        second += tl.where(inside, value.to(tl.float32) * away, 0.0)
    if _is_last(partial, first, second, tickets, channels, cols, valid):
        one, two = _add_partial(partial, tl.num_programs(0), channels, cols, valid, STEP, WIDE)
        tl.store(for_bias + cols, one, mask=valid)
        tl.store(for_weight + cols, two * scale, mask=valid)
        tl.store(tickets + tl.program_id(1), 0)


@triton.jit
def _normalize(  # type: ignore[no-untyped-def]
    rows,
    weight,
    bias,
    mean,
    rstd,
    residual,
    result,
    n_rows,
    channels,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
):
    some = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    cols = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    valid = cols < channels
    inside = (some < n_rows)[:, None] & valid[None, :]
    at = some[:, None] * channels + cols[None, :]
    centre = tl.load(mean + cols, mask=valid, other=0.0)
    slope = tl.load(rstd + cols, mask=valid, other=0.0) * tl.load(weight + cols, mask=valid, other=0.0)
    offset = tl.load(bias + cols, mask=valid, other=0.0)
    value = tl.load(rows + at, mask=inside, other=0.0, eviction_policy="evict_first")
    wide = (value.to(tl.float32) - centre[None, :]) * slope[None, :] + offset[None, :]
    if RESIDUAL:
        wide += tl.load(residual + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    if RELU:
        wide = tl.where(wide <= 0, 0.0, wide)
    tl.store(result + at, wide.to(value.dtype), mask=inside)


@triton.jit
def _spread(  # type: ignore[no-untyped-def]
    grad,
    rows,
    weight,
    bias,
    mean,
    rstd,
    for_weight,
    for_bias,
    result,
    n_rows,
    channels,
    RELU: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
):
    some = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    cols = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    valid = cols < channels
    inside = (some < n_rows)[:, None] & valid[None, :]
    at = some[:, None] * channels + cols[None, :]
    centre = tl.load(mean + cols, mask=valid, other=0.0)
    scale = tl.load(rstd + cols, mask=valid, other=0.0)
    slope = scale * tl.load(weight + cols, mask=valid, other=0.0)
    level = tl.load(for_bias + cols, mask=valid, other=0.0) / n_rows
    along = scale * tl.load(for_weight + cols, mask=valid, other=0.0) / n_rows
    value = tl.load(grad + at, mask=inside, other=0.0, eviction_policy="evict_first")
    away = tl.load(rows + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32) - centre[None, :]
    wide = value.to(tl.float32)
    if RELU:
        offset = tl.load(bias + cols, mask=valid, other=0.0)
        wide = tl.where(away * slope[None, :] + offset[None, :] <= 0, 0.0, wide)
    wide = slope[None, :] * (wide - level[None, :] - away * along[None, :])
    tl.store(result + at, wide.to(value.dtype), mask=inside)


def moments(
    rows: Tensor, running_mean: Tensor, running_var: Tensor, tickets: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Return mean and reciprocal deviation of each column; see `_norm.channel_moments`."""
    n_rows, channels = rows.shape
    high, wide, step, warps, programs, stages = _MOMENTS
    parts, blocks, slice_rows = _divide(n_rows, channels, high, wide, programs)
    partial = rows.new_empty(2, parts, channels, dtype=torch.float32)
    mean, rstd = torch.empty_like(running_mean), torch.empty_like(running_mean)
    tensors = (rows, partial, tickets, mean, rstd, running_mean, running_var)
    sizes = (n_rows, channels, slice_rows, momentum, eps)
    _moments[parts, blocks](
        *tensors,
        *sizes,
        HIGH=high,
        WIDE=wide,
        STEP=step,
        STAGES=stages if rows.element_size() == 2 else _FEWER_STAGES,
        num_warps=warps,
    )
    return mean, rstd


def gradients(
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
    """Return the gradient before the ReLU and those of weight and bias; see `_norm.channel_gradients`."""
    n_rows, channels = rows.shape
    high, wide, step, warps, programs, stages = _GRADIENTS_KEPT if keep else _GRADIENTS
    parts, blocks, slice_rows = _divide(n_rows, channels, high, wide, programs)
    partial = rows.new_empty(2, parts, channels, dtype=torch.float32)
    before = torch.empty_like(rows) if keep else rows.new_empty(0)
    for_weight, for_bias = torch.empty_like(weight), torch.empty_like(bias)
    inputs = (grad, grad if carry is None else carry, rows if result is None else result, rows)
    tensors = (*inputs, weight, bias, mean, rstd, before, partial, tickets, for_weight, for_bias)
    flags = {"CARRY": carry is not None, "RELU": relu, "RESULT": result is not None, "KEEP": keep}
    _gradients[parts, blocks](
        *tensors,
        n_rows,
        channels,
        slice_rows,
        **flags,
        HIGH=high,
        WIDE=wide,
        STEP=step,
        STAGES=stages if rows.element_size() == 2 else _FEWER_STAGES,
        num_warps=warps,
    )
    return before, for_weight, for_bias


def normalize(
    rows: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, residual: Tensor | None, relu: bool
) -> Tensor:
    """Return relu((rows - mean) rstd weight + bias + residual)."""
    n_rows, channels = rows.shape
    high, wide, warps = _PASS
    result = torch.empty_like(rows)
    tensors = (rows, weight, bias, mean, rstd, rows if residual is None else residual, result)
    flags = {"RESIDUAL": residual is not None, "RELU": relu}
    grid = (-(-n_rows // high), -(-channels // wide))
    _normalize[grid](*tensors, n_rows, channels, **flags, HIGH=high, WIDE=wide, num_warps=warps)
    return result


def spread(
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
    """Return the gradient of the rows; see `_norm.row_gradients`."""
    n_rows, channels = rows.shape
    high, wide, warps = _PASS
    result = torch.empty_like(rows)
    tensors = (grad, rows, weight, bias, mean, rstd, for_weight, for_bias, result)
    grid = (-(-n_rows // high), -(-channels // wide))
    _spread[grid](*tensors, n_rows, channels, RELU=relu, HIGH=high, WIDE=wide, num_warps=warps)
    return result


def _divide(n_rows: int, channels: int, high: int, wide: int, programs: int) -> tuple[int, int, int]:
    """Return the number of slices of rows, of blocks of channels, and the rows of a slice, a multiple of ``high``."""
    blocks = -(-channels // wide)
    parts = min(-(-n_rows // high), max(1, programs // blocks))
    tiles = -(-n_rows // (parts * high))
    return -(-n_rows // (tiles * high)), blocks, tiles * high
