"""Online DCEO from plain TorchRL parts: collector, replay buffer, losses, target updates."""

import sys
from functools import partial

import torch
from tensordict.nn import TensorDictModule as Mod
from tensordict.nn import TensorDictSequential as Seq
from torchrl.collectors import Collector
from torchrl.envs import InitTracker, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from torchrl_dceo._fast import tune_process
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.modules import EigenReward, OptionExplorationModule, OptionQValueActor
from torchrl_dceo.modules.networks import MultiHeadNet, grid_net
from torchrl_dceo.objectives import GeneralizedLaplacianLoss, OptionDQNLoss

TWO_ROOMS = """
###########
#S...#....#
#....#....#
#.........#
#....#....#
#....#...G#
###########
""".strip()
NUM_OPTIONS, PERIOD, GAMMA = 4, 4, 0.97
FRAMES = int(sys.argv[1]) if sys.argv[1:] else 10_000

torch.manual_seed(0)
tune_process()
base_env = GridWorldEnv(TWO_ROOMS, max_steps=60, seed=0)
net = partial(grid_net, base_env.observation_spec["pixels"].shape)
actions = base_env.action_spec.space.n

# The policy: main learner -> options -> exploration. The active option is an entry of the tensordict.
main = QValueActor(net(actions), in_keys=["pixels"], spec=base_env.action_spec)
options = OptionQValueActor(
    MultiHeadNet(net, NUM_OPTIONS, actions),
    num_options=NUM_OPTIONS,
    in_keys=["pixels"],
    spec=base_env.action_spec,
)
explore = OptionExplorationModule(
    base_env.action_spec,
    num_options=NUM_OPTIONS,
    annealing_num_steps=FRAMES // 2,
    option_prob=0.8,
    option_duration=10,
)
policy = Seq(main, options, explore)
env = TransformedEnv(base_env, InitTracker()).append_transform(explore.make_tensordict_primer())

# The objectives: f learns the eigenfunctions, options maximise them, the main learner learns the task.
encoder = Mod(net(NUM_OPTIONS + 1), in_keys=["pixels"], out_keys=["representation"])
laplacian_loss = GeneralizedLaplacianLoss(encoder, successor="successor")
eigen_reward = EigenReward(
    encoder, NUM_OPTIONS, single_step=True, successor="successor", reuse_representation=True
)
option_loss = OptionDQNLoss(options, single_step=True, successor="successor")
main_loss = DQNLoss(main, double_dqn=True, loss_function="smooth_l1")
for loss in (option_loss, main_loss):
    loss.make_value_estimator(gamma=GAMMA)
targets = [SoftUpdate(loss, tau=0.02) for loss in (option_loss, main_loss)]
params = [p for loss in (laplacian_loss, option_loss, main_loss) for p in loss.parameters()]
optimizer = torch.optim.Adam([p for p in params if p.requires_grad], lr=5e-4, eps=1e-5, fused=True)

replay = make_replay_buffer(
    FRAMES, n_steps=5, gamma=GAMMA, batch_size=32, step_keys=["action", "option"]
)
collector = Collector(env, policy, frames_per_batch=PERIOD, total_frames=FRAMES)

visited: set[int] = set()
for i, data in enumerate(collector):
    replay.extend(data)
    explore.step(data.numel())
    visited.update(data["state_id"].tolist())
    if i == 5:
        print("active option at each step:", data["option"].tolist(), "(-1: none)")
    if len(replay) < 500:
        continue
    batch = replay.sample()
    loss = laplacian_loss(batch)["loss_laplacian"]
    loss = loss + option_loss(eigen_reward(batch))["loss_option"] + main_loss(batch)["loss"]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    for target in targets:
        target.step()
    if i % 500 == 0:
        print(f"{i * PERIOD:6d} frames: {len(visited)} states visited, ε {explore.eps:.2f}")

with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
    returns = [env.rollout(60, policy)["next", "reward"].sum().item() for _ in range(20)]
print(f"greedy return of the main learner over 20 episodes: {sum(returns) / len(returns):.2f}")
collector.shutdown()
