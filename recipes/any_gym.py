"""Any Gymnasium environment with discrete actions, or your own environment.

100,000 frames of CartPole take some minutes on one core. `ddqn` and `dceo` both reach a greedy return of 195
(results/cartpole). `dceo train env=gym …` is the same command.

    python recipes/any_gym.py env.id=CartPole-v1 agent=ddqn
    python recipes/any_gym.py env.id=MiniGrid-FourRooms-v0 agent=dceo env.max_steps=200
    python recipes/any_gym.py env.id=MiniGrid-FourRooms-v0 'env.wrappers=[minigrid.wrappers:ImgObsWrapper]'
    python recipes/any_gym.py env.id=null env.entry_point=my_module:make agent=dceo
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="gym")
