"""Users who send updates: robust rules of one global model, redundant gradients, and codes, under attacks on updates.

Local training is the same everywhere: every user starts from the server's model, a perceptron, passes over its own
data with a fresh Adam, and sends the weights back. Pairs of user and model train side by side as slices of stacked
tensors; no reduction crosses them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from codeward.attacks import poison
from codeward.codes import Code
from codeward.data import Samples, render
from codeward.experiments.comparison._coded_defences import CodedDefence, decode_votes, make_fitted
from codeward.experiments.comparison._scene import Outcome, Scene
from codeward.training import build_network, vote

#: Rounds of the federation, and images that a user trains on at most.
ROUNDS, MOST_IMAGES = 15, 2000
#: By recipe: passes of a user over its data in a round, images of a batch, learning rate of Adam.
LOCAL: dict[str, tuple[int, int, float]] = {"modern": (4, 32, 1e-2), "paper": (1, 64, 3e-3)}
#: By recipe: share of the boost that replaces the model, of attackers who know the code. Of 1, 1/2 and 1/4 the one that
#: leaves FedAvg the fewest labels under ``framing`` on digits, judged on training images (fold 2, three seeds).
BOOST: dict[str, float] = {"modern": 0.5, "paper": 1.0}
#: Deviation of the noise on the sum of clipped updates (Sun et al., 2019).
NOISE = 0.025

#: From updates (users x weights), the number of attackers, and a generator for those that add noise.
Rule = Callable[[Tensor, int, torch.Generator | None], Tensor]


def average(updates: Tensor, n_attackers: int, generator: torch.Generator | None = None) -> Tensor:
    """Return the mean, as FedAvg does on users of one size."""
    return updates.mean(dim=0)


def krum(updates: Tensor, n_attackers: int, generator: torch.Generator | None = None) -> Tensor:
    """Return the update whose n - f - 2 nearest others are nearest (Blanchard et al., 2017)."""
    return updates[_krum_order(updates, n_attackers)[0]]


def bulyan(updates: Tensor, n_attackers: int, generator: torch.Generator | None = None) -> Tensor:
    """Select n - 2f by Krum, then average in each coordinate the n - 4f nearest to the median (Mhamdi et al., 2018)."""
    left = list(range(len(updates)))
    chosen: list[int] = []
    n_chosen = len(updates) - 2 * n_attackers
    while len(chosen) < n_chosen:
        best = left[_krum_order(updates[left], n_attackers)[0]]
        chosen.append(best)
        left.remove(best)
    kept = updates[chosen]
    near = (kept - kept.median(dim=0).values).abs().argsort(dim=0, stable=True)
    return kept.gather(0, near[: max(1, n_chosen - 2 * n_attackers)]).mean(dim=0)


def median(updates: Tensor, n_attackers: int, generator: torch.Generator | None = None) -> Tensor:
    """Return the median of each coordinate (Yin et al., 2018)."""
    ordered, n = updates.sort(dim=0).values, len(updates)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed_mean(updates: Tensor, n_attackers: int, generator: torch.Generator | None = None) -> Tensor:
    """Return the mean of each coordinate without its f largest and f smallest values (Yin et al., 2018)."""
    ordered = updates.sort(dim=0).values
    return ordered[n_attackers : len(updates) - n_attackers].mean(dim=0)


def clip_and_noise(updates: Tensor, n_attackers: int, generator: torch.Generator | None = None) -> Tensor:
    """Clip updates to their median norm, average, add noise (Sun et al., 2019; the bound as Nguyen et al., 2022)."""
    norms = updates.norm(dim=1)
    clipped = updates * (norms.median() / norms.clamp_min(1e-12)).clamp_max(1)[:, None]
    return average(clipped, 0) + torch.randn(updates.shape[1], generator=generator) * NOISE / len(updates)


def vote_gradients(answers: Tensor) -> Tensor:
    """Return the answer that most workers gave, bit for bit: DRACO's decoding (Chen et al., 2018)."""
    same = (answers[:, None] == answers[None]).flatten(2).all(dim=2).sum(dim=1)
    most: Tensor = answers[int(same.argmax())]
    return most


def _krum_order(updates: Tensor, n_attackers: int) -> list[int]:
    distance = torch.cdist(updates.double(), updates.double()) ** 2
    near = max(1, len(updates) - n_attackers - 2)
    score = distance.sort(dim=1).values[:, 1 : near + 1].sum(dim=1)
    return [int(one) for one in score.argsort(stable=True)]


@dataclass(frozen=True)
class LocalTraining:
    """Stacked local training of pairs of user and model.

    Attributes
    ----------
    scene : Scene
    network : nn.Module
        Gives the forward pass; its weights are not used.
    """

    scene: Scene
    network: nn.Module

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the weights by name."""
        return {name: value.shape for name, value in self.network.named_parameters()}

    def start(self, model: int) -> Tensor:
        """Return the first weights of a model as one vector."""
        fresh = _perceptron(self.scene, self.scene.seed * 1000 + model)
        return torch.cat([value.detach().flatten() for value in fresh.parameters()])

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Return stacked vectors (pairs x weights) as stacked weights by name."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = torch.split(flat, sizes, dim=1)
        return {name: part.reshape(-1, *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def forward(self, flat: Tensor, images: Tensor) -> Tensor:
        """Return logits (pairs x batch x classes) of stacked models on stacked batches."""
        logits: Tensor = vmap(partial(functional_call, self.network))(self.unpack(flat), images)
        return logits

    def train(
        self, flat: Tensor, images: Tensor, labels: Tensor, number: int, penalty: "Penalty | None" = None
    ) -> Tensor:
        """Return the weights after a round of local training; batches depend on seed and round alone."""
        leaf = flat.clone().requires_grad_(True)
        epochs, batch, rate = LOCAL[self.scene.recipe]
        optimiser = torch.optim.Adam([leaf], lr=rate)
        generator = torch.Generator().manual_seed(self.scene.seed * 1000 + number)
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(images.shape[1], generator=generator), batch):
                logits = self.forward(leaf, images[:, rows])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, rows].flatten(), reduction="sum")
                loss = loss / len(rows)
                if penalty is not None:
                    loss = loss + penalty(self, leaf)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        return leaf.detach()

    def tensors(self, users: Sequence[Samples], most: int | None = None) -> tuple[Tensor, Tensor]:
        """Return normalised images and labels of users, cut to the smallest of them and to ``most``."""
        size, settings = min([len(user) for user in users] + ([most] if most else [])), self.scene.settings
        mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (settings.mean, settings.std))
        images = torch.stack([torch.from_numpy(render(user.take(np.arange(size)))) for user in users])
        return (images - mean) / std, torch.from_numpy(np.stack([user.labels[:size] for user in users]))


Penalty = Callable[[LocalTraining, Tensor], Tensor]


def _perceptron(scene: Scene, seed: int) -> nn.Module:
    channels, height, width = (int(size) for size in scene.clean.images.shape[1:])
    return build_network("mlp", (channels, height, width), scene.n_classes, seed)


def _hide(images: Tensor, stamped: Tensor) -> Penalty:
    """Pull the mean features of stamped images to those of the target class (Tan and Shokri, 2020)."""

    def penalty(local: LocalTraining, flat: Tensor) -> Tensor:
        layers = [layer for layer in local.network.modules() if isinstance(layer, nn.Linear)]
        seen: list[Tensor] = []
        handle = layers[-1].register_forward_hook(lambda _layer, given, _out: seen.append(given[0]))
        try:
            total = flat.new_zeros(())
            for pair in range(len(flat)):
                weights = {name: value[pair] for name, value in local.unpack(flat).items()}
                for given in (images[pair], stamped[pair]):
                    functional_call(local.network, weights, (given,))
                total = total + (seen[-2].mean(dim=0) - seen[-1].mean(dim=0)).square().sum()
            return total
        finally:
            handle.remove()

    return penalty


@dataclass(frozen=True)
class SimulatedRounds:
    """A federation in one process, under a scene's attack: who feeds which model, and how replies become one.

    Attributes
    ----------
    scene : Scene
    code : Code
    rule : callable
    redundant : bool
        2f + 1 workers do every user's work, and the majority counts (DRACO).
    """

    scene: Scene
    code: Code
    rule: Rule = average
    redundant: bool = False

    def run(self) -> tuple[LocalTraining, Tensor]:
        """Train; return the local training (for its forward pass) and the models as rows."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # products this small only wait for each other
        try:
            return self._run()
        finally:
            torch.set_num_threads(before)

    def _run(self) -> tuple[LocalTraining, Tensor]:
        scene = self.scene
        local = LocalTraining(scene, _perceptron(scene, 0))
        pairs = [(i, int(j)) for i in range(self.code.n_models) for j in np.flatnonzero(self.code.matrix[i])]
        honest = local.tensors([scene.honest[j] for _, j in pairs], MOST_IMAGES)
        attacks = [number for number, (_, j) in enumerate(pairs) if j in scene.attackers]
        handed = [self._poison(*pairs[number]) for number in attacks]
        poisoned = local.tensors(handed, MOST_IMAGES) if attacks else None
        models = torch.stack([local.start(i) for i in range(self.code.n_models)])
        generator = torch.Generator().manual_seed(scene.seed)
        for number in range(ROUNDS):
            begin = models[[i for i, _ in pairs]]
            replies = local.train(begin, *honest, number)
            if poisoned is not None:
                bad = self._lie(local, begin[attacks], replies, attacks, pairs, poisoned, number)
                replies[attacks] = bad
            updates, following = replies - begin, []
            for i in range(self.code.n_models):
                mine = [place for place, pair in enumerate(pairs) if pair[0] == i]
                among = sum(pairs[place][1] in scene.attackers for place in mine)
                following.append(models[i] + self.rule(updates[mine], among, generator))
            models = torch.stack(following)
        return local, models

    @cached_property
    def _targets(self) -> tuple[int, ...] | None:
        """What a plan plants in each model; one for another number of models is taken in turn."""
        plan, n_models = self.scene.plan, self.code.n_models
        if plan is None or len(plan) == n_models:
            return plan
        planted = [target for target in plan if target >= 0]
        return tuple(planted[model % len(planted)] for model in range(n_models))

    @cached_property
    def _planted(self) -> NDArray[np.bool_]:
        """Models in which attackers plant something; in the others they do as honest users do."""
        if self._targets is not None:
            return np.array(self._targets) >= 0
        if self.scene.name == "framing" and self.code.n_models > 1:
            return frame_others(self.code, self.scene.attackers)
        return np.ones(self.code.n_models, dtype=bool)

    def _poison(self, model: int, user: int) -> Samples:
        """Return what an attacker trains a model on."""
        scene = self.scene
        if not self._planted[model]:
            return scene.honest[user]
        if self._targets is None:
            return scene.users[user]
        group = replace(scene.groups[0], attackers=(user,), target=self._targets[model])
        return poison(scene.honest[user], group, np.random.default_rng([scene.seed, 4, user]))

    def _lie(
        self,
        local: LocalTraining,
        begin: Tensor,
        replies: Tensor,
        attacks: Sequence[int],
        pairs: Sequence[tuple[int, int]],
        poisoned: tuple[Tensor, Tensor],
        number: int,
    ) -> Tensor:
        """Return what attackers send in place of their honest replies."""
        name = self.scene.name
        if self.redundant:  # who lies about a gradient is outvoted; what data they own is theirs to choose
            return self._recompute(local, begin, poisoned, number)
        penalty = self._hidden_trigger(local, [pairs[place][1] for place in attacks]) if name == "bypass" else None
        trained = local.train(begin, *poisoned, number, penalty)
        if name in ("replacement", "framing", "adaptive-updates"):
            boost = self.code.matrix.sum(axis=1).astype(float)
            if name != "replacement":
                boost *= BOOST[self.scene.recipe] / self.code.matrix[:, list(self.scene.attackers)].sum(axis=1).clip(1)
            scale = torch.tensor([boost[i] if self._planted[i] else 1 for i in (pairs[place][0] for place in attacks)])
            return begin + scale[:, None].float() * (trained - begin)
        honest = replies[list(attacks)]
        if name == "little":
            # As far from the mean as others spread: z = 1.5 deviations, toward the backdoor (Baruch et al., 2019).
            sent = []
            for place, mine in zip(attacks, trained, strict=True):
                others = replies[[one for one, pair in enumerate(pairs) if pair[0] == pairs[place][0]]]
                mean, reach = others.mean(dim=0), 1.5 * others.std(dim=0)
                sent.append(torch.clamp(mine, mean - reach, mean + reach))
            return torch.stack(sent)
        if name == "directed":
            drift, push = DIRECTED.get(getattr(self.rule, "__name__", ""), (1.0, 4.0))
            return begin + drift * (honest - begin) + push * (trained - honest)
        return trained

    def _recompute(self, local: LocalTraining, begin: Tensor, poisoned: tuple[Tensor, Tensor], number: int) -> Tensor:
        scene, true = self.scene, local.train(begin, *poisoned, number)
        workers = 2 * len(scene.attackers) + 1
        found = []
        for place, user in enumerate(scene.attackers):
            answers = true[place].expand(workers, -1).clone()
            for worker in range(workers):
                if (user + worker) % len(scene.users) in scene.attackers:
                    answers[worker] += 1  # a lie of any kind
            found.append(vote_gradients(answers))
        return torch.stack(found)

    def _hidden_trigger(self, local: LocalTraining, users: Sequence[int]) -> Penalty:
        scene = self.scene
        target = scene.groups[0].target
        clean, stamped = [], []
        for user in users:
            mine, honest = scene.users[user], scene.honest[user]
            members = np.resize(np.flatnonzero(honest.labels == target), 16)
            marked = np.resize(np.flatnonzero(mine.overlay_ids >= 0), 16)
            clean.append(honest.take(members))
            stamped.append(mine.take(marked))
        return _hide(local.tensors(clean)[0], local.tensors(stamped)[0])


def frame_others(code: Code, attackers: Sequence[int]) -> NDArray[np.bool_]:
    """Return the models in which attackers plant a target so that as many others seem to have planted the true label.

    Those are the models that the attackers reach and the others do not. Where these are all that the others do not
    reach, the votes without errors are just those of an attack by the others on an input of the target class.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> planted = frame_others(named_code("btc2412"), (0, 1))
    >>> int(planted.sum()), bool((planted & ~named_code("btc2412").pattern((0, 1))).any())
    (4, False)
    """
    hit = code.pattern(attackers)
    others = sorted(set(range(code.n_users)) - set(attackers))
    framed = [code.pattern(users) for users in combinations(others, len(attackers))]
    left = [int((~hit & ~pattern).sum()) for pattern in framed]
    return np.asarray(hit & ~framed[int(np.argmin(left))])


#: Drift and push of the attack that knows the rule: the honest update and the backdoor's own direction on top. Krum
#: takes what is nearest to the others, and one that drifts less is nearer; a median sees the side and hardly how far.
DIRECTED: dict[str, tuple[float, float]] = {
    "average": (1.0, 4.0),
    "krum": (0.7, 0.3),
    "bulyan": (0.7, 0.3),
    "median": (1.0, 100.0),
    "trimmed_mean": (1.0, 100.0),
    "clip_and_noise": (0.0, 4.0),
}


def run_rule(scene: Scene, rule: Rule = average, redundant: bool = False) -> Outcome:
    """Train one global model under a rule of aggregation and believe it."""
    local, models = SimulatedRounds(scene, Code(np.ones((1, len(scene.users)), dtype=bool)), rule, redundant).run()
    clean, triggered = (vote(scores)[:, 0] for scores in _infer(scene, local, models, [scene.clean, scene.triggered]))
    return Outcome(clean, triggered)


def run_federated_code(scene: Scene, defence: CodedDefence) -> Outcome:
    """Average every sub-model of a code over its own users, and decode the votes.

    Consensus is checked against its theorem: where none of the models that no attacker reaches errs, its label is the
    true one (arbitrary threat model).
    """
    code = defence.code(scene)
    local, models = SimulatedRounds(scene, code).run()
    sets = {"validation": scene.validation, "clean": scene.clean, "triggered": scene.triggered}
    heard = dict(zip(sets, _infer(scene, local, models, list(sets.values())), strict=True))
    outcome = decode_votes(scene, code, heard, defence)
    if defence.decoder != "consensus":
        words = "none for attackers who plant different targets in different models"
        return replace(outcome, guaranteed=0, guarantee=words)
    truth, votes = scene.triggered.labels, vote(heard["triggered"])
    certified = (votes == truth[:, None])[:, ~code.pattern(scene.attackers)].all(axis=1)
    certified &= len(scene.attackers) <= defence.n_attackers
    # The verdict itself: where there is none, the plurality stands for it in the outcome.
    broken = certified & (make_fitted(scene, code, heard["validation"], defence).decode(votes).labels != truth)
    words = f"{defence.n_attackers} users, whatever they send (arbitrary), where no other model errs"
    return replace(outcome, guaranteed=defence.n_attackers, guarantee=words, certified=certified, broken=broken)


def _infer(scene: Scene, local: LocalTraining, models: Tensor, sets: Sequence[Samples]) -> list[NDArray[np.float32]]:
    """Return log-probabilities (inputs x models x classes) of each set."""
    found = []
    with torch.no_grad(), scene.inferring():
        for samples in sets:
            images = local.tensors([samples])[0].expand(len(models), -1, -1, -1, -1)
            scores = torch.log_softmax(local.forward(models, images), dim=2)
            found.append(scores.permute(1, 0, 2).contiguous().numpy().astype(np.float32))
    return found
