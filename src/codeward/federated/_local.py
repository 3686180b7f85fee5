"""A user's own work in a round: train each model of its column on its own data."""

import threading
from dataclasses import dataclass, field, replace

import torch

from codeward._progress import silent
from codeward.data import Samples
from codeward.federated._protocol import Arrays, Assignment, Reply, answer
from codeward.training import ModelPlan
from codeward.training._jobs import Job, Reporter, Weights, Workshop
from codeward.training._loop import train_loop
from codeward.training._resident import ResidentSamples


@dataclass(frozen=True)
class _Bench(Workshop):
    """A workshop whose networks start from given weights instead of random ones."""

    start: Weights = field(default_factory=dict)

    def build(self, seed: int) -> torch.nn.Module:
        """Build the network and lay the starting weights in."""
        network = super().build(seed)
        network.load_state_dict(self.start)
        return network


def train_update(assignment: Assignment, samples: Samples, device: str = "cpu") -> Reply:
    """Do what an honest user does: train every model it was given and send all of them back."""
    trained = {model: train_model(assignment, model, samples, device) for model in assignment.models}
    return answer(assignment, len(samples), trained)


def train_model(assignment: Assignment, model: int, samples: Samples, device: str = "cpu") -> Arrays:
    """Train one model of an assignment on a user's samples, in float32, with one thread where it is a CPU.

    On a CPU the result is a function of the assignment's weights, seed and settings for this model and of the samples:
    same bytes in any process on the same kind of machine. The optimiser starts anew each round.
    """
    finished: dict[str, Weights] = {}
    settings = replace(assignment.training, precision="float32")
    shop = _Bench(
        settings=settings,
        precision="float32",
        shape=assignment.shape,
        sizes=[len(samples)],
        samples=ResidentSamples([samples], settings, torch.device(device)),
        reporter=Reporter(silent(), 1),
        finish=lambda job, weights: finished.update({job.key: weights}),
        stop=threading.Event(),
        start=to_tensors(assignment.models[model]),
    )
    train_loop([Job(ModelPlan(users=(0,), replica=0, seed=assignment.seeds[model]), "trained")], shop)
    return to_arrays(finished["trained"])


def to_arrays(weights: Weights) -> Arrays:
    """Return torch weights as arrays."""
    return {name: value.numpy() for name, value in weights.items()}


def to_tensors(arrays: Arrays) -> Weights:
    """Return arrays as torch weights of their own: training must not write into what somebody else reads."""
    return {name: torch.tensor(array) for name, array in arrays.items()}
