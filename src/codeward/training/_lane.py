"""One lane: a model in training on a device, advanced by replaying a captured step."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from codeward.training._adam import Update, WeightGroup
from codeward.training._dropout import CounterDropout, own_dropout
from codeward.training._jobs import Weights, Workshop
from codeward.training._plan import BatchStream
from codeward.training._stem import use_patches

Named = dict[str, Tensor]
#: (parameters, buffers, index, shifts, counts, full batch, position, dropout seed) -> loss at ``position``.
Loss = Callable[[Named, Named, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

#: Odd constant by which the dropout key moves every step (2**32 over the golden ratio, as a signed number).
_KEY_STEP = 0x9E3779B9 - 2**32

_BATCH_COUNT = "num_batches_tracked"


def make_loss(shop: Workshop) -> Loss:
    """Return the loss of one step as a function of tensors only, from the batch's place in the stream to the mean.

    Everything from gathering and augmenting the batch on goes into one function so that a compiler can fuse it.
    """
    samples, device, half = shop.samples, shop.samples.device, shop.precision == "bfloat16"
    network = own_dropout(shop.build(0), None).train()
    network = use_patches(network.to(device))
    for name in _uncounted(network):
        network.get_submodule(name).num_batches_tracked = None  # type: ignore[assignment]
    drops = [name for name, module in network.named_modules() if isinstance(module, CounterDropout)]
    places = torch.arange(shop.settings.batch_size, device=device)

    def loss(
        parameters: Named,
        buffers: Named,
        index: Tensor,
        shifts: Tensor,
        counts: Tensor,
        full: Tensor,
        position: Tensor,
        seed: Tensor,
    ) -> Tensor:
        row = index.index_select(0, position)[0]
        images = samples.gather(row, shifts.index_select(0, position)[0]).permute(0, 3, 1, 2)
        key = (seed + position * _KEY_STEP).to(torch.int32)[0]
        state = {**parameters, **buffers, **{f"{name}.key": key for name in drops}}
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = functional_call(network, state, (images,))
        losses = functional.cross_entropy(logits.float(), samples.labels[row], reduction="none")
        return (torch.where(places < counts.index_select(0, position), losses, 0) / full[0]).sum()

    return loss


@dataclass(frozen=True)
class Start:
    """A model before its first step, on the device: initial weights, batches, and what its dropout masks come from.

    Attributes
    ----------
    weights : dict of Tensor
    index, shifts, counts : Tensor
        The batches; see `BatchStream`.
    stream : BatchStream
        The same on the host.
    seed : int
    """

    weights: Weights
    index: Tensor
    shifts: Tensor
    counts: Tensor
    stream: BatchStream
    seed: int

    @staticmethod
    def send(weights: Weights, stream: BatchStream, seed: int, device: torch.device) -> "Start":
        """Copy a model and its batches to the device; all is there on return."""
        index, shifts, counts = (
            torch.from_numpy(part).to(device) for part in (stream.index, stream.shifts, stream.counts)
        )
        return Start({name: value.to(device) for name, value in weights.items()}, index, shifts, counts, stream, seed)


class Lane:
    """A model's weights, optimizer state and batches on the device, and its captured training step.

    Parameters
    ----------
    shop : Workshop
    steps : int
        Length of the longest index stream the lane will hold.
    loss : callable
        From `make_loss`, compiled or not.
    update : callable
        From `make_update`, compiled or not.

    Notes
    -----
    Weights, moments and the optimizer's arithmetic are float32. With bfloat16, matrices and kernels have a bfloat16
    copy that the network reads and the optimizer rewrites in the same pass; vectors (biases, batch norm) stay float32.
    """

    def __init__(self, shop: Workshop, steps: int, loss: Loss, update: Update) -> None:
        device, settings = shop.samples.device, shop.settings
        network = shop.build(0).to(device)
        if device.type == "cuda":
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss = loss
        named = {name: value.detach() for name, value in network.named_parameters()}
        half = torch.bfloat16 if shop.precision == "bfloat16" else torch.float32
        self.groups: list[WeightGroup] = []
        self.masters: Named = {}
        self.parameters: Named = {}
        for is_matrix, kind in ((True, half), (False, torch.float32)):
            names = [name for name, value in named.items() if (value.ndim > 1) == is_matrix]
            if names:
                group = WeightGroup([named[name] for name in names], kind, not is_matrix, update)
                self.groups.append(group)
                self.masters |= dict(zip(names, group.masters, strict=True))
                self.parameters |= dict(zip(names, group.leaves, strict=True))
        buffers = dict(network.named_buffers())
        left_out = {f"{name}.{_BATCH_COUNT}" for name in _uncounted(network)}
        self.buffers = {name: value for name, value in buffers.items() if name not in left_out}
        self.order = list(network.state_dict())
        places = (steps, settings.batch_size)
        self.index = torch.zeros(places, dtype=torch.int64, device=device)
        self.shifts = torch.zeros(places, dtype=torch.uint8, device=device)
        self.counts = torch.ones(steps, dtype=torch.int64, device=device)
        self.full = torch.ones(1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.launched = 0
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.events: deque[torch.cuda.Event] = deque()

    def step(self) -> None:
        """Take one training step with the batch at ``position`` and move on."""
        loss = self.loss(
            self.parameters, self.buffers, self.index, self.shifts, self.counts, self.full, self.position, self.seed
        )
        leaves = [leaf for group in self.groups for leaf in group.leaves]
        grads = list(torch.autograd.grad(loss, leaves))
        with torch.no_grad():
            for group in self.groups:
                group.step(grads[: len(group.leaves)])
                grads = grads[len(group.leaves) :]
            self.position += 1

    def capture(self) -> None:
        """Warm up and record `step` as a CUDA graph with memory of its own."""
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.step()
        torch.cuda.synchronize()

    @torch.no_grad()
    def load(self, start: Start) -> None:
        """Put a model at its start: initial weights, empty optimizer state, its own batches.

        Waits for nothing: the copies come behind the steps that are queued in this lane.
        """
        with torch.cuda.stream(self.stream):
            for name, tensor in {**self.masters, **self.buffers}.items():
                if name in start.weights:
                    tensor.copy_(start.weights[name])
            for group in self.groups:
                group.reset()
            steps = len(start.stream)
            self.index[:steps].copy_(start.index)
            self.shifts[:steps].copy_(start.shifts)
            self.counts[:steps].copy_(start.counts)
            self.full.fill_(start.stream.full)
            self.position.zero_()
            self.seed.fill_(start.seed % 2**31)
        if self.stream is not None:
            # Another stream made them: their memory must not be used again before the copies are done.
            for tensor in (start.index, start.shifts, start.counts, *start.weights.values()):
                tensor.record_stream(self.stream)
        self.launched = 0

    def launch(self, steps: int) -> None:
        """Queue ``steps`` steps; wait first until all but the latest burst of this lane is done."""
        assert self.graph is not None
        while len(self.events) > 1:
            self.events.popleft().synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(steps):
                self.graph.replay()
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self.events.append(event)
        self.launched += steps

    def export(self) -> Callable[[], Weights]:
        """Copy the weights and buffers aside, behind all queued steps, and return a function that waits for them.

        The lane may take its next model at once. The function returns CPU tensors in the network's own order.
        """
        done = torch.tensor(self.launched)
        with torch.cuda.stream(self.stream):
            kept = {name: value.detach().clone() for name, value in {**self.masters, **self.buffers}.items()}
            event = torch.cuda.Event() if self.stream is not None else None  # type: ignore[no-untyped-call]
            if event is not None:
                event.record()

        def fetch() -> Weights:
            if event is not None:
                event.synchronize()
            found = {name: kept.get(name, done).to("cpu", copy=True) for name in self.order}
            return {name: value.contiguous(memory_format=torch.contiguous_format) for name, value in found.items()}

        return fetch


def _uncounted(network: nn.Module) -> list[str]:
    """Name the batch norms whose count of batches nothing reads.

    Counting costs a kernel a layer and step, and `Lane.export` knows the count.
    """
    norms = {name: module for name, module in network.named_modules() if isinstance(module, _BatchNorm)}
    return [name for name, module in norms.items() if module.momentum is not None and module.track_running_stats]
