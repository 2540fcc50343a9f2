"""The 2x2x2 Rubik's cube, restricted to the states near the solved one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrl.data import Bounded

from torchrl_dceo.envs.cube_moves import CUBE_ACTIONS, FACES, NUM_STICKERS, cube_graph
from torchrl_dceo.envs.table_env import TableEnv

__all__ = ["RubiksCubeEnv"]

# Where each face lies in the unfolded cross (row, column, in faces), in the order of FACES.
_NET = ((0, 1), (1, 2), (1, 1), (2, 1), (1, 0), (1, 3))
# White, red, green, yellow, orange, blue: the usual colours; last, the ink around the stickers.
_COLOURS = (
    (255, 255, 255),
    (200, 20, 30),
    (0, 155, 72),
    (255, 213, 0),
    (255, 105, 0),
    (0, 70, 173),
    (25, 25, 25),
)


class RubiksCubeEnv(TableEnv):
    """The pocket cube of the paper: nine moves, all states within ``max_depth`` of the solved one.

    Actions: U, R, F by one, two or three quarter turns (``action_names``); the corner at the
    bottom, back and left stays where it is. A move that would leave the set does nothing. Episodes start in
    one fixed state ``max_depth`` moves from solved, the one reached from the solved cube by the
    turns U, R, F, U, R, … (``start``). Solving the cube gives +1 and terminates, unless
    ``coverage=True``. The paper uses depth 3 for tables, 5 for networks.

    The entry ``observation`` is float32 ``[*B, 144]``: for each of the 24 stickers, face by face in
    the order U R F D L B, the one-hot code of its colour. ``state_id`` 0 is the solved cube; see
    :class:`~torchrl_dceo.envs.cube_moves.CubeGraph` for the others. Everything else is as in
    :class:`~torchrl_dceo.envs.table_env.TableEnv`.

    Keyword Args:
        max_depth (int): how far from solved the states reach. Default: 5 (12,224 states).
        coverage (bool): no reward, and nothing ends at the solved cube. Default: ``False``.
        start (int, optional): another start state.
        batch_size (Sequence[int]): any number of batch dimensions. Default: ``()``.
        slip (float): probability that a random action overwrites the chosen one. Default: 0.15.
        max_steps (int, optional): step limit. Default: 100.
        seed (int, optional): by default drawn from torch's global generator.
        device (torch.device or str): Default: ``"cpu"``.

    Examples:
        >>> from torchrl_dceo.envs import RubiksCubeEnv
        >>> env = RubiksCubeEnv(max_depth=3, batch_size=[2], slip=0.0, seed=0)
        >>> env.num_states, env.reset()["observation"].shape
        (385, torch.Size([2, 144]))
        >>> plan = iter(["F'", "R'", "U'"])  # undoes the start U R F
        >>> rollout = env.rollout(
        ...     3, lambda td: td.set("action", env.action_index(next(plan)).expand(2))
        ... )
        >>> rollout["next", "state_id"][0].tolist()
        [10, 1, 0]
        >>> rollout["next", "reward"][0].flatten().tolist()
        [0.0, 0.0, 1.0]
    """

    action_names = CUBE_ACTIONS

    def __init__(
        self,
        *,
        max_depth: int = 5,
        coverage: bool = False,
        start: int | None = None,
        batch_size: Sequence[int] = (),
        slip: float = 0.15,
        max_steps: int | None = 100,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        graph = cube_graph(max_depth)
        num_states = len(graph.depth)
        if start is None:
            start = graph.rim_state
        elif not 0 <= start < num_states:
            raise ValueError(f"start must be a state id in [0, {num_states - 1}], got {start}")
        super().__init__(
            graph.next_state,
            [start],
            None if coverage else [0],
            "observation",
            Bounded(0.0, 1.0, shape=(NUM_STICKERS * len(FACES),), dtype=torch.float32),
            batch_size=batch_size,
            slip=slip,
            max_steps=max_steps,
            seed=seed,
            device=device,
        )
        self.max_depth = max_depth
        self.register_buffer("stickers", graph.stickers.to(self.device), persistent=False)
        self.register_buffer("depth", graph.depth.to(self.device), persistent=False)
        self.register_buffer(
            "_one_hot", torch.eye(len(FACES), device=self.device), persistent=False
        )

    def observe(self, state_ids: Tensor) -> Tensor:
        """Returns the sticker one-hots of any states, float32 ``[*state_ids.shape, 144]``.

        Examples:
            >>> import torch
            >>> from torchrl_dceo.envs import RubiksCubeEnv
            >>> env = RubiksCubeEnv(max_depth=3)
            >>> solved = env.observe(torch.tensor(0)).view(6, 4, 6)  # face, sticker, colour
            >>> solved.argmax(-1).tolist()[1]
            [1, 1, 1, 1]
        """
        return self._one_hot[self.stickers[state_ids]].flatten(-2)

    @classmethod
    def action_index(cls, name: str) -> Tensor:
        """Returns the action of that name (``"R"``, ``"R2"``, ``"R'"``) as a tensor.

        Examples:
            >>> from torchrl_dceo.envs import RubiksCubeEnv
            >>> RubiksCubeEnv.action_index("F2")
            tensor(7)
        """
        if name not in cls.action_names:
            raise ValueError(f"unknown move {name!r}; the moves are {', '.join(cls.action_names)}")
        return torch.tensor(cls.action_names.index(name))

    def render(self, state_ids: Tensor | None = None, *, tile_size: int = 16) -> Tensor:
        """Returns the cube unfolded into a cross, ``uint8 [*B, 6 * tile_size, 8 * tile_size, 3]``.

        Args:
            state_ids (Tensor, optional): which states; by default the current ones.
            tile_size (int): width of a sticker in pixels, at least 3 (with its edge). Default: 16.

        Examples:
            >>> from torchrl_dceo.envs import RubiksCubeEnv
            >>> env = RubiksCubeEnv(max_depth=3, batch_size=[5])
            >>> _ = env.reset()
            >>> env.render().shape
            torch.Size([5, 96, 128, 3])
        """
        if tile_size < 3:
            raise ValueError(f"tile_size must be at least 3, got {tile_size}")
        state_ids = self._state if state_ids is None else state_ids
        ink = len(FACES)
        colour = torch.nn.functional.pad(self.stickers[state_ids], (0, 1), value=ink)
        picture = colour[..., self._net_picture(tile_size)]
        return torch.tensor(_COLOURS, dtype=torch.uint8, device=self.device)[picture]

    def _net_picture(self, tile_size: int) -> Tensor:
        """Which sticker each pixel of the net shows; index 24 is the ink around them."""
        net = torch.full((6, 8), NUM_STICKERS)
        for face, (row, column) in enumerate(_NET):
            stickers = torch.arange(4 * face, 4 * face + 4).view(2, 2)
            net[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = stickers
        edge = max(1, tile_size // 12)
        inside = torch.zeros(tile_size, dtype=torch.bool)
        inside[edge:-edge] = True
        mask = (inside[:, None] & inside).repeat(6, 8)
        large = net.repeat_interleave(tile_size, 0).repeat_interleave(tile_size, 1)
        return torch.where(mask, large, NUM_STICKERS).to(self.device)
