"""Speed of training on Nine Rooms against a plain PyTorch loop, TorchRL's own pieces and Stable-Baselines3.

Every contender trains from images on the same environment with the same network (the paper's grid network), batch (32),
update period (one update every 4 frames), Adam and soft targets:

- ``ours``: :class:`~torchrl_dceo.training.Trainer` with the agents ``ddqn`` and ``dceo``;
- ``plain``: only torch and NumPy. The environment is a table lookup in NumPy, the replay a few arrays, an update some
  tensor operations with a fused Adam: fast code for this one method on this one environment. It is the strictest
  measure of the overhead of a general library;
- ``TorchRL``: its collector, replay buffer with multi-step transform, ``DQNLoss`` and ``SoftUpdate``, our environment;
- ``SB3``: Stable-Baselines3's DQN (not double) on the plain environment, where it is installed (extra ``bench``).

The whole loop is timed: acting, stepping, storing, sampling, updating. Contenders take turns, each turn a new run,
whose construction is not timed; a ratio is within one round. Times are CPU times of one thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from _rounds import cpu_seconds, ratios, shown
from torch import Tensor, nn
from torchrl import logger

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.maps import nine_rooms
from torchrl_dceo.training import TrainConfig, Trainer

warnings.filterwarnings("ignore")
logger.setLevel("WARNING")
BATCH, PERIOD, STEPS, GAMMA, TAU, LR = 32, 4, 5, 0.99, 0.01, 1e-4
STARTS = 100  # frames before the first update
EPS_FRAMES, EPS_END = 100_000, 0.1
OPTIONS, OPTION_GAMMA, OPTION_PROB, DURATION, OPTION_EPS, BARRIER = 10, 0.95, 0.9, 10, 0.01, 0.1
Run = Callable[[], object]


# The plain loop -----------------------------------------------------------------------------------


class Rooms:
    """A batch of Nine Rooms environments in NumPy: a table of moves and one of images."""

    def __init__(self, num_envs: int, seed: int, slip: float = 0.15, max_steps: int = 100) -> None:
        env = GridWorldEnv(nine_rooms())
        cells = {cell: i for i, cell in enumerate(env.layout.cells)}
        self.moves = env.next_state.numpy()
        self.images = env.observe(torch.arange(env.num_states)).numpy()
        self.goal, self.start = (cells[cell] for (cell,) in (env.layout.goals, env.layout.starts))
        self.num_actions, self.slip, self.max_steps = 4, slip, max_steps
        self.random = np.random.default_rng(seed)
        self.state = np.full(num_envs, self.start)
        self.elapsed = np.zeros(num_envs, dtype=np.int64)

    def observe(self) -> np.ndarray:
        return self.images[self.state]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns observation, reward, terminated, truncated, and the observation before a reset."""
        slips = self.random.random(action.shape) < self.slip
        action = np.where(slips, self.random.integers(self.num_actions, size=action.shape), action)
        self.state = self.moves[self.state, action]
        self.elapsed += 1
        terminated, truncated = self.state == self.goal, self.elapsed >= self.max_steps
        final, ended = self.observe(), terminated | truncated
        if ended.any():
            self.state = np.where(ended, self.start, self.state)
            self.elapsed[ended] = 0
            return self.observe(), terminated.astype(np.float32), terminated, truncated, final
        return final, terminated.astype(np.float32), terminated, truncated, final


class Replay:
    """Stores the steps of each environment in order; n-step transitions are computed when sampling."""

    def __init__(self, rows: int, num_envs: int, shape: tuple[int, ...], seed: int) -> None:
        self.seen = np.zeros((rows, num_envs, *shape), dtype=np.uint8)
        self.after = np.zeros((rows, num_envs, *shape), dtype=np.uint8)
        self.action = np.zeros((rows, num_envs), dtype=np.int64)
        self.reward = np.zeros((rows, num_envs), dtype=np.float32)
        self.terminated = np.zeros((rows, num_envs), dtype=np.bool_)
        self.ended = np.zeros((rows, num_envs), dtype=np.bool_)
        self.size, self.num_envs, self.random = 0, num_envs, np.random.default_rng(seed)
        self.discounts = (GAMMA ** np.arange(STEPS)).astype(np.float32)

    def add(self, seen, action, reward, terminated, truncated, after) -> None:
        row = self.size
        self.seen[row], self.after[row], self.action[row] = seen, after, action
        self.reward[row], self.terminated[row] = reward, terminated
        self.ended[row] = terminated | truncated
        self.size += 1

    def sample(self) -> dict[str, Tensor]:
        row = self.random.integers(self.size, size=BATCH)
        env = self.random.integers(self.num_envs, size=BATCH)
        ahead = np.minimum(row[:, None] + np.arange(STEPS), self.size - 1)
        stops = self.ended[ahead, env[:, None]] | (ahead == self.size - 1)
        stops[:, -1] = True
        count = stops.argmax(1)  # of steps after the first
        inside = np.arange(STEPS) <= count[:, None]
        last = np.minimum(row + count, self.size - 1)
        batch = {
            "seen": self.seen[row, env],
            "successor": self.after[row, env],
            "next": self.after[last, env],
            "action": self.action[row, env],
            "reward": (self.reward[ahead, env[:, None]] * inside * self.discounts).sum(1),
            "kept": GAMMA ** (count + 1.0) * ~self.terminated[last, env],
            "kept_once": OPTION_GAMMA * ~self.terminated[row, env],
        }
        batch = {key: torch.from_numpy(value) for key, value in batch.items()}
        for key in ("seen", "successor", "next", "kept", "kept_once", "reward"):
            batch[key] = batch[key].float()
        for key in ("seen", "successor", "next"):
            batch[key].div_(255)
        return batch


def grid_network(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, outputs),
    )


class PlainDDQN:
    """n-step Double DQN with ε-greedy exploration."""

    def __init__(self, num_envs: int, frames: int) -> None:
        torch.manual_seed(0)
        self.num_envs, self.frames = num_envs, frames
        self.rooms = Rooms(num_envs, 0)
        self.random = np.random.default_rng(1)
        self.replay = Replay(frames // num_envs + 1, num_envs, (3, 19, 19), 2)
        self.networks = self.make_networks()
        self.targets = [grid_network(net[-1].out_features) for net in self.networks]
        for target, net in zip(self.targets, self.networks, strict=False):
            target.load_state_dict(net.state_dict())
        learned = [net for net, _ in zip(self.networks, self.targets, strict=False)]
        self.online_flat = [p.data for net in learned for p in net.parameters()]
        self.target_flat = [p.data for net in self.targets for p in net.parameters()]
        parameters = [p for net in self.networks for p in net.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=LR, fused=True)

    def make_networks(self) -> list[nn.Sequential]:
        """The networks with targets; a subclass adds others."""
        return [grid_network(4)]

    def __call__(self) -> None:
        seen, frame, updates = self.rooms.observe(), 0, 0
        while frame < self.frames:
            eps = max(EPS_END, 1 - (1 - EPS_END) * frame / EPS_FRAMES)
            action = self.act(seen, eps)
            following, reward, terminated, truncated, final = self.rooms.step(action)
            self.replay.add(seen, action, reward, terminated, truncated, final)
            self.ended(terminated | truncated)
            seen, frame = following, frame + self.num_envs
            while updates < (frame - STARTS) // PERIOD:
                self.update(self.replay.sample())
                updates += 1

    @torch.no_grad()
    def act(self, seen: np.ndarray, eps: float) -> np.ndarray:
        images = torch.from_numpy(seen).float().div_(255)
        greedy = self.networks[0](images).argmax(-1).numpy()
        explores = self.random.random(self.num_envs) < eps
        return np.where(explores, self.random.integers(4, size=self.num_envs), greedy)

    def ended(self, which: np.ndarray) -> None:
        """Called with the mask of ended episodes."""

    def update(self, batch: dict[str, Tensor]) -> None:
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch._foreach_lerp_(self.target_flat, self.online_flat, TAU)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        online, target = self.networks[0], self.targets[0]
        taken = online(batch["seen"]).gather(1, batch["action"][:, None])[:, 0]
        with torch.no_grad():
            choice = online(batch["next"]).argmax(1, keepdim=True)
            later = target(batch["next"]).gather(1, choice)[:, 0]
            goal = batch["reward"] + batch["kept"] * later
        return F.smooth_l1_loss(taken, goal)


class PlainDCEO(PlainDDQN):
    """Deep covering eigenoptions, online: N heads on one trunk, the generalized Laplacian, Algorithm 1."""

    def make_networks(self) -> list[nn.Sequential]:
        self.option = np.full(self.num_envs, -1)
        self.rows = np.arange(self.num_envs)
        return [grid_network(4), grid_network(OPTIONS * 4), grid_network(OPTIONS + 1)]

    def __init__(self, num_envs: int, frames: int) -> None:
        super().__init__(num_envs, frames)
        # The representation has no target network.
        self.targets = self.targets[:2]
        count = sum(1 for net in self.targets for _ in net.parameters())
        self.target_flat, self.online_flat = self.target_flat[:count], self.online_flat[:count]
        self.c = torch.arange(OPTIONS + 1, 0, -1.0)
        self.pairs = torch.minimum(self.c[:, None], self.c)

    @torch.no_grad()
    def act(self, seen: np.ndarray, eps: float) -> np.ndarray:
        images = torch.from_numpy(seen).float().div_(255)
        action = self.networks[0](images).argmax(-1).numpy()
        draws = self.random.random((4, self.num_envs))
        anything = self.random.integers(4, size=self.num_envs)
        goes_on = (self.option >= 0) & (draws[0] >= 1 / DURATION)
        explores = ~goes_on & (draws[1] < eps)
        starts = explores & (draws[2] < OPTION_PROB)
        self.option[~goes_on] = -1
        self.option[starts] = self.random.integers(OPTIONS, size=int(starts.sum()))
        action = np.where(explores, anything, action)
        values = self.networks[1](images).view(-1, OPTIONS, 4).argmax(-1).numpy()
        by_option = np.where(draws[3] < OPTION_EPS, anything, values[self.rows, self.option])
        return np.where(self.option >= 0, by_option, action)

    def ended(self, which: np.ndarray) -> None:
        self.option[which] = -1

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        both = torch.cat([batch["seen"], batch["successor"]])
        here, there = self.networks[2](both).chunk(2)
        smoothness = 0.5 * (here - there).square() @ self.c
        all_pairs = ((here @ (self.pairs * (here.mT @ here))) * here).sum(-1)
        squares = here.square()
        self_pairs = squares.cumsum(-1).square().sum(-1)
        orthogonality = (all_pairs - self_pairs) / (BATCH - 1) - 2 * ((squares - 0.5) @ self.c)
        laplacian = (smoothness + BARRIER * orthogonality).mean()

        online, target = self.networks[1], self.targets[1]
        index = batch["action"][:, None, None].expand(-1, OPTIONS, 1)
        taken = online(batch["seen"]).view(-1, OPTIONS, 4).gather(2, index)[..., 0]
        with torch.no_grad():
            kept = batch["kept_once"][:, None]
            reward = there[:, 1:] * (1 - kept)
            choice = online(batch["successor"]).view(-1, OPTIONS, 4).argmax(-1, keepdim=True)
            later = target(batch["successor"]).view(-1, OPTIONS, 4).gather(2, choice)[..., 0]
            goal = reward + kept * later
        option = F.smooth_l1_loss(taken, goal, reduction="none").sum(-1).mean()
        return super().loss(batch) + option + laplacian


# The others ---------------------------------------------------------------------------------------


def ours(agent: str, num_envs: int, frames: int) -> Run:
    torch.manual_seed(0)
    env = make_env("NineRooms", seed=0, batch_size=[num_envs] if num_envs > 1 else [])
    config = TrainConfig(
        total_frames=frames,
        update_period=PERIOD,
        learning_starts=STARTS,
        log_period=frames,
        eval_period=frames,
        checkpoint_period=None,
        progress=False,
    )
    settings = {"num_options": OPTIONS, "signs": "+"} if agent == "dceo" else {}
    return Trainer(make_agent(agent, env, **settings), env, config).run


def torchrl_pieces(num_envs: int, frames: int) -> Run:
    """TorchRL's own classes, combined as in its tutorials."""
    from tensordict.nn import TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs.transforms import MultiStepTransform
    from torchrl.modules import EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    torch.manual_seed(0)
    batch_size = [num_envs] if num_envs > 1 else []
    env = make_env("NineRooms", seed=0, batch_size=batch_size)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = grid_network(4)

        def forward(self, pixels: Tensor) -> Tensor:
            images = pixels.reshape(-1, *pixels.shape[-3:]).float().div(255)
            return self.network(images).view(*pixels.shape[:-3], -1)

    spec = env.action_spec_unbatched
    actor = QValueActor(Scaled(), in_keys=["pixels"], spec=spec)
    explorer = EGreedyModule(spec, eps_init=1.0, eps_end=EPS_END, annealing_num_steps=EPS_FRAMES)
    loss = DQNLoss(actor, double_dqn=True, delay_value=True, loss_function="smooth_l1")
    loss.make_value_estimator(gamma=GAMMA)
    targets = SoftUpdate(loss, tau=TAU)
    optimizer = torch.optim.Adam(
        [p for p in loss.parameters() if p.requires_grad], lr=LR, fused=True
    )
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(frames + 1000), batch_size=BATCH)
    multi_step = MultiStepTransform(n_steps=STEPS, gamma=GAMMA)
    per_batch = -(-PERIOD // num_envs) * num_envs

    def run() -> None:
        collector = Collector(
            env,
            TensorDictSequential(actor, explorer),
            frames_per_batch=per_batch,
            total_frames=frames,
        )
        frame = updates = 0
        for data in collector:
            transitions = multi_step.inv(data)
            if transitions is not None:  # none before n steps
                replay.extend(transitions.reshape(-1))
            explorer.step(data.numel())
            frame += data.numel()
            while len(replay) and updates < (frame - STARTS) // PERIOD:
                loss(replay.sample())["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()
                targets.step()
                updates += 1
        collector.shutdown(close_env=False)

    return run


def sb3(num_envs: int, frames: int) -> Run:
    """Stable-Baselines3's DQN, on the plain environment, vectorised."""
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import VecEnv

    class Rooms3(VecEnv):
        def __init__(self) -> None:
            self.rooms = Rooms(num_envs, 0)
            box = gymnasium.spaces.Box(0, 255, (3, 19, 19), np.uint8)
            super().__init__(num_envs, box, gymnasium.spaces.Discrete(4))

        def reset(self) -> np.ndarray:
            return self.rooms.observe()

        def step_async(self, actions: np.ndarray) -> None:
            self.actions = actions

        def step_wait(self) -> tuple:
            seen, reward, terminated, truncated, final = self.rooms.step(self.actions)
            done = terminated | truncated
            infos: list[dict] = [{} for _ in range(num_envs)]
            for i in np.flatnonzero(done):
                infos[i]["terminal_observation"] = final[i]
                infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            return seen, reward, done, infos

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: object = None) -> list:
            return [None] * num_envs

        def set_attr(self, attr_name: str, value: object, indices: object = None) -> None: ...

        def env_method(self, *args: object, **kwargs: object) -> list:
            return [None] * num_envs

        def env_is_wrapped(self, wrapper_class: type, indices: object = None) -> list[bool]:
            return [False] * num_envs

    class Trunk(BaseFeaturesExtractor):
        def __init__(self, space: gymnasium.Space) -> None:
            super().__init__(space, 256)
            self.layers = grid_network(4)[:-1]

        def forward(self, images: Tensor) -> Tensor:
            return self.layers(images)

    per_step = max(1, PERIOD // num_envs)
    model = DQN(
        "CnnPolicy",
        Rooms3(),
        learning_rate=LR,
        buffer_size=frames + 1000,
        learning_starts=STARTS,
        batch_size=BATCH,
        tau=TAU,
        gamma=GAMMA,
        n_steps=STEPS,
        train_freq=per_step,
        gradient_steps=max(1, num_envs // PERIOD),
        target_update_interval=max(PERIOD, num_envs),
        exploration_fraction=1.0,
        exploration_final_eps=EPS_END,
        policy_kwargs={
            "features_extractor_class": Trunk,
            "net_arch": [],
            "optimizer_kwargs": {"fused": True},
        },
        seed=0,
        device="cpu",
    )
    return lambda: model.learn(frames)


def make_contenders(num_envs: int, frames: int) -> dict[str, Callable[[], Run]]:
    """By name, a function that builds a new run."""
    makers: dict[str, Callable[[], Run]] = {
        "ours, ddqn": lambda: ours("ddqn", num_envs, frames),
        "plain, ddqn": lambda: PlainDDQN(num_envs, frames),
        "TorchRL, ddqn": lambda: torchrl_pieces(num_envs, frames),
    }
    if importlib.util.find_spec("stable_baselines3") is not None:
        makers["SB3, dqn"] = lambda: sb3(num_envs, frames)
    makers["ours, dceo"] = lambda: ours("dceo", num_envs, frames)
    makers["plain, dceo"] = lambda: PlainDCEO(num_envs, frames)
    return makers


def measure(num_envs: int, frames: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds per frame, one value per round."""
    makers = make_contenders(num_envs, frames)
    for make in make_contenders(num_envs, STARTS + 2 * max(num_envs, PERIOD)).values():
        make()()  # imports and compilation at first use are not part of the loop
    order, seconds = list(makers), {name: [] for name in makers}
    for _ in range(rounds):
        for name in order:
            run = makers[name]()
            seconds[name].append(cpu_seconds(lambda _, run=run: run(), 1) / frames)
        order.append(order.pop(0))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of every contender")
    parser.add_argument("--frames", type=int, default=2000, help="per turn with one environment")
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--smoke", action="store_true", help="a few updates, only as a test")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.rounds, arguments.frames, arguments.envs = 1, 160, [1, 8]
    tune_process()
    for num_envs in arguments.envs:
        # Whole steps, and enough of them.
        frames = -(-max(arguments.frames, 50 * num_envs) // num_envs) * num_envs
        if arguments.smoke:
            frames = arguments.frames
        seconds = measure(num_envs, frames, arguments.rounds)
        print(f"environments: {num_envs}, frames per turn: {frames}")
        print(f"  {'':14s} {'frames/s':>20s} {'ms per frame':>22s} {'time / plain':>20s}")
        for name, values in seconds.items():
            plain = seconds[f"plain, {'dceo' if 'dceo' in name else 'ddqn'}"]
            rates = shown([1 / value for value in values], digits=0)
            print(
                f"  {name:14s} {rates:>20s} {shown(values, 1e3, 3):>22s} "
                f"{shown(ratios(values, plain)):>20s}",
                flush=True,  # the next one takes minutes
            )


if __name__ == "__main__":
    main()
