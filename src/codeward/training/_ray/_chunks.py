"""Which sub-models go into one task."""

from collections.abc import Sequence
from itertools import pairwise

from codeward.training._jobs import Job
from codeward.training._plan import count_steps
from codeward.training._settings import TrainingSettings

#: Models of one task on a GPU: a task compiles its kernels first (15 to 40 s), and a lost one is trained again.
GPU_CHUNK = 16


def cut_chunks(jobs: Sequence[Job], sizes: Sequence[int], settings: TrainingSettings, n_gpus: int) -> list[list[Job]]:
    """Divide jobs into the tasks of a cluster; a task is what a lost machine loses.

    The cut decides how long a training takes and never what comes out: a model's bytes do not depend on its companions
    (see `codeward.training.train_ensemble`).

    - On CPUs: one model a task, on one core.
    - On GPUs (``n_gpus`` above 0): alike in number, at most `GPU_CHUNK`, one a GPU where there are enough models.

    The models of earlier tasks come first.
    """
    ordered = sorted(jobs, key=lambda job: (job.task, -count_steps(job.plan, sizes, settings)))
    n_chunks = min(len(ordered), max(n_gpus, -(-len(ordered) // GPU_CHUNK))) if n_gpus else len(ordered)
    borders = [len(ordered) * chunk // n_chunks for chunk in range(n_chunks + 1)]
    return [ordered[start:stop] for start, stop in pairwise(borders)]
