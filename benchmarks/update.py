"""Speed of one full DCEO update: main learner, 10 options and Laplacian, batch 32, 3x19x19 pixels, the grid network.

``--images 3d`` uses 3x30x40 pixels and the small network of the 3D recipes instead.

Prints ratios, measured in one run on one thread:

(i)  to N independent networks in a Python loop, each with its own loss and optimizer, and the Laplacian by a Python
     loop over prefixes, as in the authors' code, on torch's own layers (``fused`` off); and to itself with the private
     optimisations switched off ("plain", ``TORCHRL_DCEO_FAST=0``);
(ii) to the update's matrix-multiply and convolution FLOPs at this machine's measured peak, and, to explain the rest, to
     the bare passes through the same networks: no losses, no tensordicts, no optimizer.

The contenders take short turns, so that noise affects all of them; a ratio is the median of the turns' own ratios, and
a time the median of the turns. Every contender runs an update before it is timed. Times are CPU times of the process:
with one thread, wall time without that of other processes.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from _rounds import ratios, shown
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch.utils.flop_counter import FlopCounterMode
from torchrl.data import Categorical
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

from torchrl_dceo._fast import fast_path, tune_process
from torchrl_dceo._fast.actors import GreedyActor
from torchrl_dceo._fast.convolution import affine
from torchrl_dceo._fast.losses import DoubleDQNLoss
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.modules.networks import ConvNet, grid_net, small_nature_net

warnings.filterwarnings("ignore")
BATCH, OPTIONS, ACTIONS, WIDTH, GAMMA = 32, 10, 4, 20, 0.99
NetFn = Callable[[int], ConvNet]
# By the name of the images: their shape, the network, and its name in an agent's settings.
IMAGES: dict[str, tuple[tuple[int, int, int], Callable[..., ConvNet], str]] = {
    "grid": ((3, 19, 19), grid_net, "grid"),
    "3d": ((3, 30, 40), small_nature_net, "nature_small"),
}
SHAPE, MAKE, NAME = IMAGES["grid"]
SPEC = Categorical(ACTIONS)


def choose(images: str) -> None:
    """Sets the images and the network of all contenders."""
    global SHAPE, MAKE, NAME
    SHAPE, MAKE, NAME = IMAGES[images]


def the_net(out_features: int) -> ConvNet:
    """The network of the chosen images."""
    return MAKE(SHAPE, out_features)


def world() -> GridWorldEnv:
    """An environment with the chosen images: an open room, one pixel per cell."""
    _, height, width = SHAPE
    empty = "#" + " " * (width - 2) + "#"
    rows = [empty] * (height - 2)
    rows[0], rows[-1] = "#S" + empty[2:], empty[:-2] + "G#"
    return GridWorldEnv("\n".join(["#" * width, *rows, "#" * width]))


def plain_net(out_features: int) -> ConvNet:
    """The same network on torch's own layers."""
    net = the_net(out_features)
    net.fused = False
    return net


def make_batch() -> TensorDict:
    def pixels() -> torch.Tensor:
        return torch.randint(256, (BATCH, *SHAPE), dtype=torch.uint8)

    flags = torch.rand(2, BATCH, 1) < 0.05
    ends = {"done": flags[0] | flags[1], "terminated": flags[0]}
    return TensorDict(
        {
            "pixels": pixels(),
            "action": torch.randint(ACTIONS, (BATCH,)),
            "steps_to_next_obs": torch.randint(1, 6, (BATCH, 1)),
            "successor": {"pixels": pixels(), **ends},
            "next": {"pixels": pixels(), "reward": torch.rand(BATCH, 1), **ends},
        },
        [BATCH],
    )


def make_encoder(net: NetFn = the_net) -> TensorDictModule:
    return TensorDictModule(net(WIDTH), in_keys=["pixels"], out_keys=["representation"])


def make_main_loss(net: NetFn = the_net, *, plain: bool = False) -> DQNLoss:
    main = (QValueActor if plain else GreedyActor)(net(ACTIONS), in_keys=["pixels"], spec=SPEC)
    make = functools.partial(DQNLoss, double_dqn=True) if plain else DoubleDQNLoss
    loss = make(main, loss_function="smooth_l1")
    loss.make_value_estimator(gamma=GAMMA)
    return loss


def trainable(*losses: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for loss in losses for p in loss.parameters() if p.requires_grad]


def our_update(
    *, independent: bool = False, fast: bool = True, bf16: bool = False
) -> Callable[[], None]:
    """An agent's update: one optimizer, all options in one pass; fast, or with TorchRL's own code."""
    agent = make_agent(
        "dceo",
        world(),
        network=NAME,
        num_options=OPTIONS,
        dimensions=WIDTH,
        signs="+",
        independent_networks=independent,
        lr=1e-4,
        bf16=bf16,
    )
    stored = make_batch()

    def update() -> None:
        with fast_path(fast):
            agent.update(stored.copy(), agent.phases[0])

    return update


def looped_update() -> Callable[[], None]:
    """N networks, losses and optimizers in a Python loop; the Laplacian by a loop over prefixes."""
    encoder, main_loss = make_encoder(plain_net), make_main_loss(plain_net, plain=True)
    option_losses = [make_main_loss(plain_net, plain=True) for _ in range(OPTIONS)]
    losses = [main_loss, *option_losses, encoder]
    optimizers = [torch.optim.Adam(trainable(loss), lr=1e-4) for loss in losses]
    stored = make_batch()
    f = encoder.module

    def laplacian(batch: TensorDict) -> torch.Tensor:
        start, end = f(batch["pixels"]), f(batch["successor", "pixels"])
        u, v = start.chunk(2)
        total = torch.zeros(())
        for i in range(1, WIDTH + 1):
            total = total + 0.5 * (start[:, :i] - end[:, :i]).square().sum(-1).mean()
            inner = (u[:, :i] * v[:, :i]).sum(-1).square()
            norms = torch.log1p(u[:, :i].norm(dim=-1)) + torch.log1p(v[:, :i].norm(dim=-1))
            total = total + (inner - norms).mean()
        return total

    def step(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def update() -> None:
        batch = stored.copy()
        step(main_loss(batch)["loss"], optimizers[0])
        for i, loss in enumerate(option_losses):
            with torch.no_grad():
                reward = f(batch["next", "pixels"])[:, i] - f(batch["pixels"])[:, i]
            own = batch.copy()
            own["next", "reward"] = reward.unsqueeze(-1)
            step(loss(own)["loss"], optimizers[i + 1])
        step(laplacian(batch), optimizers[-1])

    return update


def bare_passes() -> Callable[[], None]:
    """The forward and backward passes that an update with a shared trunk needs."""
    nets = [
        (the_net(width), the_net(width)) for width in (ACTIONS, OPTIONS * ACTIONS)
    ]  # online, target
    encoder = the_net(WIDTH)
    batch = make_batch()
    start, following = batch["pixels"], batch["next", "pixels"]
    successor = batch["successor", "pixels"]

    def passes() -> None:
        total = encoder(torch.cat([start, successor])).sum()
        for online, target in nets:
            total = total + online(start).sum()
            with torch.no_grad():
                online(following)
                target(following)
        total.backward()
        for net in (encoder, *(online for online, _ in nets)):
            net.zero_grad()

    return passes


def cpu_seconds(function: Callable[[], object], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - start) / repeats


def peak_flops(size: int = 1024) -> float:
    """The best rate of a large matrix product, torch's own or oneDNN's, in FLOP/s."""
    a, b = torch.rand(size, size), torch.rand(size, size)
    products = (lambda: a @ b, lambda: affine(a, b))
    return max(2 * size**3 / cpu_seconds(product, 3) for product in products for _ in range(5))


def count_flops() -> int:
    """The fewest FLOPs of the shared-trunk update: the passes through its three networks, nothing twice.

    Counted on torch's own layers: the counter supports no others.
    """

    def passes(net: torch.nn.Module, batch: int, backward: bool) -> int:
        x = torch.rand(batch, *SHAPE)
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
            out = net(x)
            if backward:
                out.sum().backward()
        return counter.get_total_flops()

    total = 0
    for width in (ACTIONS, OPTIONS * ACTIONS):  # values of s_t; then of s_{t+m}, online and target
        total += passes(plain_net(width), BATCH, True) + 2 * passes(plain_net(width), BATCH, False)
    # f of s_t and its successor with gradient; option rewards read the same.
    return total + passes(plain_net(WIDTH), 2 * BATCH, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=30, help="turns of every contender")
    parser.add_argument("--images", choices=list(IMAGES), default="grid")
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    global BATCH
    BATCH = arguments.batch
    choose(arguments.images)
    tune_process()
    torch.manual_seed(0)
    contenders = {
        "shared trunk": our_update(),
        "shared trunk, bf16": our_update(bf16=True),
        "shared trunk, plain": our_update(fast=False),
        "stacked independent": our_update(independent=True),
        "stacked, plain": our_update(independent=True, fast=False),
        "python loop": looped_update(),
        "bare passes": bare_passes(),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    bounds, flops = [], count_flops()
    for update in contenders.values():
        cpu_seconds(update, 3)
    for _ in range(arguments.turns):
        bounds.append(flops / peak_flops())
        for name, update in contenders.items():
            update()
            times[name].append(cpu_seconds(update, 1 if name == "python loop" else 4))

    for name, values in times.items():
        print(f"{name:20s} {1e3 * statistics.median(values):7.2f} ms per update")

    def ratio(above: list[float], below: list[float]) -> str:
        return f"{shown(ratios(above, below)):>18s}"

    shared, low, plain_shared, stacked, plain_stacked, loop, bare = times.values()
    bound = statistics.median(bounds)
    print(f"(i)  python loop / shared trunk        {ratio(loop, shared)}  (target: at least 6x)")
    print(f"(i)  python loop / stacked independent {ratio(loop, stacked)}  (target: at least 1.5x)")
    print(f"     plain / fast, shared trunk        {ratio(plain_shared, shared)}")
    print(f"     float32 / bf16, shared trunk      {ratio(shared, low)}")
    print(f"     plain / fast, stacked independent {ratio(plain_stacked, stacked)}")
    print(
        f"(ii) {flops / 1e6:.0f} MFLOP at {flops / bound / 1e9:.0f} GFLOP/s take {1e3 * bound:.2f} ms"
    )
    print(f"(ii) shared trunk / that bound         {ratio(shared, bounds)}  (aim: at most 1.5x)")
    print(f"     bare network passes / that bound  {ratio(bare, bounds)}")
    print(f"     shared trunk / bare passes        {ratio(shared, bare)}")


if __name__ == "__main__":
    main()
