from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict


class Environment:
    """Random episodes of several streams, kept forever, and what a replay buffer must give for them.

    A plain reference: lists and loops, no ring. Every state has a number of its own; an observation
    shows the numbers of the last ``stack`` states of its episode, the first one repeated.
    """

    def __init__(
        self,
        streams: int,
        rows_per_stream: int,
        stack: int = 1,
        mean_length: float = 5.0,
        seed: int = 0,
        abandon: float = 0.0,
    ) -> None:
        self.random = random.Random(seed)
        self.streams, self.capacity, self.stack = streams, rows_per_stream, stack
        self.mean_length, self.abandon = mean_length, abandon
        self.count = 0
        self.steps: list[list[dict]] = [[] for _ in range(streams)]
        self.frames: list[list[int]] = [self._reset() for _ in range(streams)]
        # What the ring of a stream holds: ("step", t) or ("other", None), newest last.
        self.rows: list[deque] = [deque(maxlen=rows_per_stream) for _ in range(streams)]
        self.where: dict[int, tuple[int, int]] = {}  # row of the buffer -> (stream, t)

    def _new(self) -> int:
        self.count += 1
        return self.count

    def _reset(self) -> list[int]:
        return [self._new()] * self.stack

    def _step(self, stream: int) -> dict:
        frames = self.frames[stream]
        history = self.steps[stream]
        is_init = not history or history[-1]["done"] or history[-1]["abandoned"]
        following = [*frames[1:], self._new()]
        over = self.random.random() < 1 / self.mean_length
        terminated = over and self.random.random() < 0.5
        abandoned = not over and self.random.random() < self.abandon
        step = {
            "obs": frames,
            "next": following,
            "reward": self.random.gauss(0, 1),
            "action": self.random.randrange(4),
            "done": over,
            "terminated": terminated,
            "truncated": over and not terminated,
            "is_init": is_init,
            "abandoned": abandoned,
        }
        history.append(step)
        self.frames[stream] = self._reset() if over or abandoned else following
        return step

    def _tensor(self, batch: list[list[dict]], key: str) -> torch.Tensor:
        return torch.tensor([[step[key] for step in row] for row in batch])

    def batch(self, time: int, streams: list[int] | None = None, init: bool = True) -> TensorDict:
        which = list(range(self.streams)) if streams is None else streams
        batch = [[self._step(stream) for _ in range(time)] for stream in which]
        shape = [len(which), time]

        def flag(key: str) -> torch.Tensor:
            return self._tensor(batch, key).unsqueeze(-1)

        def picture(key: str) -> torch.Tensor:
            # Two channels a frame: the number, and its negative.
            numbers = self._tensor(batch, key).int()
            return torch.stack([numbers, -numbers], -1).flatten(-2)[..., None, None]

        out = TensorDict({"pixels": picture("obs"), "action": self._tensor(batch, "action")}, shape)
        out["state_id"] = self._tensor(batch, "obs")[..., -1]
        out["next"] = TensorDict({"pixels": picture("next"), "reward": flag("reward")}, shape)
        out["next", "state_id"] = self._tensor(batch, "next")[..., -1]
        for key in ("done", "terminated", "truncated"):
            out["next", key] = flag(key)
        if init:
            out["is_init"] = flag("is_init")
        return out

    def written(self, time: int, rows: torch.Tensor, streams: list[int] | None = None) -> None:
        """Records that the last ``time`` steps of the streams went to ``rows`` ``[E, T]``."""
        which = list(range(self.streams)) if streams is None else streams
        for stream, places in zip(which, rows.view(len(which), time).tolist(), strict=True):
            held, begin = self.rows[stream], len(self.steps[stream]) - time
            if not held and self.stack > 1:
                held.extend([("other", None)] * (self.stack - 1))
            # An episode given up between two batches: its newest step has no successor.
            if (
                begin
                and held
                and held[-1][0] == "step"
                and self.steps[stream][begin - 1]["abandoned"]
            ):
                held[-1] = ("other", None)
            for t, place in enumerate(places, begin):
                held.append(("step", t))
                self.where[place] = (stream, t)
                step = self.steps[stream][t]
                given_up = step["abandoned"] and t < len(self.steps[stream]) - 1
                if step["done"] or given_up:
                    held.append(("other", None))

    def sampleable(self) -> set[tuple[int, int]]:
        found = set()
        for stream, held in enumerate(self.rows):
            for place, (kind, t) in enumerate(held):
                if kind != "step" or place == len(held) - 1:
                    continue
                # The frames of the stack lie in the rows before, back to the start of the episode.
                start = t
                while not self.steps[stream][start]["is_init"] and t - start < self.stack - 1:
                    start -= 1
                if place - (t - start) >= 0:
                    found.add((stream, t))
        return found

    def _steps_within(self, stream: int, t: int, limit: int) -> int:
        """How many steps can be made from a step on, itself included, before the episode or what is stored ends."""
        history, m = self.steps[stream], 0
        while True:
            last = history[t + m]
            m += 1
            if (
                m == limit
                or last["done"]
                or last["abandoned"]
                or not self._has_successor(stream, t + m)
            ):
                return m

    def check(self, batch: TensorDict, n: int, gamma: float, pair_steps: int = 1) -> None:
        shown = {}
        for key, value in batch.items(True, True):
            if key[-1] == "pixels" or key == "pixels":
                value = value.flatten(-3)
                assert torch.equal(value[..., 0::2], -value[..., 1::2])
                value = value[..., 0::2]
            shown[key] = value.tolist()
        for i, row in enumerate(shown["index"]):
            stream, t = self.where[row]
            history = self.steps[stream]
            step, m = history[t], self._steps_within(stream, t, n)
            last = history[t + m - 1]
            reward = sum(gamma**k * history[t + k]["reward"] for k in range(m))
            assert shown["pixels"][i] == step["obs"]
            assert shown["action"][i] == step["action"]
            assert shown["state_id"][i] == step["obs"][-1]
            assert shown["steps_to_next_obs"][i] == [m]
            assert shown["next", "pixels"][i] == last["next"]
            assert shown["next", "state_id"][i] == last["next"][-1]
            assert shown["successor", "pixels"][i] == step["next"]
            assert shown["successor", "state_id"][i] == step["next"][-1]
            assert abs(shown["next", "reward"][i][0] - reward) < 1e-5
            for key in ("done", "terminated", "truncated"):
                assert shown["next", key][i] == [last[key]]
                assert shown["successor", key][i] == [step[key]]
            if "window" in batch.keys():
                window = [history[t + min(j, m - 1)]["next"] for j in range(n)]
                assert shown["window", "pixels"][i] == window
            if pair_steps > 1:
                far = t + self._steps_within(stream, t, pair_steps) - 1
                assert shown["later", "pixels"][i] == history[far]["next"]
        assert ("later" in batch.keys()) == (pair_steps > 1)

    def _has_successor(self, stream: int, t: int) -> bool:
        # Not so for the newest step, and for one given up between two batches.
        return ("step", t) in self.rows[stream] and self.rows[stream][-1] != ("step", t)


@pytest.fixture
def build_env() -> Callable[..., Environment]:
    return Environment
