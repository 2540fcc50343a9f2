"""One Atari game as a TorchRL environment: grey 84x84 images, sticky actions, frame skip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, TensorSpec

from torchrl_dceo.envs.atari import SCREEN, AtariBase, Console, RamMap, ram_map
from torchrl_dceo.envs.transforms import RowTransform

# x and y are bytes: a position is a number below 2^16 in its room.
PLACE = torch.tensor([2**8, 1])

__all__ = [
    "AreaResize",
    "AtariEnv",
    "PlayerRecord",
]


class PlayerRecord(RowTransform):
    """Log columns: the number of distinct positions visited, and the share of games with a score.

    - ``positions``: distinct (room, x, y) so far, over all games of the batch, read from memory;
    - ``scored_share``: the share with a score above 0 of the games that ended since the last row. In Montezuma's
      Revenge it is the share that took the key: the first room has nothing else that scores, and no way out without it.

    Append it after TorchRL's ``RewardSum``, whose ``episode_reward`` it reads. Its counts are in the ``state_dict``.

    Args:
        num_rooms (int): of the game.

    Examples:
        >>> from torchrl_dceo.envs import find_transform, make_env
        >>> from torchrl_dceo.envs.atari.env import PlayerRecord
        >>> env = make_env("MontezumaRevenge", seed=0, visits="counts")
        >>> right = env.base_env.action_index("RIGHT")
        >>> _ = env.rollout(3, lambda td: td.set("action", right))
        >>> find_transform(env, PlayerRecord).row()  # no game has ended
        {'positions': 4}
    """

    def __init__(self, num_rooms: int) -> None:
        super().__init__()
        self.register_buffer("visited", torch.zeros(num_rooms * 2**16, dtype=torch.bool))
        self.register_buffer("games", torch.zeros(2, dtype=torch.int64))  # ended, and scored

    def row(self) -> dict[str, float]:
        """The two columns; the second only if a game has ended since the last row."""
        ended, scored = self.games.tolist()
        self.games.zero_()
        row: dict[str, float] = {"positions": int(self.visited.count_nonzero())}
        return row | {"scored_share": scored / ended} if ended else row

    def _visit(self, tensordict: TensorDictBase) -> None:
        place = tensordict.get("room") * 2**16 + (tensordict.get("position") * PLACE).sum(-1)
        self.visited[place.reshape(-1).clamp(max=len(self.visited) - 1).to("cpu")] = True

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._visit(next_tensordict)
        over = next_tensordict.get("done")
        scored = over & (next_tensordict.get("episode_reward") > 0)
        self.games += torch.stack([over.sum(), scored.sum()]).to("cpu")
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        self._visit(tensordict_reset)
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Records nothing: sampling from a replay buffer is not a visit."""
        return tensordict


class AreaResize:
    """Downsizes grey images: each new pixel is the mean of the area that it covers.

    It equals OpenCV's ``INTER_AREA``, the standard for Atari, up to rounding (at most one grey level).
    OpenCV and torchvision are not dependencies, and torch's ``interpolate(mode="area")`` averages
    over whole pixels only: 210 rows onto 84 are two and a half rows each.

    The weights of a row repeat after every ``gcd`` of the two sizes (210 rows are 42 blocks of 5, which give 2 each),
    so that the image is multiplied by two small matrices: fifty times less work than by the whole ones.

    Args:
        size (tuple of int): rows and columns of the input images.
        new_size (tuple of int): rows and columns of the output images, none larger.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs.atari.env import AreaResize
        >>> AreaResize((1, 5), (1, 2))(torch.tensor([[10, 20, 30, 40, 50]], dtype=torch.uint8))
        tensor([[18, 42]], dtype=torch.uint8)
    """

    def __init__(self, size: tuple[int, int], new_size: tuple[int, int]) -> None:
        for name, old, new in zip(("rows", "columns"), size, new_size, strict=True):
            if not 1 <= new <= old:
                raise ValueError(f"new_size must have 1 to {old} {name}, got {new}")
        self.size, self.new_size = tuple(size), tuple(new_size)
        self._rows, self._columns = (
            _block_weights(old, new) for old, new in zip(size, new_size, strict=True)
        )

    def __call__(self, pictures: Tensor) -> Tensor:
        """Maps ``uint8 [*, H, W]`` to ``uint8 [*, new H, new W]``, rounded to the nearest level."""
        *lead, _, width = pictures.shape
        rows, columns = self._rows.shape[1], self._columns.shape[1]
        blocks = pictures.to(torch.float32).view(-1, rows, width)
        tall = torch.matmul(self._rows, blocks).view(-1, columns)
        wide = torch.matmul(tall, self._columns.T)
        return wide.round_().to(torch.uint8).view(*lead, *self.new_size)


def _block_weights(old: int, new: int) -> Tensor:
    """The weight of each of the ``old / gcd`` input pixels of a block in each of its ``new / gcd`` output pixels."""
    blocks = math.gcd(old, new)
    old, new = old // blocks, new // blocks
    scale = old / new
    weights = torch.zeros(new, old)
    for i in range(new):
        for j in range(old):
            overlap = min((i + 1) * scale, j + 1) - max(i * scale, j)
            weights[i, j] = max(0.0, overlap) / scale
    return weights


class AtariEnv(AtariBase):
    """One or several Atari games with the paper's settings: 84x84 grey images, stacks of four, sticky actions.

    Each environment of the batch is a separate emulator, stepped one after the other in this process (a
    :class:`~torchrl_dceo.envs.atari.Console`, which defines an agent step). The images are downsized by
    :class:`~torchrl_dceo.envs.atari.env.AreaResize`, and the newest ``frame_stack`` of them are stacked, oldest
    first; at the start of an episode the first one is repeated, as with ``CatFrames(padding="same")``.
    ``make_replay_buffer(frame_stack=4)`` stores each image only once and rebuilds the stacks when sampling.

    The reward is the game's. :func:`~torchrl_dceo.envs.make_env` clips it for learning, after the return of the
    episode was summed. An episode ends with the game (``terminated``; with a life if ``life_ends``) and after
    ``max_steps`` agent steps (``truncated``).

    Entries (``B`` the batch size): ``pixels`` uint8 ``[*B, frame_stack, size, size]``; ``room`` int64 ``[*B]`` and
    ``position`` int64 ``[*B, 2]``, the player's (x, y), read from memory where the game's :class:`RamMap
    <torchrl_dceo.envs.atari.RamMap>` is known or given; ``state_id`` int64 ``[*B]``, which is the room, so
    that coverage counts rooms (0 if it has none); ``ram`` uint8 ``[*B, 128]`` if requested; ``action``, ``reward``
    and the end flags as everywhere.

    Args:
        game (str): ``"MontezumaRevenge"``, ``"Pong"``, …, see :func:`~torchrl_dceo.envs.atari.game_names`.

    Keyword Args:
        batch_size (Sequence[int]): Default: ``()``.
        sticky (float): probability that a frame repeats the previous action. Default: 0.25.
        frame_skip (int): emulator frames per agent step. Default: 4.
        frame_stack (int): images in an observation. Default: 4.
        size (int): rows and columns of an image. Default: 84.
        max_steps (int, optional): agent steps per episode. Default: 27,000 (30 minutes of play).
        coverage (bool): no reward. Games still end. Default: ``False``.
        life_ends (bool): the loss of a life terminates, and a new game begins. Default: ``False``.
        full_actions (bool): all 18 actions of the joystick, including those without effect. Default: ``False``.
        positions (RamMap or tuple, optional): memory addresses of the player's position. Default: the known ones.
        ram (bool): whether to add the memory as an entry. Default: ``False``.
        seed (int, optional): by default drawn from torch's global generator.
        device (torch.device or str): device of the entries. Default: ``"cpu"``.

    Examples:
        >>> from torchrl_dceo.envs.atari.env import AtariEnv
        >>> env = AtariEnv("MontezumaRevenge", seed=0)
        >>> data = env.reset()
        >>> data["pixels"].shape, int(data["room"]), data["position"].tolist()
        (torch.Size([4, 84, 84]), 1, [77, 235])
        >>> env.action_names[3]
        'RIGHT'
        >>> data = env.rollout(3, lambda td: td.set("action", env.action_index("RIGHT")))
        >>> bool(data["next", "position"][-1, 0] > 77)
        True
    """

    def __init__(
        self,
        game: str,
        *,
        batch_size: Sequence[int] = (),
        sticky: float = 0.25,
        frame_skip: int = 4,
        frame_stack: int = 4,
        size: int = 84,
        max_steps: int | None = 27_000,
        coverage: bool = False,
        life_ends: bool = False,
        full_actions: bool = False,
        positions: RamMap | None = None,
        ram: bool = False,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
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
        self.positions = ram_map(game) if positions is None else RamMap(*positions)
        self.has_ram = ram
        self._resize = AreaResize(SCREEN, (size, size))
        self._codes = [action.value for action in self._joystick]
        count = self.batch_size.numel()
        self.consoles = [
            Console(self.rom, frame_skip=frame_skip, sticky=sticky, life_ends=life_ends)
            for _ in range(count)
        ]
        self._screens = np.zeros((count, *SCREEN), dtype=np.uint8)
        for console, screen in zip(self.consoles, self._screens, strict=True):
            console.screen = screen  # ALE draws directly into the batch
        self._make_specs(self._memory_specs())
        self._set_seed(int(torch.randint(2**31, ())) if seed is None else seed)

    def _memory_specs(self) -> dict[str, TensorSpec]:
        specs: dict[str, TensorSpec] = {
            "state_id": Categorical(
                self.num_states, shape=self.batch_size, dtype=torch.int64, device=self.device
            )
        }
        if self.positions is not None:
            specs["room"] = self._byte_spec(dtype=torch.int64)
            specs["position"] = self._byte_spec(2, dtype=torch.int64)
        if self.has_ram:
            specs["ram"] = self._byte_spec(self.consoles[0].ale.getRAMSize())
        return specs

    @property
    def num_states(self) -> int:
        """The number of values of ``state_id``: the rooms of the game."""
        if self.positions is None or self.positions.room is None:
            return 1
        return self.positions.num_rooms

    # EnvBase

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        fresh = self._to_reset(tensordict)
        for i in fresh.nonzero().flatten().tolist():
            self.consoles[i].reset()
        return self._begin(fresh, self._resize(torch.from_numpy(self._screens)).unsqueeze(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict.get("action").reshape(-1).tolist()
        results = [
            console.step(self._codes[action])
            for console, action in zip(self.consoles, actions, strict=True)
        ]
        newest = self._resize(torch.from_numpy(self._screens)).unsqueeze(1)
        rewards = torch.tensor([reward for reward, _ in results], dtype=torch.float32)
        return self._advance(newest, rewards, torch.tensor([over for _, over in results]))

    def _further_entries(self) -> dict[str, Tensor]:
        shape, where = self.batch_size, self.positions
        if where is None and not self.has_ram:
            return {"state_id": torch.zeros(shape, dtype=torch.int64)}
        memory = torch.from_numpy(np.stack([console.ram for console in self.consoles]))
        entries = {"ram": memory.view(*shape, -1)} if self.has_ram else {}
        if where is None:
            return {**entries, "state_id": torch.zeros(shape, dtype=torch.int64)}
        columns = [0 if where.room is None else where.room, where.x, where.y]
        room, x, y = memory[:, columns].to(torch.int64).view(*shape, 3).unbind(-1)
        if where.room is None:
            room = torch.zeros_like(room)
        # Clamped: if a game uses the byte for something else at times, a long run must not fail.
        state = room.clamp(max=self.num_states - 1)
        return {**entries, "room": room, "position": torch.stack([x, y], -1), "state_id": state}

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        generator = torch.Generator().manual_seed(seed)
        seeds = torch.randint(2**62, (len(self.consoles),), generator=generator)
        for console, own in zip(self.consoles, seeds.tolist(), strict=True):
            console.seed(own)

    # Images; save and restore

    def render(self) -> Tensor:
        """Returns the screen of each game, ``uint8 [*B, 210, 160, 3]``."""
        pictures = np.stack([console.render() for console in self.consoles])
        return torch.from_numpy(pictures).view(*self.batch_size, *SCREEN, 3)

    def get_env_state(self) -> dict[str, Tensor]:
        """Returns the complete state, the emulators' bytes included, as plain tensors (copies)."""
        state = {"stack": self._stack.clone(), "elapsed": self._elapsed.clone()}
        for i, console in enumerate(self.consoles):
            state.update({f"{key}_{i}": value for key, value in console.get_state().items()})
        return state

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        """Restores a state of :meth:`get_env_state`; the games continue exactly."""
        self._restore_stack(state["stack"])
        self._elapsed = state["elapsed"].cpu().clone()
        for i, console in enumerate(self.consoles):
            own = {key: state[f"{key}_{i}"] for key in ("emulator", "last_action", "generator")}
            console.set_state(own)
