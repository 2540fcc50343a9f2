"""Options as macro actions of a Gymnasium environment, used by a DQN agent of Stable-Baselines3."""

import importlib.util
import tempfile

import gymnasium
import torch

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs.gym import OptionActionWrapper
from torchrl_dceo.training import load_options, save_options, train

torch.manual_seed(0)
env = gymnasium.make("CartPole-v1")
# Options do not use the reward of the environment. A few thousand steps are enough for an example.
agent = make_agent("dceo", env, num_options=2, lr=5e-4, eps_end=1.0)
train(agent, env, total_frames=3000, learning_starts=500, progress=False)

with tempfile.TemporaryDirectory() as path:
    save_options(path, agent)
    options = load_options(path).options

# Two actions of the environment, followed by one macro action per option.
wrapped = OptionActionWrapper(gymnasium.make("CartPole-v1"), options, option_duration=5)
observation, _ = wrapped.reset(seed=0)
for option in range(options.num_options):
    *_, info = wrapped.step(2 + option)
    print(f"option {option + 1} took {info['option_steps']} steps")
    wrapped.reset()

if importlib.util.find_spec("stable_baselines3") is None:
    print("Stable-Baselines3 is not installed; run pip install stable-baselines3 to train its DQN")
else:
    from stable_baselines3 import DQN

    model = DQN("MlpPolicy", wrapped, learning_starts=100, seed=0).learn(2000)
    actions = [int(model.predict(wrapped.reset()[0])[0]) for _ in range(5)]
    print(f"first actions of its policy: {actions}")
