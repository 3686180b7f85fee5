"""Accuracy of codeward's GPU engine against a plain float32 PyTorch loop on the same data, batches and initial weights.

    python -m benchmarks.accuracy_gpu graphs cifar10 -o graphs.json
    python -m benchmarks.accuracy_gpu plain cifar10 --part 0 --parts 3 -o plain0.json
    python -m benchmarks.accuracy_gpu show graphs.json plain0.json plain1.json plain2.json

With Adam at a constant rate the accuracy of one model goes up and down by more than a point from step to step, which
hides a difference of half a point. So every model is tested many times in its last epochs, on the whole test set, and
its mean is compared with that of its twin: same users, same initial weights, same batches and crops in both. ``--part``
divides the plain models over processes, which a GPU can run side by side. Needs ``CODEWARD_DATA`` and a GPU. The plain
loop computes as torch does by default: float32, convolutions in TF32. ``graphs`` also prints its time a model-step
until the first model is tested.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.train_gpu import plain_loop
from codeward._progress import silent
from codeward.codes import Code
from codeward.data import Samples, load_dataset
from codeward.training import PRESETS, ModelPlan, TrainingSettings, build_network, plan_models
from codeward.training import _graph_engine as engine
from codeward.training._device_samples import DeviceSamples, arrange
from codeward.training._graph_engine import GraphTrainer
from codeward.training._jobs import Job, Reporter, TrainingContext
from codeward.training._plan import count_steps

#: Users of the data set, users in each model, models, epochs at the end in which models are tested.
CASES = {"cifar10": (16, 3, 8, 5), "mnist": (12, 12, 6, 2)}

#: Steps between two tests; a multiple of the steps that a trainer queues at a time.
EVERY = 32


class Examiner:
    """Tests networks on the test set at the steps that count."""

    def __init__(self, test: Samples, settings: TrainingSettings, steps: int, last: int) -> None:
        self.samples = DeviceSamples([test], settings, torch.device("cuda"))
        self.steps, self.first = steps, steps - last
        self.accuracy: dict[int, list[float]] = {}

    def is_due(self, step: int) -> bool:
        return step > self.first and (step % EVERY == 0 or step == self.steps)

    def test(self, number: int, network: nn.Module, half: bool) -> None:
        network.eval()
        right = 0
        everything = torch.arange(len(self.samples.labels), device="cuda")
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
            for index in everything.split(2000):
                images = self.samples.gather(index)
                images = arrange(images) if half else images.permute(0, 3, 1, 2).contiguous()
                right += int((network(images).argmax(1) == self.samples.labels[index]).sum())
        network.train()
        self.accuracy.setdefault(number, []).append(right / len(everything))


def split_users(dataset: str) -> tuple[list[Samples], Samples, list[ModelPlan], TrainingSettings, int]:
    """Return users, test set, plans, recipe and the steps at the end in which models are tested."""
    n_users, each, n_models, last = CASES[dataset]
    pair = load_dataset(dataset)
    parts = np.array_split(np.random.default_rng(0).permutation(len(pair.train)), n_users)
    users = [pair.train.take(np.sort(part)) for part in parts]
    starts = [model * n_users // n_models for model in range(n_models)]
    rows = [[(user - start) % n_users < each for user in range(n_users)] for start in starts]
    plans, settings = list(plan_models(Code(np.array(rows)), 0)), PRESETS[dataset]
    steps = count_steps(plans[0], [len(user) for user in users], settings)
    return users, pair.test, plans, settings, steps * last // settings.epochs


def train_plain(dataset: str, part: int, parts: int) -> dict[str, object]:
    users, test, plans, settings, last = split_users(dataset)
    own = [number for number in range(len(plans)) if number % parts == part]
    examiner = Examiner(test, settings, count_steps(plans[0], [len(user) for user in users], settings), last)

    def watch(number: int, step: int, network: nn.Module) -> None:
        if examiner.is_due(step):
            examiner.test(own[number], network, half=False)

    start = time.perf_counter()
    plain_loop(users, [plans[number] for number in own], settings, watch=watch)
    return {"arm": "plain", "seconds": time.perf_counter() - start, "accuracy": examiner.accuracy}


def train_with_graphs(dataset: str) -> dict[str, object]:
    users, test, plans, settings, last = split_users(dataset)
    sizes = [len(user) for user in users]
    examiner = Examiner(test, settings, count_steps(plans[0], sizes, settings), last)
    shape = tuple(users[0].images.shape[1:])
    network = build_network(settings.architecture, shape, 10, 0).cuda().to(memory_format=torch.channels_last)
    numbers = {plan.seed % 2**31: number for number, plan in enumerate(plans)}
    times: list[float] = []
    launched = 0

    class WatchedTrainer(GraphTrainer):
        def load(self, start) -> None:
            self.number = numbers[start.seed % 2**31]
            super().load(start)

        def launch(self, steps: int) -> None:
            nonlocal launched
            if not times:
                torch.cuda.synchronize()
                times.append(time.perf_counter())
            super().launch(steps)
            if len(times) == 1:
                launched += steps
            if examiner.is_due(self.launched):
                if len(times) == 1:
                    torch.cuda.synchronize()
                    times.append(time.perf_counter())
                network.load_state_dict(self.export()())
                examiner.test(self.number, network, half=True)

    engine.GraphTrainer = WatchedTrainer
    samples = DeviceSamples(users, settings, torch.device("cuda"))
    reporter = Reporter(silent(), len(plans))
    context = TrainingContext(settings, "bfloat16", shape, sizes, samples, reporter, lambda job, weights: None)
    start = time.perf_counter()
    engine.train_graphs([Job(plan, str(number)) for number, plan in enumerate(plans)], context)
    rate = (times[1] - times[0]) / launched * 1e3
    print(f"{dataset}: {rate:.4f} ms per model-step over the first {launched} (models loaded, none tested)")
    seconds = time.perf_counter() - start
    return {"arm": "graphs", "seconds": seconds, "ms_per_model_step": rate, "accuracy": examiner.accuracy}


def show(files: Sequence[Path]) -> None:
    arms: dict[str, dict[str, list[float]]] = {}
    for file in files:
        content = json.loads(file.read_text())
        arms.setdefault(content["arm"].replace("lanes", "graphs"), {}).update(content["accuracy"])
    common = sorted(set(arms["graphs"]) & set(arms["plain"]), key=int)
    means = {arm: np.array([np.mean(given[model]) for model in common]) for arm, given in arms.items()}
    for arm, values in means.items():
        times = len(arms[arm][common[0]])
        final = np.mean([arms[arm][model][-1] for model in common])
        error = _error(values)
        print(f"{arm}: {len(common)} models, each tested {times} times: mean {values.mean():.4f} +- {error:.4f},")
        print(f"  {values.min():.4f} to {values.max():.4f}; after the last step {final:.4f}")
    gap = means["graphs"] - means["plain"]
    print(f"graphs - plain, model by model: {gap.mean():+.4f} +- {_error(gap):.4f} (standard error)")


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="command", required=True)
    for name in ("graphs", "plain"):
        arm = sub.add_parser(name)
        arm.add_argument("dataset", choices=CASES)
        arm.add_argument("-o", "--output", type=Path, required=True)
        if name == "plain":
            arm.add_argument("--part", type=int, default=0)
            arm.add_argument("--parts", type=int, default=1)
    sub.add_parser("show").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "show":
        show(options.files)
        return
    train = {"graphs": lambda: train_with_graphs(options.dataset)}.get(
        options.command, lambda: train_plain(options.dataset, options.part, options.parts)
    )
    about = {"dataset": options.dataset, "torch": torch.__version__, "device": torch.cuda.get_device_name()}
    options.output.write_text(json.dumps(about | train(), indent=1) + "\n")


if __name__ == "__main__":
    main()
