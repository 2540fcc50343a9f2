"""The interface between an agent and the training loop: policy, objectives and phases."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import ReplayBuffer
from torchrl.envs import EnvBase, Transform, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase
from torchrl.objectives import LossModule
from torchrl.objectives.utils import TargetNetUpdater

from torchrl_dceo._fast import batches_ahead, is_fast, moved
from torchrl_dceo._fast.passes import DirectLoss, Inputs, Pass, Passes, is_possible
from torchrl_dceo._fast.steps import OptionAdam
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs.prepare import frame_stack_of
from torchrl_dceo.hashing import HASHES, ObservationHash, hash_for
from torchrl_dceo.modules import EigenReward, OptionExplorationModule
from torchrl_dceo.modules.networks import ConvNet
from torchrl_dceo.modules.temporally_extended import TemporallyExtendedExploration
from torchrl_dceo.modules.termination import value_termination
from torchrl_dceo.objectives import OptionDQNLoss
from torchrl_dceo.settings import imported

__all__ = ["Agent", "Objective", "Phase", "ReplaySettings"]

# The key of the second, uniform batch inside a prioritized one.
UNIFORM = "uniform"


class Explorer(Protocol):
    """The part of a policy whose ε is annealed with the collected frames."""

    eps: Tensor

    def step(self, frames: int = 1) -> None:
        """Anneals ε."""


@dataclass(frozen=True)
class Phase:
    """A phase of a run.

    Args:
        name (str): its name in logs.
        frames (int, optional): its length; ``None`` for the rest of the run.
        objectives (sequence of str, optional): the objectives to train; ``None`` for all.
        reward_free (bool): whether to use the environment without reward (``discovery_env``).
    """

    name: str
    frames: int | None = None
    objectives: Sequence[str] | None = None
    reward_free: bool = False


@dataclass(frozen=True)
class ReplaySettings:
    """The settings of an agent's replay buffer; see :func:`~torchrl_dceo.data.make_replay_buffer`.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.agents.agent import ReplaySettings
        >>> settings = ReplaySettings(n_steps=3, prioritized=True, alpha=0.5)
        >>> settings.make(make_env("NineRooms", batch_size=4), capacity=1000, seed=0).num_streams
        4
    """

    n_steps: int = 5
    gamma: float = 0.99
    batch_size: int = 32
    window: bool = False
    pair_steps: int = 1
    state_keys: Sequence[NestedKey] = ()
    step_keys: Sequence[NestedKey] = ("action",)
    prioritized: bool = False
    alpha: float = 0.5  # of the priorities
    beta: float = 0.5  # of their importance weights
    measure: Literal["visits", "distinct"] = (
        "visits"  # uniform over visits or distinct observations
    )
    newest: int | None = None  # the number of newest transitions kept per distinct observation
    # And per action: every action tried at an observation is equally likely.
    by_action: bool = False
    # When observations are the same one, for "distinct": a name, a function or its import path.
    observation_hash: str | ObservationHash = "exact"
    uniform: bool = False  # a second, uniform batch for objectives over states
    uniform_measure: Literal["visits", "distinct"] = "visits"  # the measure of the second batch

    def make(
        self,
        env: EnvBase,
        capacity: int,
        seed: int,
        *,
        storage: Literal["memory", "memmap"] = "memory",
        scratch_dir: str | os.PathLike[str] | None = None,
    ) -> Any:
        """The replay buffer for an environment's transitions.

        If observations are stacks of frames, each frame is stored once. They are recognised by a transform
        ``CatFrames`` or an attribute ``frame_stack`` of the environment.
        """
        key = "pixels" if "pixels" in env.observation_spec.keys() else "observation"
        stacks = frame_stack_of(env, key)
        innermost = env
        while isinstance(innermost, TransformedEnv):
            innermost = innermost.base_env
        if stacks is not None:
            frame_stack = stacks.N
        elif isinstance(innermost, BatchedEnvBase):
            # Wrapped environments are ignored: ours stack no frames; other stacks are stored as they are.
            frame_stack = 1
        else:
            frame_stack = getattr(innermost, "frame_stack", 1)
        keys = [key for key in ("pixels", "observation") if key in env.observation_spec.keys()]
        return make_replay_buffer(
            capacity,
            n_steps=self.n_steps,
            gamma=self.gamma,
            batch_size=self.batch_size,
            num_streams=max(1, env.batch_size.numel()),
            observation_keys=keys,
            state_keys=list(self.state_keys),
            step_keys=list(self.step_keys),
            window=self.window,
            pair_steps=self.pair_steps,
            frame_stack=frame_stack,
            stack_dim=-3 if stacks is None else stacks.dim,
            sampler=self._sampler,
            alpha=self.alpha,
            beta=self.beta,
            uniform_key=UNIFORM if self.uniform else None,
            uniform_measure=self.uniform_measure if self.uniform else "visits",
            observation_hash=self._hash(env, keys) if self.draws_distinct else "exact",
            newest=self.newest if self.draws_distinct else None,
            by_action=self.by_action and self.draws_distinct,
            storage=storage,
            scratch_dir=scratch_dir,
            seed=seed,
        )

    @property
    def _sampler(self) -> Literal["uniform", "prioritized", "distinct"]:
        if self.prioritized:
            return "prioritized"
        return "distinct" if self.measure == "distinct" else "uniform"

    def _hash(self, env: EnvBase, keys: Sequence[str]) -> ObservationHash:
        """The hash for the observations of an environment, of which nearly all have one entry."""
        kind, num_batch = self.observation_hash, len(env.batch_size)
        if isinstance(kind, str) and kind not in HASHES:
            kind = cast("ObservationHash", imported(kind))
        made = []
        for key in keys:
            spec = env.observation_spec[key]
            high = getattr(spec.space, "high", None)
            brightest = None if high is None else float(high.max())
            made.append(
                hash_for(
                    kind,
                    spec.shape[num_batch:],
                    spec.dtype,
                    # Larger bounds are those of the dtype, not of the values.
                    maximum=brightest if brightest is None or brightest <= 2**16 else None,
                    key=key,
                )
            )
        return made[0]

    @property
    def draws_distinct(self) -> bool:
        """Whether any batch is uniform over distinct observations."""
        return self._sampler == "distinct" or (self.uniform and self.uniform_measure == "distinct")


@dataclass(frozen=True)
class Objective:
    """A module that processes each batch, and how the training loop handles it.

    Args:
        module (nn.Module): a :class:`~torchrl.objectives.LossModule`, whose ``loss*`` outputs are summed, or any module
            that writes entries into the batch (an intrinsic reward, a bonus).
        uniform (bool): whether it averages over states and so needs a uniform batch if the replay buffer samples
            by priorities.
        logged (sequence of NestedKey): entries that it writes and whose mean is logged.
        after_update (callable, optional): called after each optimizer step in which it is trained.
        weighted_mean (bool): whether its loss, which divides by the sum of the batch's importance weights w, is
            multiplied by their mean, so that Σwℓ/Σw becomes mean(wℓ); for prioritized replay.

    Examples:
        >>> from torch import nn
        >>> from torchrl_dceo.agents.agent import Objective
        >>> Objective(nn.Identity(), logged=("bonus",)).uniform
        False
    """

    module: nn.Module
    uniform: bool = False
    logged: Sequence[NestedKey] = ()
    after_update: Callable[[], None] | None = None
    weighted_mean: bool = False


def _is_rewarded(data: TensorDictBase) -> bool:
    """Whether a collected batch contains a reward that can be exploited: any but a penalty that ends the episode.

    Avoiding such a penalty takes no exploration, and as long as nothing else was found it is all that can be learned.
    """
    reward = data.get(("next", "reward"))
    ended = data.get(("next", "terminated"), torch.zeros_like(reward, dtype=torch.bool))
    return bool(((reward > 0) | ((reward < 0) & ~ended)).any())


class Agent(nn.Module):
    """A policy, and the objectives that process each batch in order.

    The training loop is independent of the method, because each :class:`Objective` declares
    what it needs. One that averages over states gets a separate batch if the replay buffer is prioritized or uses
    another measure.

    Args:
        policy (TensorDictModuleBase): writes ``action``; explores unless the exploration type is deterministic.
        objectives (mapping of str to Objective or module): in the order of execution; a plain
            module is an objective without further settings.

    Keyword Args:
        explorer (Explorer): the part of the policy whose ε is annealed.
        optimizer (torch.optim.Optimizer): over the parameters of the objectives.
        targets (sequence of TargetNetUpdater): called after each update.
        replay (ReplaySettings): how transitions are sampled.
        phases (sequence of Phase): the phases of a run. Default: one phase with all objectives.
        transforms (sequence of Transform): transforms that the policy needs, e.g. a primer for its state.
        max_grad_norm (float, optional): clips the norm of the whole gradient.
        observers (sequence of callables): called with each collected batch.

    Attributes:
        made_from (dict or None): name and settings, if :func:`~torchrl_dceo.agents.make_agent` built it.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> agent = make_agent("dceo", make_env("NineRooms", room_size=3))
        >>> list(agent.objectives)
        ['centring', 'laplacian', 'reward', 'option', 'main']
    """

    def __init__(
        self,
        policy: TensorDictModuleBase,
        objectives: Mapping[str, Objective | nn.Module],
        *,
        explorer: Explorer,
        optimizer: torch.optim.Optimizer,
        targets: Sequence[TargetNetUpdater] = (),
        replay: ReplaySettings | None = None,
        phases: Sequence[Phase] = (Phase("online"),),
        transforms: Sequence[Transform] = (),
        max_grad_norm: float | None = None,
        observers: Sequence[Callable[[TensorDictBase], None]] = (),
    ) -> None:
        super().__init__()
        self.policy = policy
        self._declared = {
            name: given if isinstance(given, Objective) else Objective(given)
            for name, given in objectives.items()
        }
        self.objectives = nn.ModuleDict({name: o.module for name, o in self._declared.items()})
        self.explorer = explorer
        self.optimizer = optimizer
        self.targets = list(targets)
        replay = ReplaySettings() if replay is None else replay
        averaging = any(objective.uniform for objective in self._declared.values())
        other = replay.prioritized or replay.measure != replay.uniform_measure
        self.replay = replace(replay, uniform=other and averaging)
        self.phases = tuple(phases)
        self.transforms = tuple(transforms)
        self.max_grad_norm = max_grad_norm
        self.observers = tuple(observers)
        # The rows trained by the last update, by the id of each parameter of which only some options were trained.
        self._row_gradients: dict[int, list[Tensor]] = {}
        shifted = any(
            isinstance(m, EigenReward) and m.mode == "potential" for m in self.objectives.values()
        )
        if (
            shifted
            and isinstance(explorer, OptionExplorationModule)
            and explorer.termination is value_termination
        ):
            raise ValueError(
                "value_termination compares values with 0, but under reward mode 'potential' they are Q + f(s): pass "
                "functools.partial(value_termination, reward=…) with the agent's EigenReward"
            )
        # Name and settings of an agent built by make_agent; stored with a run, so that the agent can be rebuilt.
        self.made_from: dict[str, Any] | None = None
        for phase in self.phases:
            unknown = set(phase.objectives or ()) - set(self.objectives)
            if unknown:
                raise ValueError(
                    f"phase {phase.name!r} names objectives {sorted(unknown)} that the agent lacks; it has "
                    f"{sorted(self.objectives)}"
                )

    def collected(self, data: TensorDictBase) -> None:
        """Anneals ε by the frames of a collected batch, possibly from the first reward on, and calls the observers."""
        explorer, frames = self.explorer, data.numel()
        if isinstance(explorer, TemporallyExtendedExploration) and explorer.waits_for_reward:
            explorer.step(frames, rewarded=_is_rewarded(data))
        else:
            explorer.step(frames)
        for observe in self.observers:
            observe(data)

    def learn(self, replay: ReplayBuffer, phase: Phase) -> dict[str, Tensor]:
        """Makes one update from a batch of the replay buffer; updates priorities if the buffer has them."""
        return next(self.updates(replay, phase, 1))

    def updates(
        self, replay: ReplayBuffer, phase: Phase, count: int
    ) -> Generator[dict[str, Tensor]]:
        """Makes ``count`` updates from the replay buffer and yields their outputs.

        With an accelerator, a thread samples and moves the next batch meanwhile, unless updates change priorities.

        Args:
            replay (ReplayBuffer): the buffer; nothing may be written to it between these updates.
            phase (Phase): the current phase.
            count (int): the number of updates.
        """
        device = next(self.parameters()).device
        key = getattr(replay, "priority_key", None)
        batches: Iterator[TensorDictBase]
        free = not self.replay.prioritized and is_fast()
        if free and count > 1 and device.type == "cuda":
            batches = batches_ahead(replay.sample, count, device)
        else:
            batches = (moved(replay.sample(), device) for _ in range(count))
        for batch in batches:
            outputs = self.update(batch, phase)
            # There are none while the main learner is not trained.
            if key in batch.keys():
                replay.update_tensordict_priority(batch)
            yield outputs

    def update(self, batch: TensorDictBase, phase: Phase) -> dict[str, Tensor]:
        """Makes one update from a batch; returns all outputs of the losses, detached, and the logged entries."""
        learning = [
            (name, objective)
            for name, objective in self._declared.items()
            if phase.objectives is None or name in phase.objectives
        ]
        outputs = self._learn_directly(batch, learning)
        if outputs is None:
            outputs = self._learn(batch, learning, phase)
        if self.max_grad_norm is not None:
            outputs["grad_norm"] = nn.utils.clip_grad_norm_(self._trained(), self.max_grad_norm)
        if isinstance(self.optimizer, OptionAdam):
            modules = (objective.module for _, objective in learning)
            losses = (loss for loss in modules if isinstance(loss, OptionDQNLoss))
            trained = [rows for loss in losses for rows in loss.trained_rows()]
            gradients, self._row_gradients = self._row_gradients, {}
            self.optimizer.step(
                trained=[
                    rows._replace(gradients=gradients.get(id(rows.parameter))) for rows in trained
                ]
            )
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        for target in self.targets:
            # A frozen loss keeps its target, because options may act with it.
            if any(target.loss_module is objective.module for _, objective in learning):
                target.step()
        for _, objective in learning:
            if objective.after_update is not None:
                objective.after_update()
        return outputs

    def _own(self, batch: TensorDictBase, objective: Objective) -> TensorDictBase:
        """The part of a batch that an objective reads."""
        return batch.get(UNIFORM, batch) if self.replay.uniform and objective.uniform else batch

    def _factor(self, own: TensorDictBase, objective: Objective) -> Tensor | None:
        """The factor of its loss."""
        if objective.weighted_mean and self.replay.prioritized:
            return own.get("priority_weight").mean()
        return None

    def _learn(
        self, batch: TensorDictBase, learning: Sequence[tuple[str, Objective]], phase: Phase
    ) -> dict[str, Tensor]:
        """Runs the objectives and computes the gradients of their losses."""
        total: Tensor | None = None
        outputs: dict[str, Tensor] = {}
        for name, objective in learning:
            own = self._own(batch, objective)
            out, factor = objective.module(own), self._factor(own, objective)
            if isinstance(objective.module, LossModule):
                for key, value in out.items():
                    if key.startswith("loss"):
                        if factor is not None:
                            value = value * factor
                        total = value if total is None else total + value
                        key = f"loss_{name}"
                    outputs[key] = value.detach()
            for key in objective.logged:
                outputs[str(key)] = out.get(key).mean()
        if total is None:
            raise ValueError(f"phase {phase.name!r} trains no loss")
        total.backward()
        return outputs

    def _learn_directly(
        self, batch: TensorDictBase, learning: Sequence[tuple[str, Objective]]
    ) -> dict[str, Tensor] | None:
        """The same without autograd, for losses with closed-form gradients; returns ``None`` for others."""
        # The gradient norm includes all rows.
        partial = isinstance(self.optimizer, OptionAdam) and self.max_grad_norm is not None
        if partial or not is_possible():
            return None
        batches = [self._own(batch, objective) for _, objective in learning]
        inputs: dict[int, Inputs] = {}
        losses: dict[int, DirectLoss] = {}
        for i, (_, objective) in enumerate(learning):
            module = objective.module
            if isinstance(module, LossModule):
                found = module.direct_inputs(batches[i]) if isinstance(module, DirectLoss) else None
                if found is None:
                    return None
                inputs[i], losses[i] = found, cast("DirectLoss", module)
        if not inputs:
            return None
        first = min(inputs)
        with torch.no_grad():
            # They may change the networks' input: the mean image is set at the first update.
            early = [learning[i][1].module(batches[i]) for i in range(first)]
        passes: list[Pass] = []
        parts: dict[int, slice] = {}  # those of a loss
        for i, given in inputs.items():
            begin = len(passes)
            passes += losses[i].direct_passes(given)
            parts[i] = slice(begin, len(passes))
        run = Passes(passes)
        outputs: dict[str, Tensor] = {}
        gradients: list[list[Tensor]] = []
        with torch.no_grad():
            for i, (name, objective) in enumerate(learning):
                own, module = batches[i], objective.module
                out: Mapping[str, Tensor] | TensorDictBase
                if i in parts:
                    factor = self._factor(own, objective)
                    own_gradients, named = losses[i].direct_gradients(
                        run.outputs[parts[i]], own, factor
                    )
                    gradients += own_gradients
                    for key, value in named.items():
                        if key.startswith("loss"):
                            key = f"loss_{name}"
                            value = value if factor is None else value * factor
                        outputs[key] = value
                    out = named
                else:
                    out = early[i] if i < first else module(own)
                for key in objective.logged:
                    outputs[str(key)] = out[key].mean()
            self._row_gradients = run.backward(gradients)
        return outputs

    def compile_networks(self, **settings: Any) -> None:
        """Compiles the convolutional networks, which take most of the time of an update on images.

        Args:
            settings: arguments of :func:`torch.compile`, e.g. ``mode="reduce-overhead"`` for CUDA graphs.
        """
        # All of them share one piece of code, compiled for each network, with and without gradient, and for each size
        # of batch: more variants than the eight after which torch gives up.
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, 64)
        for module in self.modules():
            if isinstance(module, ConvNet):
                module.compile(**settings)

    def _trained(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def learning_state(self) -> dict[str, Any]:
        """The state that is not in ``state_dict``: the optimizer and the target updaters' counters, as plain nested
        dictionaries."""
        optimizer = self.optimizer.state_dict()
        return {
            "moments": {str(index): dict(entry) for index, entry in optimizer["state"].items()},
            "targets": [target.state_dict() for target in self.targets],
        }

    def load_learning_state(self, state: dict[str, Any]) -> None:
        """Restores a state of :meth:`learning_state`."""
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {int(index): entry for index, entry in state["moments"].items()}
        self.optimizer.load_state_dict(optimizer)
        for target, saved in zip(self.targets, state["targets"], strict=True):
            target.load_state_dict(saved)
