"""Environments given by a table of transitions, with actions that slip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import EnvBase

from torchrl_dceo._fast.rollout import CompleteSteps

__all__ = [
    "Slip",
    "TableEnv",
]

_BLOCK_STEPS, _BLOCK_NUMBERS = 256, 2**16


class Slip:
    """Overwrites actions with probability ``probability``; random numbers are drawn in blocks.

    A step of a small batch is only a few tensor operations, and drawing one number per environment would be a third of
    the time. So the numbers of many steps are drawn at once, and a step is one ``torch.where``.

    The random action may be the chosen one: with A actions the action changes with probability
    ``probability * (A - 1) / A``.

    Args:
        probability (float): in [0, 1].
        num_actions (int): the number of actions.

    Keyword Args:
        batch_size (Sequence[int]): shape of the actions.
        seed (int): seed of the random numbers.
        device (torch.device): device of the actions.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs.table_env import Slip
        >>> slip = Slip(0.15, 4, batch_size=[10_000], seed=0)
        >>> action = torch.zeros(10_000, dtype=torch.int64)
        >>> round((slip(action) != action).float().mean().item(), 2)  # 0.15 * 3 / 4
        0.11
    """

    def __init__(
        self,
        probability: float,
        num_actions: int,
        *,
        batch_size: Sequence[int] = (),
        seed: int,
        device: torch.device | str | None = None,
    ) -> None:
        self.probability, self.num_actions = probability, num_actions
        self._device = torch.device("cpu") if device is None else torch.device(device)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        steps = _BLOCK_NUMBERS // max(1, torch.Size(batch_size).numel())
        self._shape = (max(1, min(_BLOCK_STEPS, steps)), *batch_size)
        self._used: int
        self._keep: tuple[Tensor, ...]
        self._random: tuple[Tensor, ...]
        self._next_block()

    def __call__(self, action: Tensor) -> Tensor:
        """Returns the actions after slipping (a new tensor)."""
        if self._used == self._shape[0]:
            self._next_block()
        step, self._used = self._used, self._used + 1
        return torch.where(self._keep[step], action, self._random[step])

    def _uniform(self) -> Tensor:
        return torch.rand(
            self._shape, generator=self._generator, dtype=torch.float64, device=self._device
        )

    def _next_block(self) -> None:
        self._block_state = self._generator.get_state()
        self._used = 0
        u = self._uniform()
        keep = u >= self.probability
        # Given u < p, u / p is uniform again: one number serves both choices.
        random = (u * (self.num_actions / max(self.probability, 1e-12))).long()
        random.clamp_(max=self.num_actions - 1)
        self._keep, self._random = keep.unbind(0), random.unbind(0)

    def get_state(self) -> dict[str, Tensor]:
        """Returns the state of the random numbers, as plain tensors."""
        return {"generator": self._block_state.clone(), "used": torch.tensor(self._used)}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restores a state of :meth:`get_state`, by drawing its block again."""
        self._generator.set_state(state["generator"].cpu())
        self._next_block()
        self._used = int(state["used"])


_NOT_CARRIED = {"next", "reward", "done", "terminated", "truncated", "_reset"}


class TableEnv(CompleteSteps, EnvBase):
    """A batched environment of ``S`` states and ``A`` actions, driven by a next-state table.

    A step looks up ``next_state[state, action]`` for the whole batch at once. With probability
    ``slip`` the action is overwritten by a uniformly random one (which may be the chosen one).
    Reaching a goal gives +1 and terminates, every other step gives 0; after ``max_steps`` steps
    the episode is truncated (a goal reached by the very last step sets both flags, as gymnasium's
    time limit does). Without goals (``goals=None``) no reward is given and nothing terminates: the
    coverage mode.

    A subclass builds its tables, passes them to this constructor and defines the observation with
    :meth:`observe`. Environments that change over time override :meth:`_move`,
    :meth:`_reached_goal` or :meth:`_draw_start`; ``self._env_steps`` counts the steps of each
    environment over all its episodes.

    All random numbers come from the environment's own generators: the same seed gives the
    same trajectory, and :meth:`get_env_state` / :meth:`set_env_state` save and restore the
    environment in mid-episode, generator included.

    Args:
        next_state (Tensor): integer table of shape ``[S, A]``.
        starts (Sequence[int]): start states; one is drawn uniformly at each reset.
        goals (Sequence[int], optional): states that give +1 and end the episode. ``None``:
            coverage mode.
        observation_key (str): the entry that :meth:`observe` fills.
        observation_spec (TensorSpec): its spec, without batch dimensions.

    Keyword Args:
        batch_size (Sequence[int]): any number of batch dimensions. Default: ``()``.
        slip (float): probability that the action is overwritten. Default: 0.15.
        max_steps (int, optional): step limit; ``None`` for none. Default: 100.
        seed (int, optional): by default drawn from torch's global generator.
        device (torch.device or str): Default: ``"cpu"``.

    Entries (``B`` the batch size): the observation, ``state_id`` int64 ``[*B]``, ``action`` int64
    ``[*B]``, ``reward`` float32 ``[*B, 1]``, ``done``, ``terminated`` and ``truncated`` bool
    ``[*B, 1]``.

    Examples:
        >>> import torch
        >>> from torchrl.data import Unbounded
        >>> from torchrl_dceo.envs.table_env import TableEnv
        >>> class Corridor(TableEnv):  # four cells in a row; the actions are left and right
        ...     def __init__(self, **kwargs):
        ...         table = torch.tensor([[0, 1], [0, 2], [1, 3], [2, 3]])
        ...         super().__init__(table, [0], [3], "observation", Unbounded((1,)), **kwargs)
        ...     def observe(self, state_ids):
        ...         return state_ids.unsqueeze(-1).float()
        >>> env = Corridor(batch_size=[2], slip=0.0)
        >>> rollout = env.rollout(5, lambda td: td.set("action", torch.ones(2, dtype=torch.int64)))
        >>> rollout["next", "state_id"].tolist()
        [[1, 2, 3], [1, 2, 3]]
        >>> rollout["next", "reward"][0].flatten().tolist()
        [0.0, 0.0, 1.0]
    """

    def __init__(
        self,
        next_state: Tensor,
        starts: Sequence[int],
        goals: Sequence[int] | None,
        observation_key: str,
        observation_spec: TensorSpec,
        *,
        batch_size: Sequence[int] = (),
        slip: float = 0.15,
        max_steps: int | None = 100,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0.0 <= slip <= 1.0:
            raise ValueError(f"slip must lie in [0, 1], got {slip}")
        if max_steps is not None and max_steps < 1:
            raise ValueError(
                f"max_steps must be at least 1 (or None for no limit), got {max_steps}"
            )
        if not len(starts):
            raise ValueError("starts must name at least one state, got none")
        super().__init__(device=torch.device(device), batch_size=torch.Size(batch_size))
        self.num_states, self.num_actions = next_state.shape
        self.slip = float(slip)
        self.max_steps = max_steps
        self._observation_key = observation_key
        self._generator = torch.Generator(device=device)
        self._set_tables(next_state, starts, goals)
        self._make_specs(observation_spec)
        zeros = torch.zeros(self.batch_size, dtype=torch.int64, device=device)
        self._state = zeros  # the state of each environment
        self._elapsed = zeros  # steps of its current episode
        self._env_steps = zeros  # steps over all its episodes
        self._set_seed(int(torch.randint(2**31, ())) if seed is None else seed)

    def _set_tables(
        self, next_state: Tensor, starts: Sequence[int], goals: Sequence[int] | None
    ) -> None:
        is_goal = torch.zeros(self.num_states, dtype=torch.bool)
        if goals is not None:
            is_goal[torch.as_tensor(goals, dtype=torch.int64)] = True
        # Flat, so that a step is one gather. Rebuilt by the constructor, hence not part of a
        # state_dict.
        moves = next_state.to(self.device, torch.int64).flatten()
        self.register_buffer("_moves", moves, persistent=False)
        self.register_buffer("_is_goal", is_goal.to(self.device), persistent=False)
        start_ids = torch.as_tensor(starts, dtype=torch.int64, device=self.device)
        self.register_buffer("_starts", start_ids, persistent=False)

    def _make_specs(self, observation_spec: TensorSpec) -> None:
        shape, device = self.batch_size, self.device
        flag = Categorical(2, shape=(*shape, 1), dtype=torch.bool, device=device)
        self.observation_spec = Composite(
            {
                self._observation_key: observation_spec.to(device).expand(
                    *shape, *observation_spec.shape
                ),
                "state_id": Categorical(
                    self.num_states, shape=shape, dtype=torch.int64, device=device
                ),
            },
            shape=shape,
            device=device,
        )
        self.action_spec = Categorical(
            self.num_actions, shape=shape, dtype=torch.int64, device=device
        )
        self.reward_spec = Unbounded(shape=(*shape, 1), dtype=torch.float32, device=device)
        self.full_done_spec = Composite(
            done=flag,
            terminated=flag.clone(),
            truncated=flag.clone(),
            shape=shape,
            device=device,
        )

    # Methods for subclasses

    def observe(self, state_ids: Tensor) -> Tensor:
        """Returns the observation of each state: ``[*state_ids.shape, *observation.shape]``."""
        raise NotImplementedError

    def render(self, state_ids: Tensor | None = None) -> Tensor:
        """Returns an RGB image for people, ``uint8 [*B, H, W, 3]``.

        Of the current states, or of ``state_ids`` (any shape ``B``).
        """
        raise NotImplementedError

    # take, not indexing: indexing with a zero-dimensional tensor gives a view of the table, and
    # writing into a step's result must not change the environment.

    def _move(self, state: Tensor, action: Tensor) -> Tensor:
        return self._moves.take(torch.add(action, state, alpha=self.num_actions))

    def _reached_goal(self, state: Tensor) -> Tensor:
        return self._is_goal.take(state)

    def _observe_now(self) -> Tensor:
        return self.observe(self._state)

    def _draw_start(self) -> Tensor:
        if self._starts.numel() == 1:
            return self._starts[0].expand(self.batch_size)
        # Clamped: float32 rounding may turn u * n into n itself.
        which = (self._uniform() * self._starts.numel()).long()
        return self._starts.take(which.clamp_(max=self._starts.numel() - 1))

    # EnvBase

    def _uniform(self) -> Tensor:
        return torch.rand(self.batch_size, generator=self._generator, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        start = self._draw_start()
        reset = None if tensordict is None else tensordict.get("_reset", None)
        if reset is None:
            self._state, self._elapsed = start.clone(), torch.zeros_like(start)
        else:
            reset = reset.view(self.batch_size)
            self._state = torch.where(reset, start, self._state)
            self._elapsed = self._elapsed.masked_fill(reset, 0)
        off = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self.device)
        return self._pack(done=off, terminated=off.clone(), truncated=off.clone())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action")
        if self.slip:
            action = self._slip(action)
        state = self._move(self._state, action)
        # Bypasses nn.Module's __setattr__, which would take a quarter of the step.
        self.__dict__.update(
            _state=state, _elapsed=self._elapsed + 1, _env_steps=self._env_steps + 1
        )
        terminated = self._reached_goal(state).unsqueeze(-1)
        if self.max_steps is None:
            truncated = torch.zeros_like(terminated)
        else:
            truncated = (self._elapsed >= self.max_steps).unsqueeze(-1)
        return self._pack(
            reward=terminated.float(),
            done=terminated | truncated,
            terminated=terminated,
            truncated=truncated,
        )

    def _pack(self, **entries: Tensor) -> TensorDictBase:
        # The state tensors are replaced at each step, never written into, so they are returned without a copy.
        entries[self._observation_key] = self._observe_now()
        entries["state_id"] = self._state
        # Skips the validation of shapes, which are right by construction.
        return TensorDict._new_unsafe(entries, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        self._generator.manual_seed(seed)
        # A different seed: with the same one the slips would repeat the random numbers of the starts.
        own = int(torch.randint(2**62, (), generator=self._generator, device=self.device))
        self._slip = Slip(
            self.slip, self.num_actions, batch_size=self.batch_size, seed=own, device=self.device
        )

    # With one environment, the overhead around the few tensor operations of a step is most of its
    # time. The next two methods do what EnvBase's do, for entries that are known ahead.

    def _step_proc_data(self, next_tensordict_out: TensorDictBase) -> TensorDictBase:
        return next_tensordict_out  # complete, and of the right shapes and dtypes

    def _step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        keys = tensordict.keys()
        if (
            type(tensordict) is not TensorDict
            or tensordict.batch_size != self.batch_size
            or tensordict.device != self.device
            or "next" in keys  # the policy has set entries of the next step
            or "_step" in keys  # only some environments step
        ):
            return super()._step_and_maybe_reset(tensordict)
        following = self._step(tensordict)
        tensordict._set_str("next", following, validated=True, inplace=False, non_blocking=False)
        entries = {
            key: value.copy() if isinstance(value, TensorDictBase) else value
            for key, value in tensordict.items()
            if key not in _NOT_CARRIED
        }
        entries.update(item for item in following.items() if item[0] != "reward")
        root = TensorDict._new_unsafe(entries, batch_size=self.batch_size, device=self.device)
        return tensordict, self.maybe_reset(root)

    # Save and restore; exact dynamics

    def get_env_state(self) -> dict[str, Tensor]:
        """Returns the complete state, generator included, as plain tensors (copies)."""
        return {
            "state_id": self._state.clone(),
            "elapsed": self._elapsed.clone(),
            "env_steps": self._env_steps.clone(),
            "generator": self._generator.get_state(),
            **{f"slip_{name}": value for name, value in self._slip.get_state().items()},
        }

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        """Restores a state of :meth:`get_env_state`; the environment continues exactly."""
        for key in ("state_id", "elapsed", "env_steps"):
            if state[key].shape != self.batch_size:
                raise ValueError(
                    f"the saved {key} has shape {list(state[key].shape)}, but this environment "
                    f"has batch size {list(self.batch_size)}"
                )
        self._state = state["state_id"].to(self.device, copy=True)
        self._elapsed = state["elapsed"].to(self.device, copy=True)
        self._env_steps = state["env_steps"].to(self.device, copy=True)
        self._generator.set_state(state["generator"].cpu())
        self._slip.set_state({name: state[f"slip_{name}"] for name in ("generator", "used")})

    @property
    def next_state(self) -> Tensor:
        """The table of next states, int64 of shape ``[S, A]``."""
        return self._moves.view(self.num_states, self.num_actions)

    def transition_matrix(self, policy: Tensor | None = None) -> Tensor:
        """Returns P(s, s') of the walk under the real dynamics, slip included: sparse COO,
        float64, ``[S, S]``.

        Goals do not end this random walk: the Laplacian is defined on all states.

        Args:
            policy (Tensor, optional): action probabilities ``[S, A]``. Default: uniform.
        """
        num_states, num_actions = self.num_states, self.num_actions
        shape = (num_states, num_actions)
        probs = torch.full(shape, 1 / num_actions, dtype=torch.float64, device=self.device)
        if policy is not None:
            if policy.shape != shape:
                raise ValueError(f"policy must have shape {list(shape)}, got {list(policy.shape)}")
            probs = (1 - self.slip) * policy.to(probs) + self.slip / num_actions
        rows = torch.arange(num_states, device=self.device).repeat_interleave(num_actions)
        indices = torch.stack([rows, self._moves])
        return torch.sparse_coo_tensor(
            indices, probs.flatten(), (num_states, num_states), check_invariants=True
        ).coalesce()
