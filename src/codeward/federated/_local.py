"""A user's own work in a round: train each model of its column on its own data."""

import torch

from codeward.data import Samples
from codeward.federated._protocol import Arrays, Assignment, Reply, answer
from codeward.training import Weights, train_from


def train_update(assignment: Assignment, samples: Samples, device: str = "cpu") -> Reply:
    """Do what an honest user does: train every model it was given and send all of them back."""
    trained = {model: train_model(assignment, model, samples, device) for model in assignment.models}
    return answer(assignment, len(samples), trained)


def train_model(assignment: Assignment, model: int, samples: Samples, device: str = "cpu") -> Arrays:
    """Train one model of an assignment on a user's samples, in float32, with one thread where it is a CPU.

    On a CPU the result is a function of the assignment's weights, seed and settings for this model and of the samples:
    same bytes in any process on the same kind of machine. The optimiser starts anew each round.
    """
    start = to_tensors(assignment.models[model])
    return to_arrays(train_from(start, samples, assignment.training, assignment.seeds[model], device))


def to_arrays(weights: Weights) -> Arrays:
    """Return torch weights as arrays."""
    return {name: value.numpy() for name, value in weights.items()}


def to_tensors(arrays: Arrays) -> Weights:
    """Return arrays as torch weights of their own: training must not write into what somebody else reads."""
    return {name: torch.tensor(array) for name, array in arrays.items()}
