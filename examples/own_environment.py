"""Train an agent in your own environment: any Gymnasium or TorchRL environment with discrete actions."""

import tempfile

import gymnasium
import numpy as np
import torch

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import prepare_env
from torchrl_dceo.training import load_agent, train


class Corridor(gymnasium.Env):
    """A walk along a corridor of 12 squares; the reward is at its end.

    The image is [H, W, C] as usual in Gymnasium, here 3 x 12 x 1. From this shape the channel dimension is ambiguous.
    """

    observation_space = gymnasium.spaces.Box(0, 255, (3, 12, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.square = self.steps = 0
        return self._image(), {}

    def step(self, action):
        self.steps += 1
        self.square = int(np.clip(self.square + (1 if action == 1 else -1), 0, 11))
        found = self.square == 11
        return self._image(), float(found), found, self.steps == 60, {}

    def _image(self):
        image = np.zeros((3, 12, 1), np.uint8)
        image[1, self.square] = 255
        return image


torch.manual_seed(0)
# prepare_env adds missing entries. Here we set the image layout and count visited states.
env = prepare_env(Corridor(), layout="hwc", visits="counts")
agent = make_agent("dceo", env, num_options=1, signs="both", lr=1e-3, eps_frames=2000)
with tempfile.TemporaryDirectory() as run_dir:
    row = train(
        agent,
        env,
        total_frames=4000,
        eval_env=prepare_env(Corridor(), layout="hwc"),
        eval_period=4000,
        learning_starts=200,
        run_dir=run_dir,
        progress=False,
    )
    print(f"{row['coverage']:.0f} squares visited, greedy return {row['eval_return']:.0f}")
    # Load the policy, its options and their encoder.
    learned = load_agent(run_dir, env)
print(f"{learned.options.num_options} options over {list(learned.encoder.in_keys)}")
