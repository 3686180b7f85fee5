"""From users' data and a code to its trained sub-models."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from codeward._errors import InputError
from codeward._progress import Shown, show_progress
from codeward.codes import Code
from codeward.data import Samples
from codeward.training._architectures import build_network, fingerprint
from codeward.training._device_batches import DeviceSamples, check_samples
from codeward.training._engines import (
    Job,
    Reporter,
    TaskCallbacks,
    TrainingContext,
    Weights,
    choose_engine,
    name_computation,
    run_engine,
)
from codeward.training._ensemble import Ensemble
from codeward.training._model_store import ModelStore, model_key, network_keys
from codeward.training._ray_cluster import Cluster
from codeward.training._ray_tasks import Recipe, announce, train_on_cluster
from codeward.training._sub_models import ModelPlan, plan_models, plan_networks
from codeward.training._training_settings import TrainingSettings


def train_ensemble(
    users: Sequence[Samples],
    code: Code | Sequence[ModelPlan],
    settings: TrainingSettings,
    seed: int,
    store: ModelStore | None = None,
    device: str = "auto",
    engine: str = "auto",
    progress: Shown = None,
    cluster: str | Cluster | None = None,
) -> Ensemble:
    """Train the sub-models of a code, or find them in the store.

    Guarantees, under any content of the data (Proposition 15 of docs/theory.md; every other rests on it):

    - Isolation: a model's bytes depend on the data of its own users, the settings and the seed, and on nothing another
      user hands in; nothing crosses models.
    - Reproducibility: same seed, same device, same bytes, whatever was cached, resumed or interrupted, and whichever
      other models trained at the same time.
    - Economy: a model whose key is in the store is not trained; each finished model is in the store before the next
      begins, so that a killed run loses only the models in flight.

    Parameters
    ----------
    users : sequence of Samples
        One a column of the code.
    code : Code, or sequence of ModelPlan
        Plans (their users are places in ``users``) where those of a code do not do: see `drop_users`.
    settings : TrainingSettings
    seed : int
        Seed of the run.
    store : ModelStore, optional
        Without one the models live in memory only.
    device : {"auto", "cpu", "cuda"}
        ``auto``: the GPU when there is one.
    engine : {"auto", "loop", "compiled", "graphs"}
        ``auto`` follows `choose_engine`, which looks at the architecture and the device only.
    progress : Progress or bool, optional
        Show model-epochs, images/s and the time left on stderr.
    cluster : str or Cluster, optional
        Train on a Ray cluster, named by its address (see `Cluster`) or kept open by the caller; the models are those of
        training here, under the same keys, where the machines compute alike. With ``device="auto"`` its GPUs are used
        when it has any.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.codes import Code
    >>> from codeward.data import Samples
    >>> from codeward.training import TrainingSettings, train_ensemble
    >>> users = [Samples(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1])) for _ in range(3)]
    >>> settings = TrainingSettings(architecture="mlp", epochs=1, n_classes=2)
    >>> ensemble = train_ensemble(users, Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]]), settings, seed=0, device="cpu")
    >>> ensemble.n_models, ensemble.trained
    (3, 3)
    """
    return train_ensembles([(users, code)], settings, seed, store, device, engine, progress, cluster)[0]


def train_ensembles(
    tasks: Sequence[tuple[Sequence[Samples], Code | Sequence[ModelPlan]]],
    settings: TrainingSettings,
    seed: int,
    store: ModelStore | None = None,
    device: str = "auto",
    engine: str = "auto",
    progress: Shown = None,
    cluster: str | Cluster | None = None,
    finished: Callable[[int, Ensemble], None] | None = None,
) -> list[Ensemble]:
    """Train the sub-models of several codes, or of one code on several versions of the data, in one go.

    Every ensemble is, byte for byte, the one that `train_ensemble` gives for its task alone; a model that several tasks
    need is trained once (and counted as trained by the first of them), and no engine stands idle between tasks.

    Parameters
    ----------
    tasks : sequence of (users, code)
        As for `train_ensemble`. Equal samples are kept in memory once.
    settings, seed, store, device, engine, progress, cluster
        As for `train_ensemble`, the same for all tasks.
    finished : callable, optional
        Called with the position and the ensemble of every task as soon as its last model is there, in another thread
        (one call at a time), while the models of later tasks train on: a long grid keeps what it has.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.codes import Code
    >>> from codeward.data import Samples
    >>> from codeward.training import TrainingSettings, train_ensembles
    >>> users = [Samples(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1])) for _ in range(2)]
    >>> settings = TrainingSettings(architecture="mlp", epochs=1, n_classes=2)
    >>> tasks = [(users, Code([[1, 0], [0, 1]])), (users, Code([[1, 0], [1, 1]]))]
    >>> [ensemble.trained for ensemble in train_ensembles(tasks, settings, seed=0, device="cpu")]  # one model is shared
    [2, 1]
    """
    if not tasks:
        return []
    if isinstance(cluster, str):
        with Cluster(cluster) as opened:
            return train_ensembles(tasks, settings, seed, store, device, engine, progress, opened, finished)
    for users, code in tasks:
        if isinstance(code, Code) and len(users) != code.n_users:
            raise InputError(f"training: {len(users)} users' data for a code with {code.n_users} columns")
    everybody = list({id(samples): samples for users, _ in tasks for samples in users}.values())
    check_samples(everybody, settings)
    committee, whole, settings = settings.committee, settings, replace(settings, committee=1)
    place = _pick_device(device) if cluster is None else cluster.pick_device(device)
    shape = (int(everybody[0].images.shape[1]), int(everybody[0].images.shape[2]), int(everybody[0].images.shape[3]))
    network = build_network(settings.architecture, shape, settings.n_classes, 0)
    chosen = choose_engine(network, shape, place, engine, settings)
    precision = settings.precision
    if precision == "auto":
        precision = "bfloat16" if place.type == "cuda" else "float32"

    # 1. Each distinct data set of a user once; where a user of a task finds its own.
    digests = {id(samples): samples.digest() for samples in everybody}
    pool = list({digests[id(samples)]: samples for samples in everybody}.values())
    position = {digest: at for at, digest in enumerate(dict.fromkeys(digests.values()))}

    # 2. The key of every model; a job for each that is neither in the store nor wanted by an earlier task.
    computation = name_computation(place.type, chosen, precision)
    marks = fingerprint(network)
    jobs: dict[str, Job] = {}
    origin: dict[str, tuple[ModelPlan, TrainingSettings]] = {}
    wanted: list[tuple[tuple[str, ...], int]] = []
    for task, (users, code) in enumerate(tasks):
        own = [digests[id(samples)] for samples in users]
        plans = plan_models(code, seed) if isinstance(code, Code) else code
        keys, new = [], set()
        for plan in plans:
            own_recipe = settings.for_samples(sum(len(users[user]) for user in plan.users))
            keys.append(model_key(plan, own, own_recipe, marks, computation))
            networks = plan_networks(plan, committee)
            for key, network_plan in zip(network_keys(keys[-1], committee), networks, strict=True):
                if key in jobs or (store is not None and store.holds(key)):
                    continue
                # The plan keeps its seed, which comes from the users' numbers in the code, and the order of its users.
                placed = replace(network_plan, users=tuple(position[own[user]] for user in plan.users))
                jobs[key] = Job(placed, key, task)
                origin[key] = network_plan, own_recipe
                new.add(keys[-1])
        wanted.append((tuple(keys), len(new)))

    # 3. Train.
    trained: dict[str, Weights] = {}
    sizes = [len(samples) for samples in pool]
    recipe = Recipe(settings, precision, shape, place.type, chosen)
    if jobs and cluster is not None:
        if progress:
            announce(cluster, list(jobs.values()), sizes, recipe)
        cluster.open()
    inference = place, precision
    if place.type == "cuda" and not torch.cuda.is_available():  # the cluster's GPU trains; this machine infers
        inference = torch.device("cpu"), "float32"
    ensembles = [
        Ensemble(keys, new, len(set(keys)) - new, whole, shape, *inference, trained, store) for keys, new in wanted
    ]
    tell = None if finished is None else lambda task: finished(task, ensembles[task])
    with (
        TaskCallbacks([ensemble.network_keys for ensemble in ensembles], set(jobs), tell) as callbacks,
        show_progress("training", sum(own.epochs for _, own in origin.values()), progress if jobs else None) as bar,
    ):
        reporter = Reporter(bar, len(jobs))

        def finish(job: Job, weights: Weights) -> None:
            if store is None:
                trained[job.key] = weights
            else:
                plan, own_recipe = origin[job.key]
                about = {"users": list(plan.users), "replica": plan.replica, "computation": computation}
                about |= {"settings": json.dumps(own_recipe.to_json()), "torch": torch.__version__}
                store.save_weights(job.key, weights, about)
            reporter.advance(models=1)
            callbacks.finish_model(job.key)

        if jobs and cluster is not None:
            train_on_cluster(cluster, list(jobs.values()), pool, recipe, reporter, finish)
        elif jobs:
            resident = DeviceSamples(pool, settings, place)
            context = TrainingContext(settings, precision, shape, sizes, resident, reporter, finish)
            run_engine(chosen, list(jobs.values()), context)
    return ensembles


def _pick_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise InputError(f"device: expected auto, cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device: cuda was asked for, but torch sees no GPU; use --device cpu")
    return torch.device(device)
