"""Learning a Laplacian representation from random walks on a map, measured against the exact one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
from torchrl_dceo.analysis.spectra.exact import PairSpectrum, pair_eigenfunctions, span_alignment
from torchrl_dceo.envs import GridWorldEnv, TableEnv
from torchrl_dceo.envs.grid.maps import find_map
from torchrl_dceo.modules.networks import grid_net, mlp_net
from torchrl_dceo.objectives import ALLOLoss, GeneralizedLaplacianLoss, GraphDrawingLoss
from torchrl_dceo.settings import check_types
from torchrl_dceo.studies.experiments.transition_pairs import Pairs, collect_pairs

__all__ = [
    "OBJECTIVES",
    "LearnedRepresentation",
    "RepresentationConfig",
    "StateNet",
    "learn_representation",
]

Objective = Literal["graph_drawing", "generalized", "generalized_log1p", "allo"]
OBJECTIVES: tuple[Objective, ...] = ("graph_drawing", "generalized", "generalized_log1p", "allo")
_EVALUATIONS = 40  # rows of a run's log


class _Tuned(NamedTuple):
    barrier: float
    lr: float
    steps: int


# Tuned on GridRoom16 and GridMaze19, see results/representation. The barrier is about the largest eigenvalue
# that is wanted (of the pairs, not of single steps): more of it drowns the differences between eigenvalues in noise.
_TUNED = {
    "graph_drawing": _Tuned(barrier=0.2, lr=2e-3, steps=1500),
    "generalized": _Tuned(barrier=0.075, lr=2e-3, steps=8000),
    "generalized_log1p": _Tuned(barrier=0.3, lr=2e-3, steps=8000),
    "allo": _Tuned(barrier=0.12, lr=3e-3, steps=3500),
}
Row = dict[str, float]


@dataclass
class RepresentationConfig:
    """One run: a map, data from it, an objective and how it is optimised."""

    map: str = "GridRoom16"  # a name, or the path of a text file, or the map itself
    starts: Literal["uniform", "one"] = "uniform"  # episodes start anywhere, or where the map says
    observation: Literal["xy", "pixels", "index"] = "xy"
    centre_pixels: bool = True  # without the mean image, and of unit variance
    samples: int = 1_000_000  # pairs of states
    episode_steps: int = 10
    repeat: float = 1.0  # steps that an action is kept, on average: 1 is the uniformly random walk
    pair_discount: float = 0.9  # of multi-step pairs; 0: one step
    objective: Objective = "allo"
    dimensions: int = 11
    barrier: float | None = None  # None: tuned for the objective
    # Where the barrier starts, falling geometrically over the first third of the steps; None: where it ends. What a
    # fresh network makes of pixels is rough: beneath a small barrier all but the constant shrink to 0.
    barrier_start: float | None = None
    dual_step_size: float = 1e-3  # ALLO
    barrier_step_size: float = 0.0  # ALLO
    estimator: Literal["pairs", "split"] = "pairs"
    batch_size: int = 4096
    lr: float | None = None  # None: tuned; it falls to 0 along half a cosine
    lr_hold: float = 0.5  # share of the steps before it begins to fall
    steps: int | None = None  # None: tuned for the objective
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}"
            )
        for name, value in (("dimensions", self.dimensions), ("steps", self.num_steps)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.lr_hold < 1:
            raise ValueError(f"lr_hold must lie in [0, 1), got {self.lr_hold}")
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2, got {self.batch_size}")

    @property
    def weight(self) -> float:
        """The barrier, given or tuned."""
        return _TUNED[self.objective].barrier if self.barrier is None else self.barrier

    @property
    def step_size(self) -> float:
        """The step size before it falls, given or tuned."""
        return _TUNED[self.objective].lr if self.lr is None else self.lr

    @property
    def num_steps(self) -> int:
        """The steps, given or tuned."""
        return _TUNED[self.objective].steps if self.steps is None else self.steps


class StateNet(nn.Module):
    """A network on state ids, which sees of each state what the world shows of it.

    A batch that is larger than the world encodes every state once and looks the rest up: the same values and gradients
    at the price of S states, however large the batch.

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
            features = self.network(self.observations).index_select(0, flat)
        else:
            features = self.network(self.observations.index_select(0, flat))
        return features.view(*state_id.shape, -1)


class LearnedRepresentation(NamedTuple):
    """What :func:`learn_representation` returns.

    Attributes:
        world (TableEnv): the world; a GridWorldEnv where the config names a map.
        encoder (TensorDictModule): from ``state_id`` to ``representation``.
        learned (Tensor): f in every state, ``[S, d]``.
        exact (Tensor): the eigenfunctions of the uniformly random walk, ``[S, d]``; where steps cannot be taken back,
            as with keys, those of its pairs of states, see
            :func:`~torchrl_dceo.analysis.spectra.exact.pair_eigenfunctions`.
        eigenvalues (Tensor): theirs, ``[d]``.
        rows (list of dict): the log, one row an evaluation.
    """

    world: TableEnv
    encoder: TensorDictModule
    learned: Tensor
    exact: Tensor
    eigenvalues: Tensor
    rows: list[Row]


def learn_representation(
    config: RepresentationConfig,
    *,
    world: TableEnv | None = None,
    observations: Tensor | None = None,
    report: Callable[[Row], None] | None = None,
) -> LearnedRepresentation:
    r"""Learns f from random walks on a map and compares it with the exact eigenfunctions as it goes.

    A row of the log holds ``step``; ``seconds`` of processor time, data and evaluations not counted; for each of the d
    dimensions ``cosine_i``, :math:`|\cos|` with the exact eigenfunction, all states alike; ``cosine``, their mean;
    ``subspace_cosine``, with whole subspaces compared where an eigenvalue repeats; ``span``, the alignment of all d
    dimensions together, whatever their rotation; ``orthogonality_error``, :math:`\|E[f f^\top] - I\|`;
    ``data_cosine``, the mean :math:`|\cos|` with the optimum on the sampled pairs, weighted as they are, and
    ``data_limit``, how close that optimum is to the exact eigenfunctions; with ALLO ``eigenvalue_i``.

    States that no episode can reach are left out of all comparisons.

    Args:
        config (RepresentationConfig): the run.

    Keyword Args:
        world (TableEnv, optional): a world whose states can be listed, in place of ``config.map``: the
            :class:`~torchrl_dceo.envs.minigrid.state_table.KeyDoorTableEnv` of an object world, seen in pixels.
        observations (Tensor, optional): what the encoder sees of each state, ``[S, ...]``, in place of what
            ``config.observation`` names.
        report (callable, optional): called with every row as it is made.

    Raises:
        ValueError: if the map is not valid, or has fewer states that can be reached than there are dimensions.

    Examples:
        >>> from torchrl_dceo.studies.experiments.representation import RepresentationConfig, learn_representation
        >>> config = RepresentationConfig("S....\n.....", samples=1000, dimensions=3, steps=5, batch_size=64)
        >>> result = learn_representation(config)
        >>> result.learned.shape, result.rows[-1]["step"]
        (torch.Size([10, 3]), 5)
    """
    if world is None:
        world = GridWorldEnv(find_map(config.map), observation=config.observation, coverage=True)
    pairs = collect_pairs(
        world,
        config.samples,
        starts=config.starts,
        episode_steps=config.episode_steps,
        discount=config.pair_discount,
        repeat=config.repeat,
        seed=config.seed,
    )
    measure = _Measure(world, pairs, config)
    if observations is None:
        observations = world.observe(torch.arange(world.num_states))
        if config.observation == "pixels" and config.centre_pixels:
            observations = _standardised(observations, measure.kept.bool())
    torch.manual_seed(config.seed)
    net = StateNet(_network(observations, config), observations)
    encoder = TensorDictModule(net, in_keys=["state_id"], out_keys=["representation"])
    loss = _make_loss(encoder, config)
    rows: list[Row] = []
    for step, seconds in _optimise(loss, pairs, config):
        row = {"step": step, "seconds": seconds, **measure(encoder, loss)}
        rows.append(row)
        if report is not None:
            report(row)
    learned = state_values(encoder, world).double()
    return LearnedRepresentation(world, encoder, learned, measure.exact, measure.eigenvalues, rows)


def _standardised(pixels: Tensor, kept: Tensor) -> Tensor:
    """Without the mean image, and of unit variance: walls are always the same, and drown the agent's one pixel."""
    # A grid shows what its unreachable states would look like; a table of objects has nothing there.
    kept = kept if bool((~kept).any()) and not pixels[~kept].any() else torch.ones_like(kept)
    centred = pixels.float() - pixels[kept].float().mean(0)
    return centred / centred[kept].std().clamp(min=1e-6)


def _network(observations: Tensor, config: RepresentationConfig) -> nn.Module:
    shape, d = observations.shape[1:], config.dimensions
    if len(shape) == 3:
        return grid_net(shape, d)
    # One-hot states tell nothing of each other: a table.
    return mlp_net(shape.numel(), d, () if config.observation == "index" else (256, 256, 256))


def _make_loss(
    encoder: TensorDictModule, config: RepresentationConfig
) -> ALLOLoss | GraphDrawingLoss:
    if config.objective == "allo":
        return ALLOLoss(
            encoder,
            barrier=config.weight,
            dual_step_size=config.dual_step_size,
            barrier_step_size=config.barrier_step_size,
            estimator=config.estimator,
        )
    kind = GraphDrawingLoss if config.objective == "graph_drawing" else GeneralizedLaplacianLoss
    norm: Literal["log1p", "squared"] = (
        "log1p" if config.objective == "generalized_log1p" else "squared"
    )
    return kind(encoder, barrier=config.weight, norm=norm, estimator=config.estimator)


def _optimise(
    loss: ALLOLoss | GraphDrawingLoss, pairs: Pairs, config: RepresentationConfig
) -> Iterator[tuple[int, float]]:
    """Yields the step and the processor time so far whenever it is time to measure."""
    optimizer = torch.optim.Adam(loss.parameters(), lr=config.step_size, fused=True)
    generator = torch.Generator().manual_seed(config.seed + 2)
    period = max(1, config.num_steps // _EVALUATIONS)
    total, size = pairs.states.numel(), config.batch_size
    seconds, begin = 0.0, time.process_time()
    for step in range(1, config.num_steps + 1):
        drawn = torch.randint(total, (size,), generator=generator)
        batch = TensorDict(
            {"state_id": pairs.states[drawn], "next": {"state_id": pairs.successors[drawn]}}, [size]
        )
        optimizer.param_groups[0]["lr"] = _annealed(config, step / config.num_steps)
        if config.barrier_start is not None:
            fallen = min(1.0, 3 * step / config.num_steps)
            loss.barrier = config.barrier_start ** (1 - fallen) * config.weight**fallen
        loss(batch)["loss_laplacian"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if isinstance(loss, ALLOLoss):
            loss.dual_step()
        if step % period == 0 or step == config.num_steps:
            seconds += time.process_time() - begin
            yield step, seconds
            begin = time.process_time()


def _annealed(config: RepresentationConfig, progress: float) -> float:
    falling = max(0.0, progress - config.lr_hold) / (1 - config.lr_hold)
    return config.step_size * (1 + math.cos(math.pi * falling)) / 2


class _Measure:
    """Compares an encoder with the exact eigenfunctions and with the best that the data allow."""

    def __init__(self, world: TableEnv, pairs: Pairs, config: RepresentationConfig) -> None:
        d = config.dimensions
        self.world = world
        # With uniform starts every open cell is a start; of an object world, every state that occurs.
        everywhere = config.starts == "uniform" and isinstance(world, GridWorldEnv)
        starts = torch.arange(world.num_states) if everywhere else world._starts
        self.kept = reachable_states(world.next_state, starts).double()
        if d > int(self.kept.sum()):
            raise ValueError(
                f"dimensions must not exceed the {int(self.kept.sum())} states that can be reached, got {d}"
            )
        if isinstance(world, GridWorldEnv):
            self.eigenvalues, self.exact = exact_eigenfunctions(world, d, rho=self.kept)
        else:
            # A key that is taken stays taken: no even weight of the states is stationary, and the objective's own
            # spectrum, that of all pairs of one step, is the one to compare with.
            states = self.kept.nonzero().flatten()
            spectrum = pair_eigenfunctions(
                states.repeat_interleave(world.num_actions),
                world.next_state[states].flatten(),
                world.num_states,
                d,
            )
            self.eigenvalues, self.exact = spectrum.eigenvalues, spectrum.eigenfunctions
        self.data: PairSpectrum | None = None
        if len(pairs.states.unique()) >= d:
            self.data = pair_eigenfunctions(*pairs, world.num_states, d)
            self.limit = cosine_similarity(
                self.data.eigenfunctions, self.exact, self.eigenvalues, rho=self.kept
            )

    def __call__(self, encoder: TensorDictModule, loss: nn.Module) -> Row:
        learned = state_values(encoder, self.world).double()
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
        row |= {f"cosine_{i}": float(c) for i, c in enumerate(similarity.cosines, start=1)}
        if isinstance(loss, ALLOLoss):
            row |= {f"eigenvalue_{i}": float(v) for i, v in enumerate(loss.eigenvalues, start=1)}
        return row
