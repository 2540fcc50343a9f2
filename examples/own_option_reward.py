"""Options with your own reward instead of eigenfunctions: here they move in four directions."""

import torch
from tensordict.nn import TensorDictModuleBase

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import train


class DirectionReward(TensorDictModuleBase):
    """Rewards option i for moving in direction i of the plane: right, down, left, up.

    It has the same arguments as EigenReward: the encoder (unused here), the number of options, and the key of the next
    state in a batch. It writes ``option_reward`` of shape [batch, num_options].
    """

    def __init__(self, encoder, num_options, *, successor):
        super().__init__()
        angles = torch.arange(num_options) * (2 * torch.pi / num_options)
        self.register_buffer("directions", torch.stack([angles.cos(), angles.sin()]))
        self.in_keys = ["observation", (successor, "observation")]
        self.out_keys = ["option_reward"]

    def forward(self, batch):
        start, end = (batch.get(key) for key in self.in_keys)
        return batch.set("option_reward", (end - start) @ self.directions)


torch.manual_seed(0)
settings = {"room_size": 3, "observation": "xy", "batch_size": 16, "coverage": True}
env = make_env("NineRooms", seed=0, visits="counts", **settings)
# On the command line: agent.option_reward=own_option_reward:DirectionReward
agent = make_agent("dceo", env, option_reward=DirectionReward, num_options=4, lr=1e-3)
train(agent, env, total_frames=8_000, learning_starts=500, update_period=8, progress=False)

options = agent.policy[1]
other = make_env("NineRooms", seed=1, starts="anywhere", slip=0.0, **settings)


def follow(option):
    return lambda td: td.set("action", options(td)["option_action_value"][:, option].argmax(-1))


for option, direction in enumerate(("right", "down", "left", "up")):
    walk = other.rollout(20, follow(option))
    moved = (walk["next", "observation"][:, -1] - walk["observation"][:, 0]).mean(0)
    print(f"{direction}: {moved[0]:+.2f} to the right, {moved[1]:+.2f} down")
