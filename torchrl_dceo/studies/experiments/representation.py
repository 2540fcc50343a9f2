"""Learning a Laplacian representation from random walks on a map, measured against the exact one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from torchrl_dceo.analysis import (
    cosine_similarity,
    exact_eigenfunctions,
    reachable_states,
    state_values,
)
from torchrl_dceo.analysis.spectra import (
    ClusterSimilarity,
    Similarity,
    cluster_similarity,
    span_alignment,
)
from torchrl_dceo.analysis.spectra.exact import (
    PairSpectrum,
    pair_eigenfunctions,
    pair_shares,
)
from torchrl_dceo.envs import GridWorldEnv, TableEnv
from torchrl_dceo.modules import RayleighRitz
from torchrl_dceo.modules.networks import grid_net, mlp_net
from torchrl_dceo.modules.rayleigh_ritz import ritz
from torchrl_dceo.objectives import ALLOLoss, GeneralizedLaplacianLoss, GraphDrawingLoss, OMMLoss
from torchrl_dceo.settings import check_at_least, check_between, check_types
from torchrl_dceo.studies.experiments import Pairs, collect_pairs, find_table, possible_starts

__all__ = [
    "OBJECTIVES",
    "LearnedRepresentation",
    "RepresentationConfig",
    "StateNet",
    "Waves",
    "learn_representation",
]

Objective = Literal["graph_drawing", "generalized", "generalized_log1p", "allo", "omm"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
_IMAGES = 64  # encoded at once


Row = dict[str, float]


@dataclass
class RepresentationConfig:
    """One run: a map, data from it, an objective and how it is optimised."""

    # A name, the path of a text file, or the map itself; maze:7, a random one; or a table of transitions: EscapeRoom,
    # ObstructedKey, RubiksCube3, or a file .npy or .csv of next states [S, A].
    map: str = "GridRoom16"
    starts: Literal["uniform", "one"] = "uniform"  # episodes start anywhere, or where the map says
    observation: Literal["xy", "pixels", "index"] = "xy"
    centre_pixels: bool = True  # without the mean image, and of unit variance
    samples: int = 1_000_000  # pairs of states
    episode_steps: int = 20
    repeat: float = 1.0  # steps that an action is kept, on average: 1 is the uniformly random walk
    # Of pairs several steps apart; 0: one step. Where steps cannot be taken back, pairs are one step apart and, with
    # uniform starts, episodes one step long: there, pairs further apart have other eigenfunctions.
    pair_discount: float = 0.95
    measure: Literal["visits", "distinct"] = (
        "visits"  # state weights: by visits, or uniform over distinct states
    )
    objective: Objective = "allo"
    dimensions: int = 11
    # Where the eigenfunctions are taken from at the end, by Rayleigh-Ritz: the span of f, or that of what its last
    # layer reads, in which that layer then is the best there is.
    ritz: Literal["features", "outputs", "none"] = "features"
    barrier: float | Literal["auto"] = "auto"
    dual_step_size: float = 0.02  # ALLO
    barrier_step_size: float = 0.0  # ALLO with a number for its barrier
    estimator: Literal["pairs", "split"] = "pairs"
    octaves: int = 6  # of sines and cosines that a network on xy reads besides: a wall is no slope
    batch_size: int = (
        4096  # above the number of states it costs no more: each is encoded once (StateNet)
    )
    lr: float = 2e-3  # it falls to 0 along half a cosine
    lr_hold: float = 2 / 3  # share of the steps before it begins to fall
    steps: int = 3000  # at most
    # It falls, and the run ends, sooner where the sum of the learned eigenvalues, which no span has smaller than the
    # right one, fell by less than this share over the last tenth of the steps; 0: never.
    saturation: float = 0.02
    evaluations: int = 40  # rows of the log of a run that takes all its steps
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}"
            )
        check_at_least(self, 1, ("dimensions", "steps", "evaluations"))
        check_at_least(self, 2, ("batch_size",))
        check_between(self, ("saturation",))
        if not 0 <= self.lr_hold < 1:
            raise ValueError(f"lr_hold must lie in [0, 1), got {self.lr_hold}")


class StateNet(nn.Module):
    """A network on state ids, whose input is the observation of each state.

    For a batch larger than the number of states, every state is encoded once: the same values and
    gradients at the cost of S states.

    Args:
        network (nn.Module): from observations to features.
        observations (Tensor): of all states, ``[S, ...]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.studies.experiments.representation import StateNet
        >>> net = StateNet(torch.nn.Linear(2, 3), torch.randn(5, 2))
        >>> net(torch.randint(5, (100,))).shape
        torch.Size([100, 3])
    """

    observations: Tensor

    def __init__(self, network: nn.Module, observations: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("observations", observations)

    def forward(self, state_id: Tensor) -> Tensor:
        """Maps state ids of any shape to features."""
        flat = state_id.reshape(-1)
        if flat.numel() > self.observations.shape[0]:
            features = self._encoded(self.observations).index_select(0, flat)
        else:
            features = self._encoded(self.observations.index_select(0, flat))
        return features.view(*state_id.shape, -1)

    def _encoded(self, observations: Tensor) -> Tensor:
        if observations.dim() < 4:
            return self.network(observations)
        # The activations of a few images fit in the processor's cache: two thirds of the time.
        return torch.cat([self.network(part) for part in observations.split(_IMAGES)])


class Waves(nn.Module):
    """Coordinates with their sines and cosines in octaves: a ReLU network on two numbers is slow to distinguish the
    two sides of a wall (`Tancik et al., 2020 <https://arxiv.org/abs/2006.10739>`_).

    Args:
        octaves (int): the number of octaves, from a period of four, twice the width of a map in [-1, 1].

    Examples:
        >>> import torch
        >>> from torchrl_dceo.studies.experiments.representation import Waves
        >>> Waves(6)(torch.zeros(5, 2)).shape
        torch.Size([5, 26])
    """

    frequencies: Tensor

    def __init__(self, octaves: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.pi / 2 * 2.0 ** torch.arange(octaves))

    def forward(self, position: Tensor) -> Tensor:
        """Maps ``[*, n]`` to ``[*, n + 2 n octaves]``."""
        phase = (position.unsqueeze(-1) * self.frequencies).flatten(-2)
        return torch.cat([position, phase.sin(), phase.cos()], -1)


class LearnedRepresentation(NamedTuple):
    """The result of :func:`learn_representation`.

    Attributes:
        env (TableEnv): the environment; a GridWorldEnv where the config names a map.
        encoder (TensorDictModule): from ``state_id`` to ``representation``.
        learned (Tensor): f in every state, ``[S, d]``, after Rayleigh-Ritz if configured.
        exact (Tensor): the eigenfunctions of the uniformly random walk, ``[S, d]``; where steps cannot be taken back,
            as with keys, those of its pairs of states, see
            :func:`~torchrl_dceo.analysis.spectra.exact.pair_eigenfunctions`.
        eigenvalues (Tensor): theirs, ``[d]``.
        rows (list of dict): the log, one row an evaluation.
        clusters (tuple): which of them are one subspace, their eigenvalues within 10 % of each other, as
            ``(first, last + 1)``.
        data (PairSpectrum, optional): the optimum on the sampled pairs; ``None`` if they start from too few states.
        data_cosines (Tensor): its absolute cosine with each exact function, ``[d]``: where it is low, the data do not
            determine the function; 0 without ``data``.
        as_learned_moments (Tensor): the eigenvalues of E ffᵀ over the pairs before Ritz, ascending, ``[d]``: one near 0
            is a dimension that collapsed.
        ritz (RayleighRitz, optional): with the learned eigenvalues and their standard errors; its rotation is part of
            the encoder.
    """

    env: TableEnv
    encoder: TensorDictModule
    learned: Tensor
    exact: Tensor
    eigenvalues: Tensor
    rows: list[Row]
    clusters: tuple[tuple[int, int], ...]
    data: PairSpectrum | None
    data_cosines: Tensor
    as_learned_moments: Tensor
    ritz: RayleighRitz | None


def learn_representation(
    config: RepresentationConfig,
    *,
    env: TableEnv | None = None,
    observations: Tensor | None = None,
    report: Callable[[Row], None] | None = None,
) -> LearnedRepresentation:
    r"""Learns f from random walks on a map, and compares it with the exact eigenfunctions during learning.

    A row of the log holds ``step``; ``seconds`` of processor time, data and evaluations not counted; for each of the d
    dimensions ``cosine_i``, :math:`|\cos|` with the exact eigenfunction, all states alike; ``cosine``, their mean;
    ``subspace_cosine``, with whole subspaces compared where an eigenvalue repeats; ``span``, the alignment of all d
    dimensions together, whatever their rotation; ``orthogonality_error``, :math:`\|E[f f^\top] - I\|`;
    ``data_cosine``, the mean :math:`|\cos|` with the optimum on the sampled pairs, weighted as they are, and
    ``data_limit``, how close that optimum is to the exact eigenfunctions; with ALLO ``eigenvalue_i``. Of f after
    Rayleigh-Ritz, with A and M from all pairs: ``ritz_cosine`` and ``ritz_cosine_i``; ``ritz_cluster_cosine``, where
    neighbouring eigenvalues within 10 % count as one subspace (see
    :func:`~torchrl_dceo.analysis.spectra.cluster_similarity`), with ``cluster_cosine`` and
    ``data_cluster_limit`` the same of f itself and of the optimum on the data; ``ritz_eigenvalue_i``. With
    ``ritz="features"`` these are of what the last layer reads, which may be as good as a table of the states;
    ``outputs_ritz_cosine``, ``outputs_ritz_cluster_cosine`` and ``outputs_ritz_cluster_worst`` are of the d outputs
    alone, d x d matrices: what the objective has found; ``outputs_ritz_trace``, the sum of the eigenvalues there, which
    no d functions have smaller than the optimum on the pairs.

    Unreachable states are excluded from all comparisons.

    Args:
        config (RepresentationConfig): the run.

    Keyword Args:
        env (TableEnv, optional): an environment whose states can be listed, instead of ``config.map``: the
            :class:`~torchrl_dceo.envs.minigrid.key_and_door.KeyDoorTableEnv` of an object environment, seen in pixels.
        observations (Tensor, optional): what the encoder sees of each state, ``[S, ...]``, in place of what
            ``config.observation`` names.
        report (callable, optional): called with every new row.

    Raises:
        ValueError: if the map is not valid, or has fewer states that can be reached than there are dimensions.

    Examples:
        >>> from torchrl_dceo.studies.experiments.representation import RepresentationConfig, learn_representation
        >>> config = RepresentationConfig("S....\n.....", samples=1000, dimensions=3, steps=5, batch_size=64)
        >>> result = learn_representation(config)
        >>> result.learned.shape
        torch.Size([10, 3])
    """
    if env is None:
        env = find_table(config.map, config.observation)
    reversible = _reversible(env)
    pairs = collect_pairs(
        env,
        config.samples,
        starts=config.starts,
        episode_steps=config.episode_steps if reversible or config.starts == "one" else 1,
        discount=config.pair_discount if reversible else 0.0,
        repeat=config.repeat,
        seed=config.seed,
    )
    measure = _Measure(env, pairs, config)
    if observations is None:
        observations = env.observe(torch.arange(env.num_states))
        if observations.dim() == 4 and config.centre_pixels:
            observations = _standardised(observations, measure.kept.bool())
    torch.manual_seed(config.seed)
    net = StateNet(_network(observations, config), observations)
    encoder = TensorDictModule(net, in_keys=["state_id"], out_keys=["representation"])
    loss = _make_loss(encoder, config)
    rows: list[Row] = []
    schedule = _Schedule(config)
    for step, seconds in _optimise(loss, pairs, config, schedule):
        row = {"step": step, "seconds": seconds, **measure(encoder, loss)}
        rows.append(row)
        schedule.observe(step, row["outputs_ritz_trace"])
        if report is not None:
            report(row)
    moments = measure.matrices(state_values(encoder, env).double())[1]
    solution = None if config.ritz == "none" else _folded(net, measure, pairs, config.ritz)
    learned = state_values(encoder, env).double()
    return LearnedRepresentation(
        env,
        encoder,
        learned,
        measure.exact,
        measure.eigenvalues,
        rows,
        measure.clusters,
        measure.data,
        torch.zeros(config.dimensions) if measure.data is None else measure.limit.cosines,
        torch.linalg.eigvalsh(moments),
        solution,
    )


def _reversible(env: TableEnv) -> bool:
    """Whether the uniformly random walk is reversible."""
    walk = env.transition_matrix()
    return bool(((walk - walk.t()).coalesce().values().abs() < 1e-9).all())


class _Draws:
    """Samples pairs uniformly, or uniformly over their distinct first states."""

    def __init__(self, pairs: Pairs, config: RepresentationConfig) -> None:
        self._pairs, self._size = pairs, config.batch_size
        self._generator = torch.Generator().manual_seed(config.seed + 2)
        self._distinct = config.measure == "distinct"
        if self._distinct:
            self._order = pairs.states.argsort()
            _, self._counts = pairs.states.unique(return_counts=True)  # sorted, as the order is
            self._first = self._counts.cumsum(0) - self._counts

    def __call__(self) -> TensorDict:
        size, generator = self._size, self._generator
        if self._distinct:
            state = torch.randint(self._counts.numel(), (size,), generator=generator)
            share = torch.rand(size, generator=generator, dtype=torch.float64)
            # Below the count for any share below 1, in double precision.
            drawn = self._order[self._first[state] + (share * self._counts[state]).long()]
        else:
            drawn = torch.randint(self._pairs.states.numel(), (size,), generator=generator)
        states, successors = (each[drawn] for each in self._pairs)
        return TensorDict({"state_id": states, "next": {"state_id": successors}}, [size])


def _folded(
    net: StateNet, measure: _Measure, pairs: Pairs, kind: Literal["features", "outputs"]
) -> RayleighRitz:
    """Applies Rayleigh-Ritz to the network's outputs; returns eigenvalues and their standard errors."""
    layer = last_layer(net)
    with torch.no_grad():
        if kind == "features":
            rotation = ritz(*measure.matrices(features(net))).rotation[:, : layer.out_features]
            layer.weight.copy_(rotation[:-1].T)
            if layer.bias is not None:
                layer.bias.copy_(rotation[-1])
        f = net(torch.arange(net.observations.shape[0])).double()
        solution = RayleighRitz(layer.out_features, rate=None)
        solution.set_matrices(*measure.matrices(f))
        # Once more over the pairs themselves: the errors need each of them.
        for states, successors in zip(
            pairs.states.split(2**16), pairs.successors.split(2**16), strict=True
        ):
            solution.update(f[states], f[successors])
    solution.fold_(layer)
    return solution


def last_layer(net: nn.Module) -> nn.Linear:
    """The linear layer whose outputs are the representation."""
    return [module for module in net.modules() if isinstance(module, nn.Linear)][-1]


def features(net: StateNet) -> Tensor:
    """The input of the last layer in every state, and a 1 for its bias, ``[S, width + 1]`` in double precision."""
    read: list[Tensor] = []
    hook = last_layer(net).register_forward_hook(
        lambda module, inputs, output: read.append(inputs[0].detach())
    )
    try:
        net(torch.arange(net.observations.shape[0]))
    finally:
        hook.remove()
    rows = torch.cat(read).double()
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1)


def _standardised(pixels: Tensor, kept: Tensor) -> Tensor:
    """Subtracts the mean image and scales to unit variance, so that walls do not hide the agent's pixel."""
    # A grid has images of unreachable states; a table of objects does not.
    kept = kept if bool((~kept).any()) and not pixels[~kept].any() else torch.ones_like(kept)
    centred = pixels.float() - pixels[kept].float().mean(0)
    return centred / centred[kept].std().clamp(min=1e-6)


def _network(observations: Tensor, config: RepresentationConfig) -> nn.Module:
    shape, d = observations.shape[1:], config.dimensions
    if shape == (2,) and config.octaves:
        waves = Waves(config.octaves)
        return nn.Sequential(waves, *mlp_net(2 + 4 * config.octaves, d))
    if len(shape) == 3:
        return grid_net(shape, d)
    # One-hot states share no features: a table.
    one_hot = len(shape) == 1 and torch.equal(observations, torch.eye(*observations.shape))
    return mlp_net(shape.numel(), d, () if one_hot else (256, 256, 256))


def _make_loss(
    encoder: TensorDictModule, config: RepresentationConfig
) -> ALLOLoss | GraphDrawingLoss | OMMLoss:
    if config.objective == "allo":
        return ALLOLoss(
            encoder,
            barrier=config.barrier,
            dual_step_size=config.dual_step_size,
            barrier_step_size=config.barrier_step_size,
            estimator=config.estimator,
        )
    if config.objective == "omm":
        return OMMLoss(encoder)
    kind = GraphDrawingLoss if config.objective == "graph_drawing" else GeneralizedLaplacianLoss
    norm: Literal["log1p", "squared"] = (
        "log1p" if config.objective == "generalized_log1p" else "squared"
    )
    return kind(encoder, barrier=config.barrier, norm=norm, estimator=config.estimator)


class _Schedule:
    """The step size: held, then falling to 0 along half a cosine, from the given share of the steps on or earlier, once
    the sum of the learned eigenvalues no longer falls."""

    def __init__(self, config: RepresentationConfig) -> None:
        self._lr, self._hold, self._saturation = config.lr, config.lr_hold, config.saturation
        self._window = max(1, config.steps // 10)
        self.last = config.steps
        self._falls_from = config.lr_hold * config.steps
        self._sums: list[tuple[int, float]] = []

    def observe(self, step: int, total: float) -> None:
        """Adds the sum of the eigenvalues in the span of f, from all pairs, at a step."""
        self._sums.append((step, total))
        before = [value for at, value in self._sums if at <= step - self._window]
        since = [value for at, value in self._sums if at > step - self._window]
        if not before or step >= self._falls_from or not self._hold:
            return
        if min(since) > (1 - self._saturation) * min(before):
            self._falls_from = step
            self.last = math.ceil(step / self._hold)

    def __call__(self, step: int) -> float:
        falling = max(0.0, step - self._falls_from) / max(self.last - self._falls_from, 1.0)
        return self._lr * (1 + math.cos(math.pi * min(falling, 1.0))) / 2


def _optimise(
    loss: ALLOLoss | GraphDrawingLoss | OMMLoss,
    pairs: Pairs,
    config: RepresentationConfig,
    schedule: _Schedule,
) -> Iterator[tuple[int, float]]:
    """Yields the step and the processor time at each evaluation."""
    optimizer = torch.optim.Adam(loss.parameters(), lr=config.lr, fused=True)
    draw, period = _Draws(pairs, config), max(1, config.steps // config.evaluations)
    seconds, begin, step = 0.0, time.process_time(), 0
    while step < schedule.last:
        step += 1
        batch = draw()
        optimizer.param_groups[0]["lr"] = schedule(step)
        loss(batch)["loss_laplacian"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if isinstance(loss, ALLOLoss):
            loss.dual_step()
        if step % period == 0 or step == schedule.last:
            seconds += time.process_time() - begin
            yield step, seconds
            begin = time.process_time()


class _Measure:
    """Compares an encoder with the exact eigenfunctions and with the optimum on the data."""

    kind: Literal["features", "outputs", "none"]

    def __init__(self, env: TableEnv, pairs: Pairs, config: RepresentationConfig) -> None:
        d = config.dimensions
        self.env, self.kind = env, config.ritz
        starts = possible_starts(env) if config.starts == "uniform" else env._starts
        self.kept = reachable_states(env.next_state, starts).double()
        if d > int(self.kept.sum()):
            raise ValueError(
                f"dimensions must not exceed the {int(self.kept.sum())} states that can be reached, got {d}"
            )
        # Some beyond d: the cut may go through a subspace.
        more = min(2 * d + 5, int(self.kept.sum()))
        if isinstance(env, GridWorldEnv):
            values, functions = exact_eigenfunctions(env, more, rho=self.kept)
        else:
            # A key that is taken stays taken: no even weight of the states is stationary, and the objective's own
            # spectrum, that of all pairs of one step, is the one to compare with.
            states = self.kept.nonzero().flatten()
            spectrum = pair_eigenfunctions(
                states.repeat_interleave(env.num_actions),
                env.next_state[states].flatten(),
                env.num_states,
                more,
            )
            values, functions = spectrum.eigenvalues, spectrum.eigenfunctions
        self.all_values, self.all_functions = values, functions
        self.eigenvalues, self.exact = values[:d], functions[:, :d]
        self.clusters = self._clustered(self.exact).clusters
        self.form, self.weights = _quadratic_form(pairs, env.num_states, config.measure)
        self.data: PairSpectrum | None = None
        if len(pairs.states.unique()) >= d:
            self.data = pair_eigenfunctions(*pairs, env.num_states, d, measure=config.measure)
            self.limit = cosine_similarity(
                self.data.eigenfunctions, self.exact, self.eigenvalues, rho=self.kept
            )

    def _clustered(self, functions: Tensor) -> ClusterSimilarity:
        return cluster_similarity(functions, self.all_functions, self.all_values, rho=self.kept)

    def matrices(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """A = ½E(f(s) - f(s'))(f(s) - f(s'))ᵀ and M = E f(s) f(s)ᵀ over all pairs, from f in every state."""
        return f.T @ self.form @ f, f.T @ (f * self.weights.unsqueeze(-1))

    @torch.no_grad()
    def _after_ritz(self, span: Tensor, d: int) -> tuple[Tensor, Similarity, ClusterSimilarity]:
        """The first d eigenvalues in a span, ``[S, width]``, and how close their functions are to the exact ones."""
        found, rotation = ritz(*self.matrices(span))
        turned = (span @ rotation)[:, :d]
        similarity = cosine_similarity(turned, self.exact, self.eigenvalues, rho=self.kept)
        return found[:d], similarity, self._clustered(turned)

    def __call__(self, encoder: TensorDictModule, loss: nn.Module) -> Row:
        learned = state_values(encoder, self.env).double()
        similarity = cosine_similarity(learned, self.exact, self.eigenvalues, rho=self.kept)
        share = (self.kept / self.kept.sum()).unsqueeze(-1)
        moments = learned.T @ (learned * share)
        error = torch.linalg.matrix_norm(moments - torch.eye(len(moments), dtype=moments.dtype))
        row = {
            "cosine": float(similarity.mean),
            "subspace_cosine": float(similarity.subspace_mean),
            "span": span_alignment(learned, self.exact, rho=self.kept),
            "orthogonality_error": float(error),
        }
        if self.data is not None:
            values, functions, rho = self.data
            row["data_cosine"] = float(cosine_similarity(learned, functions, values, rho=rho).mean)
            row["data_limit"] = float(self.limit.subspace_mean)
            row["data_cluster_limit"] = float(self._clustered(functions).mean)
        row["cluster_cosine"] = float(self._clustered(learned).mean)
        # Of the outputs in any case: what the objective itself has found, and what Ritz, if not asked for, would give.
        found, after, clustered = self._after_ritz(learned, learned.shape[1])
        # A direction that f lacks has no eigenvalue: the largest there can be keeps the log finite.
        row["outputs_ritz_trace"] = float(found.nan_to_num(posinf=2.0).sum())
        row["outputs_ritz_cosine"] = float(after.mean)
        row["outputs_ritz_cluster_cosine"] = float(clustered.mean)
        row["outputs_ritz_cluster_worst"] = float(clustered.scores.min())
        if self.kind == "features":
            found, after, clustered = self._after_ritz(features(encoder.module), learned.shape[1])
        row["ritz_cosine"] = float(after.mean)
        row["ritz_cluster_cosine"] = float(clustered.mean)
        row["ritz_cluster_worst"] = float(clustered.scores.min())
        found = found.nan_to_num(posinf=2.0)
        row |= {f"ritz_cosine_{i}": float(c) for i, c in enumerate(after.cosines, start=1)}
        row |= {f"ritz_eigenvalue_{i}": float(v) for i, v in enumerate(found, start=1)}
        row |= {f"cosine_{i}": float(c) for i, c in enumerate(similarity.cosines, start=1)}
        if isinstance(loss, ALLOLoss):
            row |= {f"eigenvalue_{i}": float(v) for i, v in enumerate(loss.eigenvalues, start=1)}
        return row


def _quadratic_form(
    pairs: Pairs, num_states: int, measure: Literal["visits", "distinct"]
) -> tuple[Tensor, Tensor]:
    """½E(f(s) - f(s'))² as a matrix over the states, and the share of the pairs that start in each."""
    shares = pair_shares(*pairs, num_states, measure=measure)
    both = (shares.sum(0) + shares.sum(1)) / 2
    return torch.diag(both) - (shares + shares.T) / 2, shares.sum(1)
