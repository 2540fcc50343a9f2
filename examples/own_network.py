"""Your own network for the main learner and the options, and another one for the representation."""

import torch
from torch import nn

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import train


def small_network(shape, out_features):
    """Called with the shape of an observation (here 3 x 13 x 13, centred floats) and the number of outputs."""
    return nn.Sequential(
        nn.Flatten(-3), nn.Linear(shape.numel(), 64), nn.SiLU(), nn.Linear(64, out_features)
    )


class TwoStreams(nn.Module):
    """Any module works, here the sum of two streams."""

    def __init__(self, shape, out_features):
        super().__init__()
        self.wide = nn.Sequential(nn.Flatten(-3), nn.Linear(shape.numel(), out_features))
        self.deep = small_network(shape, out_features)

    def forward(self, pixels):
        return self.wide(pixels) + self.deep(pixels)


torch.manual_seed(0)
env = make_env("NineRooms", room_size=3, batch_size=8, seed=0, visits="counts")
# On the command line: agent.network=own_network:small_network agent.encoder=own_network:TwoStreams
agent = make_agent("dceo", env, network=small_network, encoder=TwoStreams, num_options=4)
row = train(agent, env, total_frames=1600, learning_starts=500, progress=False)
parameters = sum(p.numel() for p in agent.parameters() if p.requires_grad)
print(f"{parameters} parameters, {row['updates']} updates, {row['coverage']} states visited")
