"""Ridge heads against scikit-learn's RidgeClassifier in a loop, and revocation: `python -m benchmarks.heads [HEADS]`.

`python -m benchmarks.heads serve`: 50 heads against 50 networks, one image a request.

Random features of CIFAR-10's shape: 50,000 of width 1,280, 60 users, each head learns from a third of them. The loop is
timed on a few fits and scaled. Processor seconds, since machines are shared.
"""

import json
import sys
import time

import numpy as np

from codeward.codes import Code, partition_code
from codeward.training.heads import fit_heads


def main() -> None:
    n_heads = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    n_samples, width, n_classes, n_users = 50_000, 1280, 10, 60
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, n_samples)
    features = rng.standard_normal((n_samples, width), dtype=np.float32)
    features += rng.standard_normal((n_classes, width), dtype=np.float32)[labels]
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    users = np.arange(n_samples) % n_users
    matrix = np.zeros((n_heads, n_users), bool)
    for row in matrix:
        row[rng.choice(n_users, n_users // 3, replace=False)] = True
    told = {"heads": n_heads}

    def clock(name, work):
        start, used = time.monotonic(), time.process_time()
        made = work()
        told[name] = {"wall": round(time.monotonic() - start, 2), "processor": round(time.process_time() - used, 2)}
        return made

    heads = clock("third of 60 users", lambda: fit_heads(features, labels, users, Code(matrix), n_classes))
    clock("revoke one user", lambda: heads.revoke(0))
    told["heads touched"] = int(matrix[:, 0].sum())
    parts = np.arange(n_samples) % n_heads
    clock("partition", lambda: fit_heads(features, labels, parts, partition_code(n_heads, n_heads), n_classes))

    from sklearn.linear_model import RidgeClassifier

    fits = []
    for row in matrix[:2]:
        chosen = np.isin(users, np.flatnonzero(row))
        samples, used = features[chosen].astype(np.float64), time.process_time()
        RidgeClassifier(alpha=0.1, fit_intercept=False).fit(samples, labels[chosen])
        fits.append(time.process_time() - used)
    told["one fit of scikit-learn"] = round(min(fits), 2)
    told["times faster"] = round(min(fits) * n_heads / told["third of 60 users"]["processor"], 1)
    print(json.dumps(told, indent=1))


def serve(n_models=50):
    from threadpoolctl import threadpool_limits

    from codeward.data import Samples
    from codeward.training import TrainingSettings, plan_models, train_ensemble
    from codeward.training.backbones import StrokeFeatures

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n_models * 20, 1, 28, 28), dtype=np.uint8)
    labels, users = rng.integers(0, 10, len(images)), np.repeat(np.arange(n_models), 20)
    code, backbone = partition_code(n_models, n_models), StrokeFeatures()
    heads = fit_heads(backbone.transform(images), labels, users, code, 10, backbone=backbone)
    own = [Samples(images[users == user], labels[users == user]) for user in range(n_models)]
    one, features = Samples(images[:1], labels[:1]), backbone.transform(images[:1])
    ask = {"heads, features given": lambda: heads.votes(features), "features and heads": lambda: heads.votes(one)}
    for name in ("mlp", "mnist-cnn"):
        settings = TrainingSettings(architecture=name, epochs=1)
        networks = train_ensemble(own, plan_models(code, 0), settings, 0)
        ask[f"networks, {name}"] = lambda networks=networks: networks.votes(one)
    best = {}
    with threadpool_limits(1):
        for _ in range(6):
            for name, work in ask.items():
                used = time.process_time()
                for _ in range(3):
                    work()
                best[name] = min(best.get(name, np.inf), (time.process_time() - used) / 3)
    print(json.dumps({name: f"{1000 * seconds:.2f} ms" for name, seconds in best.items()}, indent=1))


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
