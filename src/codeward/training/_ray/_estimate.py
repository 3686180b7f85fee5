"""Whether a cluster is worth its start-up."""

import sys
from collections.abc import Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from codeward.training._architectures import build_network
from codeward.training._jobs import Job, count_workers
from codeward.training._ray._cluster import Cluster
from codeward.training._ray._task import Recipe

#: Multiplications of forward passes a second that one core trains at (each costs a backward pass too), and the seconds
#: from the call to the first step: Ray's own start and stop, and the import of torch in its workers. Both measured by
#: benchmarks/cluster.py (docs/ray.md); good to a factor of two, which is enough for a line of advice.
RATE = 4e9
START = {"local": 9.0, "cluster": 4.0}


def announce(cluster: Cluster, jobs: Sequence[Job], sizes: Sequence[int], recipe: Recipe) -> None:
    """Say in one line on stderr that training on this machine's cores, without Ray, would be faster, where it would.

    The work is counted from the plans: images of all epochs of all jobs times the multiplications of a forward pass. It
    is divided by `RATE` and by the cores on either side; the cluster's side pays `START`. GPUs are not judged.
    """
    if recipe.device != "cpu":
        return
    local = cluster.address == "local"
    images = recipe.settings.epochs * sum(sizes[user] for job in jobs for user in job.plan.users)
    work = images * count_multiplications(recipe) / RATE
    cores = count_workers(sys.maxsize)
    here = work / min(cores, len(jobs))
    there = START["local" if local else "cluster"] + work / max(
        1, min(cores if local else cluster.count("CPU"), len(jobs))
    )
    if there > here:
        print(
            f"codeward: this training takes about {here:.0f} s on this machine without Ray and about {there:.0f} s "
            "with it, start-up included; Ray pays on more machines and longer trainings",
            file=sys.stderr,
            flush=True,
        )


def count_multiplications(recipe: Recipe) -> int:
    """Count the multiplications of one image's forward pass, whatever the network."""
    network = build_network(recipe.settings.architecture, recipe.shape, recipe.settings.n_classes, 0).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *recipe.shape))
    return int(counter.get_total_flops()) // 2
