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
    model = _LoneModel(ensemble := scene.train_one())
    drawn = np.random.default_rng([scene.seed, 7]).permutation(len(scene.validation))[:_OVERLAYS]
    others = model.place(scene.validation.take(drawn))

    def score(samples: Samples) -> NDArray[np.float64]:
        images = model.place(samples)
        entropy = torch.zeros(len(images), dtype=torch.float64, device=images.device)
        for other in others:
            chance = torch.softmax(model.infer((images + other).clamp_max(1)), dim=1).double()
            entropy -= (chance * chance.clamp_min(1e-12).log()).sum(dim=1) / len(others)
        return -entropy.cpu().numpy()

    return _watch(scene, ensemble, score, 1 + len(others))


def run_sentinet(scene: Scene) -> Outcome:
    """Cut out what the answer hangs on, lay it over clean images: where they follow, it is a trigger.

    Chou et al.: SentiNet, DLS 2020, its idea in small: the salient place is the tenth of the pixels with the largest
    gradient of the answer (the authors take Grad-CAM and segments), the alarm is the share of 32 clean images that
    follow the pasted place less the share that follow the same place filled with noise. Labels are the undefended
    model's.
    """
    model = _LoneModel(ensemble := scene.train_one())
    rng = np.random.default_rng([scene.seed, 13])
    others = model.place(scene.validation.take(rng.permutation(len(scene.validation))[:_OVERLAYS]))
    noise = torch.from_numpy(rng.random(others.shape[1:], dtype=np.float32)).to(others.device)

    def score(samples: Samples) -> NDArray[np.float64]:
        images = model.place(samples)
        answers, places = [], []
        for part in torch.split(images, model.batch):
            ready = part.clone().requires_grad_(True)
            logits = model(ready)
            (slope,) = torch.autograd.grad(logits.amax(dim=1).sum(), ready)
            weight = slope.abs().amax(dim=1, keepdim=True)
            border = weight.flatten(1).quantile(0.9, dim=1)
            answers.append(logits.argmax(dim=1))
            places.append(weight >= border[:, None, None, None])
        answer, place = torch.cat(answers), torch.cat(places)
        follow = torch.zeros(len(images), dtype=torch.float64, device=images.device)
        for other in others:
            for pasted, sign in ((images, 1.0), (noise, -1.0)):
                said = model.infer(torch.where(place, pasted, other)).argmax(dim=1)
                follow += sign * (said == answer).double() / len(others)
        return follow.cpu().numpy()

    return _watch(scene, ensemble, score, 2 + 2 * len(others))


def run_neural_cleanse(scene: Scene) -> Outcome:
    """Find for every class the smallest mask that forces it; unlearn the one that is abnormally small.

    Wang et al.: Neural Cleanse, S&P 2019. Mask and pattern by Adam on the validation images; a class whose mask has an
    anomaly index above 2 (median absolute deviation) is taken for the target; the model is then trained for one more
    epoch on validation images, a fifth of them under the found trigger with their true label. The alarm of an input is
    how much of the mask's place resembles the found pattern.
    """
    model = _LoneModel(ensemble := scene.train_one())
    few = scene.validation.take(
        np.random.default_rng([scene.seed, 6]).permutation(len(scene.validation))[:_CLEAN_IMAGES]
    )
    images = model.place(few)
    masks, patterns = _reverse(model, images, scene.n_classes)
    sizes = masks.flatten(1).sum(dim=1).cpu().numpy().astype(np.float64)
    spread = 1.4826 * np.median(np.abs(sizes - np.median(sizes))) + 1e-12
    index = (np.median(sizes) - sizes) / spread
    target = int(index.argmax())
    answer = _answer(scene, ensemble)
    if index[target] <= 2:
        nothing = np.zeros(len(scene.clean))
        return replace(answer, clean_alarm=nothing, triggered_alarm=nothing, n_passes=1)
    mask, pattern = masks[target], patterns[target]
    _unlearn(model, images, torch.from_numpy(few.labels).to(images.device), mask, pattern, scene.seed)

    def alarm(samples: Samples) -> NDArray[np.float64]:
        away = ((model.place(samples) - pattern).abs() * mask).flatten(1).sum(dim=1)
        return -away.cpu().double().numpy()

    def label(samples: Samples) -> NDArray[np.int64]:
        return vote(torch.log_softmax(model.infer(model.place(samples)), dim=1).cpu().numpy())

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
    """Train a second model on what the first one does not make suspicious."""
    kept = find_trusted(scene, suspicious)
    return replace(_answer(scene, scene.train_each([scene.pooled.take(kept)])[0]), n_models=2)


def find_trusted(scene: Scene, suspicious: Callable[[NDArray[np.float64]], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Judge the samples of each class by the features of a model on all of them; return the places of the rest."""
    pooled = scene.pooled
    features = _LoneModel(scene.train_one()).read_features(pooled)
    kept = np.ones(len(pooled), dtype=bool)
    for label in range(scene.n_classes):
        members = np.flatnonzero(pooled.labels == label)
        if len(members) > 2:
            kept[members[suspicious(features[members])]] = False
    return np.flatnonzero(kept)


class _LoneModel:
    """The only model of an ensemble as a function of images, on the GPU where there is one, in its own arithmetic."""

    def __init__(self, ensemble: Ensemble) -> None:
        settings = ensemble.settings
        self.settings, self.device = settings, torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.half = ensemble.precision == "bfloat16" and self.device.type == "cuda"
        self.batch = 500 if self.device.type == "cpu" else 4000
        network = build_network(settings.architecture, ensemble.shape, settings.n_classes, 0)
        self.network = ensemble.load_into(network, 0).to(self.device).eval()
        self.mean, self.std = (
            torch.tensor(values, device=self.device).view(-1, 1, 1) for values in (settings.mean, settings.std)
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits of images on the 0..1 scale."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            logits: Tensor = self.network((images - self.mean) / self.std)
        return logits.float()

    def place(self, samples: Samples) -> Tensor:
        """Return samples as images on the device, triggers included."""
        return torch.from_numpy(render(samples)).to(self.device)

    @torch.no_grad()
    def infer(self, images: Tensor) -> Tensor:
        """Return the logits of any number of images."""
        return torch.cat([self(part) for part in torch.split(images, self.batch)])

    def read_features(self, samples: Samples) -> NDArray[np.float64]:
        """Return what the last linear layer is given."""
        layers = [layer for layer in self.network.modules() if isinstance(layer, nn.Linear)]
        seen: list[Tensor] = []
        handle = layers[-1].register_forward_hook(lambda _layer, given, _out: seen.append(given[0].detach().cpu()))
        try:
            for start in range(0, len(samples), self.batch):
                self.infer(self.place(samples.take(np.arange(start, min(start + self.batch, len(samples))))))
        finally:
            handle.remove()
        return torch.cat(seen).double().numpy()


def _reverse(model: _LoneModel, images: Tensor, n_classes: int, steps: int = 150) -> tuple[Tensor, Tensor]:
    """Find for every class a mask (1, H, W) and a pattern (C, H, W) that send all images there; masks are kept small.

    Searches share nothing. A GPU runs all of them as one batch, a CPU one after the other.
    """
    model.network.requires_grad_(False)
    at_once = n_classes if model.device.type == "cuda" else 1
    found = [_reverse_some(model, images, some, steps) for some in torch.split(torch.arange(n_classes), at_once)]
    masks, patterns = (torch.cat(parts) for parts in zip(*found, strict=True))
    return masks, patterns


def _reverse_some(model: _LoneModel, images: Tensor, targets: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    n, device = len(targets), images.device
    mask = torch.full((n, 1, *images.shape[2:]), -2.0, device=device, requires_grad=True)
    pattern = torch.zeros((n, *images.shape[1:]), device=device, requires_grad=True)
    optimiser = torch.optim.Adam([mask, pattern], lr=0.1, betas=(0.5, 0.9))
    goal = targets.to(device)[:, None].expand(n, len(images))
    weight = torch.full((n,), 1e-2, dtype=torch.float64, device=device)
    for _ in range(steps):
        soft, painted = torch.sigmoid(mask), torch.sigmoid(pattern)
        mixed = (1 - soft[:, None]) * images + soft[:, None] * painted[:, None]
        logits = model(mixed.flatten(0, 1)).view(n, len(images), -1)
        reached = (logits.argmax(dim=2) == goal).float().mean(dim=1)
        losses = nn.functional.cross_entropy(logits.movedim(2, 1), goal, reduction="none").mean(dim=1)
        loss = (losses + weight.float() * soft.flatten(1).sum(dim=1)).sum()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        # The authors' schedule: press harder while the trigger works, ease where it does not.
        weight = torch.where(reached > 0.99, weight * 1.05, weight / 1.05)
    return torch.sigmoid(mask).detach(), torch.sigmoid(pattern).detach()


def _unlearn(model: _LoneModel, images: Tensor, labels: Tensor, mask: Tensor, pattern: Tensor, seed: int) -> None:
    """Train one epoch on clean images, a fifth of them under the trigger, all with their true labels."""
    generator = torch.Generator().manual_seed(seed)
    stamped = (torch.rand(len(images), generator=generator) < 0.2).to(images.device)
    given = torch.where(stamped[:, None, None, None], (1 - mask) * images + mask * pattern, images)
    network, settings = model.network.requires_grad_(True).train(), model.settings
    rate = settings.learning_rate if settings.optimizer == "adam" else 1e-3  # rates of other optimisers are not Adam's
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    for part in torch.split(torch.randperm(len(images), generator=generator), 32):
        loss = nn.functional.cross_entropy(model(given[part]), labels[part])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    network.eval()
