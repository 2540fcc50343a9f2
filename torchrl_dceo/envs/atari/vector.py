"""Many Atari games in parallel, in the threads of ALE's C++ vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv as ALEVector
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_dceo.envs.atari import AtariBase

__all__ = ["AtariVectorEnv"]


class AtariVectorEnv(AtariBase):
    """A batch of Atari games in C++ threads, with the images of :class:`~torchrl_dceo.envs.atari.env.AtariEnv`.

    For throughput on a machine with many cores. Limitations of ALE's vector environment:

    - no memory, hence no ``room``, ``position`` or ``state_id``, and no coverage of rooms;
    - no exact resume: the games' state cannot be read. :meth:`set_env_state` starts *new* games, and the episodes
      in progress are cut: their next step does nothing, gives no reward and is ``truncated``, so stored transitions
      are still correct;
    - sticky actions come from the emulator: the same distribution, but other samples than ``AtariEnv`` with this seed;
    - the last image of a finished game is ALE's, which takes the maximum with an older frame.

    ALE resets a game in the step that ends it (the only mode that works with TorchRL); the image that ended
    the episode and the first one of the next are separated here. A reset in the middle of a game works too. Rewards
    are the game's, not clipped by ALE. Stacks are built here: ALE pads them with black images at the start of
    an episode, whereas the replay buffer repeats the first image.

    Args:
        game (str): as for ``AtariEnv``.

    Keyword Args:
        batch_size (Sequence[int]): the number of games; one dimension.
        num_threads (int): 0: as many as games or processors, whichever are fewer. Default: 0.
        sticky, frame_skip, frame_stack, size, max_steps, coverage, full_actions, seed, device: as for ``AtariEnv``.

    Examples:
        >>> from torchrl_dceo.envs.atari.vector import AtariVectorEnv
        >>> env = AtariVectorEnv("Pong", batch_size=[3], num_threads=1, seed=0)
        >>> env.rollout(5)["pixels"].shape
        torch.Size([3, 5, 4, 84, 84])
        >>> env.close()
    """

    def __init__(
        self,
        game: str,
        *,
        batch_size: Sequence[int],
        num_threads: int = 0,
        sticky: float = 0.25,
        frame_skip: int = 4,
        frame_stack: int = 4,
        size: int = 84,
        max_steps: int | None = 27_000,
        coverage: bool = False,
        full_actions: bool = False,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(batch_size) != 1:
            raise ValueError(
                f"the vector environment has one batch dimension, got batch_size {list(batch_size)}"
            )
        super().__init__(
            game,
            batch_size=batch_size,
            sticky=sticky,
            frame_skip=frame_skip,
            frame_stack=frame_stack,
            size=size,
            max_steps=max_steps,
            coverage=coverage,
            full_actions=full_actions,
            device=device,
        )
        count = self.batch_size.numel()
        self._games = ALEVector(
            self.rom.stem,
            count,
            num_threads=num_threads,
            # No limit in ALE: steps are counted here, since ALE's image at a truncation is not the last one.
            max_num_frames_per_episode=2**30,
            repeat_action_probability=sticky,
            full_action_space=full_actions,
            autoreset_mode="SameStep",
            img_height=size,
            img_width=size,
            stack_num=1,
            frameskip=frame_skip,
            noop_max=0,
            reward_clipping=False,
            use_fire_reset=False,
        )
        self._first = self._stack[:, :1]  # of the episode that ALE has begun where one is over
        self._begun = torch.zeros(count, dtype=torch.bool)
        self._started = False
        self._cut = False
        self._make_specs()
        self._set_seed(int(torch.randint(2**31, ())) if seed is None else seed)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        fresh = self._to_reset(tensordict)
        first = self._first.clone()
        # Games that ALE has restarted need no reset: they are at their start.
        needed = fresh & ~self._begun if self._started else torch.ones_like(fresh)
        if needed.any():
            options = {"reset_mask": needed.numpy()} if self._started else None
            shown, _ = self._games.reset(seed=self._draw_seeds(int(needed.sum())), options=options)
            first[needed] = torch.from_numpy(np.array(shown)[needed.numpy()])
            self._started = True
        self._begun = self._begun & ~fresh
        return self._begin(fresh, first)

    def _draw_seeds(self, count: int) -> np.ndarray:
        return torch.randint(2**31 - 1, (count,), generator=self._generator).numpy()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._cut:
            return self._cut_episodes()
        actions = tensordict.get("action").cpu().numpy()
        shown, rewards, over, _, info = self._games.step(actions)
        terminated = torch.from_numpy(np.array(over))
        newest = torch.from_numpy(np.array(shown))
        if terminated.any():
            self._first, self._begun = newest, terminated
            final = torch.from_numpy(np.array(info["final_obs"]))
            newest = torch.where(terminated.view(-1, 1, 1, 1), final, newest)
        return self._advance(newest, torch.from_numpy(np.array(rewards)).float(), terminated)

    def _cut_episodes(self) -> TensorDictBase:
        self._cut = False
        on = torch.ones(self.batch_size, dtype=torch.bool)
        off = torch.zeros_like(on)
        return self._pack(reward=off.float(), done=on, terminated=off, truncated=on.clone())

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        self._generator = torch.Generator().manual_seed(seed)
        self._started = False  # all games are reset, and seeded, by the next reset

    def get_env_state(self) -> dict[str, Tensor]:
        """Returns the part of the state that can be saved: the current images, and the generator of the seeds."""
        return {"stack": self._stack.clone(), "generator": self._generator.get_state()}

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        """Continues with new games: the next step truncates the episodes in progress and does nothing else."""
        self._restore_stack(state["stack"])
        self._generator.set_state(state["generator"].cpu())
        self._started, self._cut = False, True
        self._begun = torch.zeros_like(self._begun)
