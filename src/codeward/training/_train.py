"""From users' data and a code to its trained sub-models."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from codeward._errors import InputError
from codeward._progress import show_progress
from codeward.codes import Code
from codeward.data import Samples
from codeward.training._architectures import build_network, fingerprint
from codeward.training._choice import choose_engine
from codeward.training._ensemble import Ensemble
from codeward.training._jobs import Job, Reporter, Weights, Workshop
from codeward.training._loop import train_loop
from codeward.training._plan import ModelPlan, plan_models
from codeward.training._resident import ResidentSamples, check_samples
from codeward.training._settings import TrainingSettings
from codeward.training._stacked import train_stacked
from codeward.training._store import ModelStore, model_key

_ENGINES: dict[str, Callable[[Sequence[Job], Workshop], None]] = {"loop": train_loop, "stacked": train_stacked}


def train_ensemble(
    users: Sequence[Samples],
    code: Code | Sequence[ModelPlan],
    settings: TrainingSettings,
    seed: int,
    store: ModelStore | None = None,
    device: str = "auto",
    engine: str = "auto",
    progress: bool = False,
) -> Ensemble:
    """Train the sub-models of a code, or find them in the store.

    Guarantees, under any content of the data (they are what every proof in codeward rests on):

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
    engine : {"auto", "loop", "stacked", "lanes"}
        ``auto`` follows `choose_engine`, which looks at the architecture and the device only.
    progress : bool
        Show model-epochs, images/s and the time left on stderr.
    """
    return train_ensembles([(users, code)], settings, seed, store, device, engine, progress)[0]


def train_ensembles(
    tasks: Sequence[tuple[Sequence[Samples], Code | Sequence[ModelPlan]]],
    settings: TrainingSettings,
    seed: int,
    store: ModelStore | None = None,
    device: str = "auto",
    engine: str = "auto",
    progress: bool = False,
) -> list[Ensemble]:
    """Train the sub-models of several codes, or of one code on several versions of the data, in one go.

    Every ensemble is, byte for byte, the one that `train_ensemble` gives for its task alone; a model that several tasks
    ask for is trained once (and counted as trained by the first of them), and no engine stands idle between tasks.

    Parameters
    ----------
    tasks : sequence of (users, code)
        As for `train_ensemble`. Equal samples are kept in memory once.
    settings, seed, store, device, engine, progress
        As for `train_ensemble`, the same for all tasks.
    """
    if not tasks:
        return []
    for users, code in tasks:
        if isinstance(code, Code) and len(users) != code.n_users:
            raise InputError(f"training: {len(users)} users' data for a code with {code.n_users} columns")
    everybody = list({id(samples): samples for users, _ in tasks for samples in users}.values())
    check_samples(everybody, settings)
    place = _pick_device(device)
    shape = (int(everybody[0].images.shape[1]), int(everybody[0].images.shape[2]), int(everybody[0].images.shape[3]))
    network = build_network(settings.architecture, shape, settings.n_classes, 0)
    chosen = choose_engine(network, shape, place, engine)
    precision = settings.precision
    if precision == "auto":
        precision = "bfloat16" if place.type == "cuda" else "float32"

    # 1. Each distinct data set of a user once; where a user of a task finds its own.
    digests = {id(samples): samples.digest() for samples in everybody}
    pool = list({digests[id(samples)]: samples for samples in everybody}.values())
    position = {digest: at for at, digest in enumerate(dict.fromkeys(digests.values()))}

    # 2. The key of every model; a job for each that is neither in the store nor asked for before.
    computation = f"{place.type} {chosen} {precision}"
    marks = fingerprint(network)
    jobs: dict[str, Job] = {}
    origin: dict[str, ModelPlan] = {}
    asked: list[tuple[tuple[str, ...], int]] = []
    for users, code in tasks:
        own = [digests[id(samples)] for samples in users]
        plans = plan_models(code, seed) if isinstance(code, Code) else code
        keys = tuple(model_key(plan, own, settings, marks, computation) for plan in plans)
        new = 0
        for key, plan in zip(keys, plans, strict=True):
            if key in jobs or (store is not None and store.holds(key)):
                continue
            # The plan keeps its seed, which comes from the users' numbers in the code, and the order of its users.
            jobs[key] = Job(replace(plan, users=tuple(position[own[user]] for user in plan.users)), key)
            origin[key] = plan
            new += 1
        asked.append((keys, new))

    # 3. Train.
    trained: dict[str, Weights] = {}
    if jobs:
        with show_progress("training", len(jobs) * settings.epochs, quiet=not progress) as bar:
            reporter = Reporter(bar, len(jobs))

            def finish(job: Job, weights: Weights) -> None:
                if store is None:
                    trained[job.key] = weights
                else:
                    plan = origin[job.key]
                    about = {"users": list(plan.users), "replica": plan.replica, "computation": computation}
                    about |= {"settings": settings.to_json(), "torch": torch.__version__}
                    store.save_weights(job.key, weights, about)
                reporter.advance(models=1)

            resident = ResidentSamples(pool, settings, place)
            sizes = [len(samples) for samples in pool]
            shop = Workshop(settings, precision, shape, sizes, resident, reporter, finish, threading.Event())
            _run(chosen, list(jobs.values()), shop)
    return [
        Ensemble(keys, new, len(set(keys)) - new, settings, shape, place, precision, trained, store)
        for keys, new in asked
    ]


def _run(engine: str, jobs: Sequence[Job], shop: Workshop) -> None:
    if engine == "lanes":
        from codeward.training._lanes import train_lanes

        train_lanes(jobs, shop)
    else:
        _ENGINES[engine](jobs, shop)


def _pick_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise InputError(f"device: expected auto, cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device: cuda was asked for, but torch sees no GPU; use --device cpu")
    return torch.device(device)
