"""Speed of one full DCEO update against the same update as one jitted JAX function, measured in the same run.

Both contain the main learner (n-step Double DQN), N = 10 options, the generalized Laplacian with d = 20, one Adam for
everything and soft targets; 3x19x19 images, the paper's grid network. The options share a trunk, or have a network
each, of which all, three or one learn per update. The JAX function is written for speed: one call per update, donated
buffers, channels last, convolutions as matrix products of gathered windows (a tenth faster than XLA's own for these
sizes), the batch already on its device.

Before timing, both train from the same weights on the same batches, and their losses must agree. The contenders then
take turns; a ratio is within one round. Times are CPU times of one thread, so that other processes hardly matter. Needs
the extra ``bench``.
"""

from __future__ import annotations

import argparse
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

# Read when JAX starts: one thread, as for torch.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    print("JAX is not installed, nothing to compare with: pip install 'torchrl-dceo[bench]'")
    raise SystemExit from None
import torch
from _rounds import interleaved, ratios, shown
from tensordict import TensorDict
from torch import nn

from torchrl_dceo._fast import settled_objects, tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.envs import make_env

warnings.filterwarnings("ignore")
# Runs in this thread, which keeps its memory between calls: a thread of JAX returns it to the kernel, at batch 256
# nearly half of an update's time.
jax.config.update("jax_cpu_enable_async_dispatch", False)
OPTIONS, ACTIONS, WIDTH, SHAPE = 10, 4, 20, (3, 19, 19)
GAMMA, OPTION_GAMMA, BARRIER = 0.99, 0.95, 0.1
# By name: whether options have a network each, and how many of them learn per update.
VARIANTS: dict[str, tuple[bool, int | None]] = {
    "shared trunk": (False, None),
    "independent, all": (True, None),
    "independent, 3": (True, 3),
    "independent, 1": (True, 1),
}
Tree = Any


# The JAX side -------------------------------------------------------------------------------------


def convolved(images: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """3x3 windows, stride 2, as rows of one matrix product; ``[B, H, W, C]`` in and out."""
    size = (images.shape[1] - 3) // 2 + 1
    last = 2 * size - 1
    taps = [images[:, i : i + last : 2, j : j + last : 2] for i in range(3) for j in range(3)]
    return jax.nn.relu(jnp.concatenate(taps, -1) @ weight + bias)


def network(weights: Tree, images: jax.Array) -> jax.Array:
    """The paper's grid network on centred images."""
    hidden = convolved(images, weights["conv1"], weights["conv1_bias"])
    hidden = convolved(hidden, weights["conv2"], weights["conv2_bias"])
    hidden = hidden.reshape(hidden.shape[0], -1)
    hidden = jax.nn.relu(hidden @ weights["hidden"] + weights["hidden_bias"])
    return hidden @ weights["out"] + weights["out_bias"]


def option_values(weights: Tree, images: jax.Array, independent: bool) -> jax.Array:
    """``[B, N, A]``."""
    if independent:
        return jax.vmap(network, (0, None), 1)(weights, images)
    return network(weights, images).reshape(images.shape[0], -1, ACTIONS)


def huber(error: jax.Array) -> jax.Array:
    size = jnp.abs(error)
    return jnp.where(size < 1, 0.5 * error * error, size - 0.5)


def at(values: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, action[..., None], -1)[..., 0]


def laplacian_loss(here: jax.Array, there: jax.Array) -> jax.Array:
    """The generalized Laplacian: smoothness, and a U-statistic over all pairs for orthonormality."""
    size, dimensions = here.shape
    c = jnp.arange(dimensions, 0, -1, dtype=here.dtype)
    pairs = jnp.minimum(c[:, None], c)
    smoothness = 0.5 * jnp.square(here - there) @ c
    all_pairs = ((here @ (pairs * (here.T @ here))) * here).sum(-1)
    squares = jnp.square(here)
    self_pairs = jnp.square(squares.cumsum(-1)).sum(-1)
    orthogonality = (all_pairs - self_pairs) / (size - 1) - 2 * ((squares - 0.5) @ c)
    return (smoothness + BARRIER * orthogonality).mean()


def losses(learned: Tree, targets: Tree, trained: jax.Array | None, batch: Tree) -> Tree:
    """The summed loss, and its parts."""
    independent = trained is not None
    centred = {
        name: batch[name].astype(jnp.float32) - batch["centre"]
        for name in ("pixels", "successor", "next")
    }

    def scaled(name: str) -> jax.Array:
        return centred[name] * batch["scale"]

    both = jnp.concatenate([scaled("pixels"), scaled("successor")])
    here, there = jnp.split(network(learned["encoder"], both), 2)
    laplacian = laplacian_loss(here, there)

    # Options: potential rewards over one step, double Q-learning.
    kept = OPTION_GAMMA * (1 - batch["successor_terminated"])[:, None]
    reward = jax.lax.stop_gradient(there)[:, 1 : OPTIONS + 1] * (1 - kept)
    if independent:
        reward = reward[:, trained]
    values = option_values(learned["options"], scaled("pixels"), independent)
    fixed = jax.lax.stop_gradient(learned["options"])
    choice = option_values(fixed, scaled("successor"), independent).argmax(-1)
    later = option_values(targets["options"], scaled("successor"), independent)
    action = jnp.broadcast_to(batch["action"][:, None], values.shape[:2])
    option = huber(at(values, action) - (reward + kept * at(later, choice))).sum(-1).mean()

    # Main learner: n steps.
    factor = 2 / 255
    values = network(learned["main"], centred["pixels"] * factor)
    fixed = jax.lax.stop_gradient(learned["main"])
    choice = network(fixed, centred["next"] * factor).argmax(-1)
    later = at(network(targets["main"], centred["next"] * factor), choice)
    discount = GAMMA ** batch["steps"] * (1 - batch["terminated"])
    main = huber(at(values, batch["action"]) - (batch["reward"] + discount * later)).mean()
    parts = {"loss_laplacian": laplacian, "loss_option": option, "loss_main": main}
    return laplacian + option + main, parts


def adam(weight: Tree, slope: Tree, first: Tree, second: Tree, count: Tree, lr: float, eps: float):
    first = 0.9 * first + 0.1 * slope
    second = 0.999 * second + 0.001 * slope * slope
    root = jnp.sqrt(second / (1 - 0.999**count)) + eps
    return weight - lr / (1 - 0.9**count) * first / root, first, second


def make_step(independent: bool, per_update: int | None, lr: float, tau: float) -> Callable:
    """One jitted update: ``(state, batch) -> (state, losses)``, the state donated."""

    def stepped(state: Tree, slopes: Tree) -> Tree:
        """Adam on all networks, with the main learner's own ε."""
        count = state["count"] + 1
        out = {"learned": {}, "first": {}, "second": {}}
        for name in slopes:
            eps = 1e-5 if name == "main" else 1e-8
            for key, slope in slopes[name].items():
                values = (state[kind][name][key] for kind in out)
                weight, first, second = values
                new = adam(weight, slope, first, second, count, lr, eps)
                for kind, value in zip(out, new, strict=True):
                    out[kind].setdefault(name, {})[key] = value
        return out

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        key, draw = jax.random.split(state["key"])
        used, targets, trained = state, state["targets"], None
        if independent:
            trained = jnp.arange(OPTIONS)
            if per_update is not None:
                # The trained options are taken from the stacks, with their moments, and written back.
                trained = jax.random.permutation(draw, OPTIONS)[:per_update]
                used = {**state}
                for kind in ("learned", "first", "second", "targets"):
                    options = jax.tree.map(lambda x: x[trained], state[kind]["options"])
                    used[kind] = {**state[kind], "options": options}
                targets = used["targets"]
        slopes, parts = jax.grad(losses, has_aux=True)(used["learned"], targets, trained, batch)
        new = stepped(used, slopes)
        if per_update is not None:
            for kind, values in new.items():
                values["options"] = jax.tree.map(
                    lambda whole, part: whole.at[trained].set(part),
                    state[kind]["options"],
                    values["options"],
                )
        online = {name: new["learned"][name] for name in state["targets"]}
        moved = jax.tree.map(lambda old, now: old + tau * (now - old), state["targets"], online)
        return {**new, "targets": moved, "count": state["count"] + 1, "key": key}, parts

    return step


# Ours, and its conversion to JAX ---------------------------------------------------------------------


def make_batch(size: int, seed: int) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)

    def pixels() -> torch.Tensor:
        return torch.randint(256, (size, *SHAPE), dtype=torch.uint8, generator=generator)

    def flags() -> dict[str, torch.Tensor]:
        draws = torch.rand(2, size, 1, generator=generator) < 0.05
        return {
            "done": draws[0] | draws[1],
            "terminated": draws[0],
            "truncated": draws[1] & ~draws[0],
        }

    return TensorDict(
        {
            "pixels": pixels(),
            "action": torch.randint(ACTIONS, (size,), generator=generator),
            "steps_to_next_obs": torch.randint(1, 6, (size, 1), generator=generator),
            "successor": {"pixels": pixels(), **flags()},
            "next": {
                "pixels": pixels(),
                "reward": torch.rand(size, 1, generator=generator),
                **flags(),
            },
        },
        [size],
    )


def make_ours(independent: bool, per_update: int | None, lr: float, tau: float) -> Agent:
    env = make_env("NineRooms")
    return make_agent(
        "dceo",
        env,
        dimensions=WIDTH,
        num_options=OPTIONS,
        signs="+",
        reward_mode="potential",
        one_step_options=True,
        norm="squared",
        estimator="pairs",
        independent_networks=independent,
        options_per_update=per_update,
        gamma=GAMMA,
        option_gamma=OPTION_GAMMA,
        barrier=BARRIER,
        lr=lr,
        target_tau=tau,
    )


def as_jax(tensor: torch.Tensor) -> jax.Array:
    return jnp.asarray(tensor.detach().cpu().contiguous().numpy())


def jax_batch(batch: TensorDict, agent: Agent) -> Tree:
    """The batch with channels last, and the mean image that our agent subtracts."""

    def images(value: torch.Tensor) -> jax.Array:
        return as_jax(value.movedim(-3, -1))

    buffers = dict(agent.objectives["laplacian"].named_buffers())
    centre = next(value for name, value in buffers.items() if name.endswith("centre"))
    scale = next(value for name, value in buffers.items() if name.endswith("scale"))
    return {
        "pixels": images(batch["pixels"]),
        "successor": images(batch["successor", "pixels"]),
        "next": images(batch["next", "pixels"]),
        "action": as_jax(batch["action"].int()),
        "reward": as_jax(batch["next", "reward"].squeeze(-1)),
        "terminated": as_jax(batch["next", "terminated"].squeeze(-1).float()),
        "successor_terminated": as_jax(batch["successor", "terminated"].squeeze(-1).float()),
        "steps": as_jax(batch["steps_to_next_obs"].squeeze(-1).float()),
        "centre": images(centre),
        "scale": as_jax(scale),
    }


def jax_weights(tensors: list[torch.Tensor]) -> Tree:
    """The weights of a grid network (or of a stack of them), in the order of its layers, for channels last."""
    conv1, bias1, conv2, bias2, hidden, hidden_bias, out, out_bias = tensors

    def kernel(weight: torch.Tensor) -> torch.Tensor:
        return weight.movedim(-4, -1).movedim(-4, -2).flatten(-4, -2)  # windows, channels; outputs

    channels, width = conv2.shape[-4], hidden.shape[-1]
    side = round((width / channels) ** 0.5)
    hidden = hidden.unflatten(-1, (channels, side, side)).movedim(-3, -1).flatten(-3)
    return {
        "conv1": as_jax(kernel(conv1)),
        "conv1_bias": as_jax(bias1),
        "conv2": as_jax(kernel(conv2)),
        "conv2_bias": as_jax(bias2),
        "hidden": as_jax(hidden.mT),
        "hidden_bias": as_jax(hidden_bias),
        "out": as_jax(out.mT),
        "out_bias": as_jax(out_bias),
    }


def jax_state(agent: Agent) -> Tree:
    """Fresh moments, and our agent's weights: targets are equal to the online networks before the first update."""

    def weights(module: nn.Module) -> Tree:
        learned = [p for p in module.parameters() if p.requires_grad]
        return jax_weights(learned)

    learned = {
        "encoder": weights(agent.objectives["laplacian"]),
        "options": weights(agent.objectives["option"]),
        "main": weights(agent.objectives["main"]),
    }
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    copies = functools.partial(jax.tree.map, jnp.copy)
    return {
        "learned": learned,
        "first": zeros(learned),
        "second": zeros(learned),
        "targets": copies({"options": learned["options"], "main": learned["main"]}),
        "count": jnp.zeros((), jnp.int32),
        "key": jax.random.key(0),
    }


def disagreement(independent: bool, *, updates: int = 5, size: int = 32) -> float:
    """The largest relative difference of a loss over updates from the same weights on the same batches.

    Large steps and fast targets, so that an error in optimizer or targets would show.
    """
    torch.manual_seed(0)
    agent = make_ours(independent, None, lr=1e-3, tau=0.5)
    batches = [make_batch(size, seed) for seed in range(updates)]
    agent.objectives["centring"](batches[0])
    state, step = jax_state(agent), make_step(independent, None, lr=1e-3, tau=0.5)
    worst = 0.0
    for batch in batches:
        theirs_in = jax_batch(batch, agent)
        ours = agent.update(batch, agent.phases[0])
        state, theirs = step(state, theirs_in)
        for name, value in theirs.items():
            expected = float(ours[name])
            worst = max(worst, abs(float(value) - expected) / max(abs(expected), 1e-3))
    return worst


def make_contenders(name: str, size: int) -> dict[str, Callable[[int], object]]:
    independent, per_update = VARIANTS[name]
    torch.manual_seed(0)
    agent = make_ours(independent, per_update, lr=1e-4, tau=0.01)
    stored = make_batch(size, 0)
    agent.objectives["centring"](stored)
    held = {"state": jax_state(agent)}
    data = jax.device_put(jax_batch(stored, agent))
    step = make_step(independent, per_update, lr=1e-4, tau=0.01)

    def ours(repeats: int) -> None:
        for _ in range(repeats):
            agent.update(stored.copy(), agent.phases[0])

    def theirs(repeats: int) -> None:
        state = held["state"]
        for _ in range(repeats):
            state, _ = step(state, data)
        held["state"] = jax.block_until_ready(state)

    return {"ours": ours, "JAX": theirs}


def measure(sizes: list[int], names: list[str], rounds: int, repeats: int) -> dict:
    contenders, results = {}, {}
    for size in sizes:
        for name in names:
            for who, function in make_contenders(name, size).items():
                contenders[f"{who}, {name}, {size}"] = function
        # As in training, for both contenders: they share the process.
        with settled_objects():
            results[size] = interleaved(contenders, rounds, repeats)
        contenders = {}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="turns of every contender")
    parser.add_argument("--repeats", type=int, default=4, help="updates in a turn")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 64, 256])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--smoke", action="store_true", help="a few updates, only as a test")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.rounds, arguments.repeats, arguments.batch = 2, 1, [8]
        arguments.variants = ["shared trunk"]
    tune_process()
    for independent in (False, True):
        worst = disagreement(independent)
        kind = "independent networks" if independent else "shared trunk"
        print(f"{kind}: losses of 5 updates agree to {worst:.1e}")
        if not worst < 1e-3:
            raise SystemExit("the two updates do not compute the same losses")
    results = measure(arguments.batch, arguments.variants, arguments.rounds, arguments.repeats)
    print(f"{'':28s} {'ours, ms':>22s} {'JAX, ms':>22s} {'ours / JAX':>20s}")
    for size, seconds in results.items():
        for name in arguments.variants:
            ours, theirs = (seconds[f"{who}, {name}, {size}"] for who in ("ours", "JAX"))
            print(
                f"{f'batch {size}, {name}':28s} {shown(ours, 1e3):>22s} {shown(theirs, 1e3):>22s} "
                f"{shown(ratios(ours, theirs)):>20s}"
            )


if __name__ == "__main__":
    main()
