"""Frames per second of the recipe of Nine Rooms with ``speed=default`` and ``speed=throughput``, with and without bf16.

CPU time of one thread while ``dceo`` learns, all settings in turns; a ratio is within one round::

    python benchmarks/throughput.py --rounds 4
"""

from __future__ import annotations

import argparse
import warnings

from _rounds import ratios, recipe_rate, shown

from torchrl_dceo._fast import tune_process

warnings.filterwarnings("ignore")
RECIPE = ["env=nine_rooms", "agent=dceo"]
SETTINGS = {
    "default": [],
    "throughput, float32": ["speed=throughput", "agent.bf16=false"],
    "throughput, bf16": ["speed=throughput", "agent.bf16=true"],
}


def main() -> None:
    """Prints frames per second and the ratio to the default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--frames", type=int, default=2400, help="frames per turn")
    arguments = parser.parse_args()
    tune_process()
    rates: dict[str, list[float]] = {name: [] for name in SETTINGS}
    order = list(SETTINGS)
    for _ in range(arguments.rounds):
        for name in order:
            rates[name].append(recipe_rate([*RECIPE, *SETTINGS[name]], arguments.frames))
        order.append(order.pop(0))
    for name, values in rates.items():
        over = shown(ratios(values, rates["default"]))
        print(f"{name:20}  {shown(values, digits=0)} frames/s  {over} times the default")


if __name__ == "__main__":
    main()
