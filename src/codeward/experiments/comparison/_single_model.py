"""Defences around one model on everybody's data: cleaning the data, watching the input, unlearning the trigger."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codeward.data import Samples, render
from codeward.experiments.comparison._scene import Outcome, Scene
from codeward.training import Ensemble, build_network, vote

#: Share of a class that its cleaners expect to be poisoned; spectral signatures remove 1.5 times as much.
_EXPECTED_POISON = 0.1
#: Clean images on which Neural Cleanse looks for triggers.
_CLEAN_IMAGES = 256
#: Clean images that STRIP lays over an input.
_OVERLAYS = 32


def run_undefended(scene: Scene) -> Outcome:
    """Train one model on everybody's data and believe it."""
    ensemble = scene.train_one()
    return _answer(scene, ensemble)


def run_spectral(scene: Scene) -> Outcome:
    """Remove the samples of each class that stand out along the top singular vector of its features; train again.

    Tran, Li, Madry: Spectral Signatures in Backdoor Attacks, NeurIPS 2018. Features of the last hidden layer; 1.5 times
    the expected share of poison is removed, which the authors take as known.
    """
    return _clean_and_retrain(scene, find_outlying)


def find_outlying(features: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the samples of a class that stand out along the top singular vector of their features."""
    centred = features - features.mean(axis=0)
    top = np.linalg.svd(centred, full_matrices=False)[2][0]
    score = (centred @ top) ** 2
    return np.asarray(score > np.quantile(score, 1 - 1.5 * _EXPECTED_POISON))


def run_activation_clustering(scene: Scene) -> Outcome:
    """Split the features of each class into two clusters; remove the smaller where it is small; train again.

    Chen et al.: Detecting Backdoor Attacks on Deep Neural Networks by Activation Clustering, 2018. Ten independent
    components, two means, a cluster below 35% of its class counts as poison: the authors' relative-size rule.
    """
    return _clean_and_retrain(scene, find_cluster)


def find_cluster(features: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the smaller of two clusters of a class, where it is small."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    if len(features) < 20:
        return np.zeros(len(features), dtype=bool)
    varying = features[:, features.std(axis=0) > 1e-6]
    n_parts = min(10, varying.shape[1], len(features) - 1)
    ica = FastICA(n_parts, random_state=0, max_iter=2000, tol=1e-2, whiten="unit-variance")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what it found so far separates as well
        parts = ica.fit_transform(varying)
    cluster = KMeans(2, n_init=10, random_state=0).fit_predict(parts)
    small = int(cluster.mean() < 0.5)
    return (cluster == small) if (cluster == small).mean() < 0.35 else np.zeros(len(features), dtype=bool)


def run_strip(scene: Scene) -> Outcome:
    """Lay clean images over an input: where the answer stays the same, a trigger holds it.

    Gao et al.: STRIP, ACSAC 2019. The alarm is the negative mean entropy of the answers over 32 superpositions (sums
    of both images, as the authors' code has it); labels are the undefended model's.
    """
    ensemble = scene.train_one()
    network = _network(ensemble)
    others = render(scene.validation)[np.random.default_rng([scene.seed, 7]).permutation(len(scene.validation))]
    others = others[:_OVERLAYS]

    def score(samples: Samples) -> NDArray[np.float64]:
        images = render(samples)
        entropy = np.zeros(len(images))
        for other in others:
            logits = _infer(network, ensemble, np.minimum(images + other, 1))
            chance = torch.softmax(logits, dim=1).double()
            entropy -= (chance * chance.clamp_min(1e-12).log()).sum(dim=1).numpy() / len(others)
        return -entropy

    return _watch(scene, ensemble, score, 1 + len(others))


def run_sentinet(scene: Scene) -> Outcome:
    """Cut out what the answer hangs on, lay it over clean images: where they follow, it is a trigger.

    Chou et al.: SentiNet, DLS 2020, its idea in small: the salient place is the tenth of the pixels with the largest
    gradient of the answer (the authors take Grad-CAM and segments), the alarm is the share of 32 clean images that
    follow the pasted place less the share that follow the same place filled with noise. Labels are the undefended
    model's.
    """
    ensemble = scene.train_one()
    network = _network(ensemble)
    rng = np.random.default_rng([scene.seed, 13])
    others = render(scene.validation)[rng.permutation(len(scene.validation))][:_OVERLAYS]
    noise = rng.random(others.shape[1:], dtype=np.float32)

    def score(samples: Samples) -> NDArray[np.float64]:
        images = render(samples)
        ready = torch.from_numpy(images).to(next(network.parameters()).device).requires_grad_(True)
        logits = network(_normalise(ensemble, ready))
        (slope,) = torch.autograd.grad(logits.amax(dim=1).sum(), ready)
        answer, weight = logits.argmax(dim=1).cpu(), slope.abs().amax(dim=1, keepdim=True).cpu()
        border = weight.flatten(1).quantile(0.9, dim=1)
        place = (weight >= border[:, None, None, None]).numpy()
        follow = np.zeros(len(images))
        for other in others:
            for pasted, sign in ((images, 1.0), (noise, -1.0)):
                said = _infer(network, ensemble, np.where(place, pasted, other)).argmax(dim=1)
                follow += sign * (said == answer).numpy() / len(others)
        return follow

    return _watch(scene, ensemble, score, 2 + 2 * len(others))


def run_neural_cleanse(scene: Scene) -> Outcome:
    """Find for every class the smallest mask that forces it; unlearn the one that is abnormally small.

    Wang et al.: Neural Cleanse, S&P 2019. Mask and pattern by Adam on the validation images; a class whose mask has an
    anomaly index above 2 (median absolute deviation) is taken for the target; the model is then trained for one more
    epoch on validation images, a fifth of them under the found trigger with their true label. The alarm of an input is
    how much of the mask's place resembles the found pattern.
    """
    ensemble = scene.train_one()
    network = _network(ensemble)
    few = np.random.default_rng([scene.seed, 6]).permutation(len(scene.validation))[:_CLEAN_IMAGES]
    place = next(network.parameters()).device
    images = torch.from_numpy(render(scene.validation.take(few))).to(place)
    labels = torch.from_numpy(scene.validation.labels[few]).to(place)
    found = [_reverse(network, ensemble, images, target) for target in range(scene.n_classes)]
    sizes = np.array([float(mask.abs().sum()) for mask, _ in found])
    spread = 1.4826 * np.median(np.abs(sizes - np.median(sizes))) + 1e-12
    index = (np.median(sizes) - sizes) / spread
    target = int(index.argmax())
    answer = _answer(scene, ensemble)
    if index[target] <= 2:
        nothing = np.zeros(len(scene.clean))
        return replace(answer, clean_alarm=nothing, triggered_alarm=nothing, n_passes=1)
    mask, pattern = found[target]
    _unlearn(network, ensemble, images, labels, mask, pattern, scene.seed)

    def alarm(samples: Samples) -> NDArray[np.float64]:
        away = (torch.from_numpy(render(samples)) - pattern.cpu()).abs() * mask.cpu()
        return -np.asarray(away.flatten(1).sum(dim=1).numpy(), dtype=np.float64)

    def label(samples: Samples) -> NDArray[np.int64]:
        return vote(torch.log_softmax(_infer(network, ensemble, render(samples)), dim=1).numpy())

    return replace(
        answer,
        clean=label(scene.clean),
        triggered=label(scene.triggered),
        clean_alarm=alarm(scene.clean),
        triggered_alarm=alarm(scene.triggered),
    )


def _answer(scene: Scene, ensemble: Ensemble) -> Outcome:
    clean, triggered = scene.score(ensemble, [scene.clean, scene.triggered])
    return Outcome(vote(clean)[:, 0], vote(triggered)[:, 0])


def _watch(scene: Scene, ensemble: Ensemble, score: Callable[[Samples], NDArray[np.float64]], n_passes: int) -> Outcome:
    """Answer as the model does, with an alarm."""
    answer = _answer(scene, ensemble)
    with scene.inferring():
        return replace(
            answer, clean_alarm=score(scene.clean), triggered_alarm=score(scene.triggered), n_passes=n_passes
        )


def _clean_and_retrain(scene: Scene, suspicious: Callable[[NDArray[np.float64]], NDArray[np.bool_]]) -> Outcome:
    """Judge the samples of each class by the features of a first model; train a second one on the rest."""
    ensemble, pooled = scene.train_one(), scene.pooled
    features = _hidden(_network(ensemble), ensemble, render(pooled))
    kept = np.ones(len(pooled), dtype=bool)
    for label in range(scene.n_classes):
        members = np.flatnonzero(pooled.labels == label)
        if len(members) > 2:
            kept[members[suspicious(features[members])]] = False
    return replace(_answer(scene, scene.train_one(pooled.take(np.flatnonzero(kept)))), n_models=2)


def _network(ensemble: Ensemble) -> nn.Module:
    """Return the model as a network, ready to infer, on the GPU where there is one."""
    settings = ensemble.settings
    network = build_network(settings.architecture, ensemble.shape, settings.n_classes, 0)
    return ensemble.load_into(network, 0).to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _normalise(ensemble: Ensemble, images: Tensor) -> Tensor:
    mean, std = (
        torch.tensor(values, device=images.device).view(-1, 1, 1)
        for values in (ensemble.settings.mean, ensemble.settings.std)
    )
    return (images - mean) / std


def _infer(network: nn.Module, ensemble: Ensemble, images: NDArray[np.float32]) -> Tensor:
    place = next(network.parameters()).device
    with torch.no_grad():
        parts = torch.split(torch.from_numpy(images), 500)
        return torch.cat([network(_normalise(ensemble, part.to(place))).cpu() for part in parts])


def _hidden(network: nn.Module, ensemble: Ensemble, images: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return what the last linear layer is given."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    seen: list[Tensor] = []
    handle = layers[-1].register_forward_hook(lambda _layer, given, _out: seen.append(given[0].detach().cpu()))
    try:
        _infer(network, ensemble, images)
    finally:
        handle.remove()
    return torch.cat(seen).double().numpy()


def _reverse(
    network: nn.Module, ensemble: Ensemble, images: Tensor, target: int, steps: int = 150
) -> tuple[Tensor, Tensor]:
    """Find mask (1, H, W) and pattern (C, H, W) that send all images to a class; the mask is kept small."""
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    mask = torch.full(images.shape[2:], -2.0, device=images.device, requires_grad=True)
    pattern = torch.zeros(images.shape[1:], device=images.device, requires_grad=True)
    optimiser = torch.optim.Adam([mask, pattern], lr=0.1, betas=(0.5, 0.9))
    goal, weight = torch.full((len(images),), target, device=images.device), 1e-2
    for _ in range(steps):
        soft, painted = torch.sigmoid(mask), torch.sigmoid(pattern)
        logits = network(_normalise(ensemble, (1 - soft) * images + soft * painted))
        reached = float((logits.argmax(dim=1) == target).float().mean())
        loss = nn.functional.cross_entropy(logits, goal) + weight * soft.sum()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        # The authors' schedule: press harder while the trigger works, ease where it does not.
        weight = weight * 1.05 if reached > 0.99 else weight / 1.05
    return torch.sigmoid(mask).detach()[None], torch.sigmoid(pattern).detach()


def _unlearn(
    network: nn.Module, ensemble: Ensemble, images: Tensor, labels: Tensor, mask: Tensor, pattern: Tensor, seed: int
) -> None:
    """Train one epoch on clean images, a fifth of them under the trigger, all with their true labels."""
    generator = torch.Generator().manual_seed(seed)
    stamped = (torch.rand(len(images), generator=generator) < 0.2).to(images.device)
    given = torch.where(stamped[:, None, None, None], (1 - mask) * images + mask * pattern, images)
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    network.train()
    settings = ensemble.settings  # rates of other optimisers are not Adam's
    optimiser = torch.optim.Adam(
        network.parameters(), lr=settings.learning_rate if settings.optimizer == "adam" else 1e-3
    )
    for part in torch.split(torch.randperm(len(images), generator=generator), 32):
        loss = nn.functional.cross_entropy(network(_normalise(ensemble, given[part])), labels[part])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    network.eval()
