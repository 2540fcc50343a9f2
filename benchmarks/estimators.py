"""Variance of the gradient with the two estimators of orthogonality at equal forward passes, as a ratio.

For three representations f on GridRoom16 (almost untrained, half-way, trained) the gradient with respect to the network
is computed for many batches of each size. Prints the variance of the "split" gradient over that of "pairs", summed over
all parameters. Both encode every state and every successor of a batch once.
"""

from __future__ import annotations

import argparse

import torch
from tensordict import TensorDict

from torchrl_dceo._fast import tune_process
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.maps import find_map
from torchrl_dceo.objectives import ALLOLoss, GeneralizedLaplacianLoss
from torchrl_dceo.studies.experiments import Pairs, collect_pairs
from torchrl_dceo.studies.experiments.representation import (
    RepresentationConfig,
    learn_representation,
)

BATCHES = 100
LOSSES = {
    "generalized": lambda encoder, kind: GeneralizedLaplacianLoss(
        encoder, barrier=0.075, estimator=kind
    ),
    "allo": lambda encoder, kind: ALLOLoss(encoder, barrier=0.2, estimator=kind),
}


def gradient_variance(loss, pairs: Pairs, size: int) -> float:
    """Variance of the gradient over batches, summed over the parameters."""
    generator = torch.Generator().manual_seed(0)
    parameters = [p for p in loss.parameters() if p.requires_grad]
    mean = [torch.zeros_like(p) for p in parameters]
    square = 0.0
    for _ in range(BATCHES):
        drawn = torch.randint(len(pairs.states), (size,), generator=generator)
        batch = TensorDict(
            {"state_id": pairs.states[drawn], "next": {"state_id": pairs.successors[drawn]}}, [size]
        )
        gradients = torch.autograd.grad(loss(batch)["loss_laplacian"], parameters)
        square += sum(float(g.square().sum()) for g in gradients)
        torch._foreach_add_(mean, gradients)
    torch._foreach_div_(mean, BATCHES)
    squared_mean = sum(float(m.square().sum()) for m in mean)
    return (square / BATCHES - squared_mean) * BATCHES / (BATCHES - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--updates", type=int, nargs="+", default=[1, 300, 1500], help="of f before it is measured"
    )
    parser.add_argument("--samples", type=int, default=100_000, help="pairs of states")
    arguments = parser.parse_args()
    tune_process()
    world = GridWorldEnv(find_map("GridRoom16"), observation="xy", coverage=True)
    pairs = collect_pairs(world, arguments.samples, episode_steps=10, discount=0.9)
    print(f"{'objective':>12} {'updates':>8} {'batch':>6} {'variance split / pairs':>24}")
    for name, make in LOSSES.items():
        for steps in arguments.updates:
            config = RepresentationConfig(
                objective=name, samples=arguments.samples, steps=steps, ritz="none"
            )
            encoder = learn_representation(config).encoder
            for size in (32, 256):
                split, both = (
                    gradient_variance(make(encoder, kind), pairs, size)
                    for kind in ("split", "pairs")
                )
                print(f"{name:>12} {steps:>8} {size:>6} {split / both:>24.1f}", flush=True)


if __name__ == "__main__":
    main()
