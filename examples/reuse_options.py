"""Options learned in one environment, saved, and used frozen in another one."""

import tempfile

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.modules import QValueActor

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import OptionExplorationModule
from torchrl_dceo.modules.networks import mlp_net
from torchrl_dceo.training import fit, load_options, save_options

torch.manual_seed(0)
tune_process()
path = tempfile.mkdtemp()

# First environment: learn options from a random walk and save them.
common = {"room_size": 3, "observation": "xy", "coverage": True, "starts": "anywhere"}
env = make_env("NineRooms", batch_size=50, seed=0, **common)
settings = {"lr": 1e-3, "barrier": 2.0, "batch_size": 128, "target_tau": 0.02}
agent = make_agent("dceo", env, num_options=4, reward_mode="telescoped", **settings)
data = make_replay_buffer(
    75_000, observation_keys=["observation"], num_streams=50, n_steps=5, batch_size=128, seed=0
)
data.extend(env.rollout(500, break_when_any_done=False))
fit(agent, data, num_updates=1000, objectives=("laplacian", "reward", "option"))
save_options(path, agent)

# Second environment, without noise. load_options checks that the options fit and freezes them.
other = make_env("NineRooms", batch_size=200, seed=1, slip=0.0, **common)
options, encoder, reward = load_options(path, other)
spec = other.action_spec_unbatched


def follow(option):
    return lambda td: td.set("action", options(td)["option_action_value"][:, option].argmax(-1))


for option in range(options.num_options):
    gains = []
    for policy in (follow(option), None):  # the option, and a random walk
        walk = other.rollout(40, policy)
        end = {"observation": walk["next", "observation"][:, -1]}
        journey = TensorDict({"observation": walk["observation"][:, 0], "next": end}, [200])
        gains.append(reward(journey)["option_reward"][:, option].mean())
    print(f"option {option} climbs by {gains[0]:.2f}, a random walk by {gains[1]:.2f}")

# In your own policy: a main learner, the frozen options and the exploration module.
main = QValueActor(mlp_net(2, 4), in_keys=["observation"], spec=spec)
explore = OptionExplorationModule(spec, num_options=options.num_options, option_prob=0.9)
other.append_transform(explore.make_tensordict_primer())
policy = TensorDictSequential(main, options, explore)
for batch in Collector(other, policy, frames_per_batch=4000, total_frames=4000):
    print(f"options chose {(batch['option'] >= 0).float().mean():.0%} of the actions")
