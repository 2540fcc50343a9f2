"""The result of a diagnosis: values of all compared parts, as a table, as a sentence and as CSV."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["MEASURES", "PARTS", "Diagnosis", "read_diagnosis"]

PARTS = {
    "random": "random walk",
    "learned": "(a) learned f, learned options",
    "solved": "(b) learned f, exact options",
    "visited": "(c) exact f of what was visited, exact options",
    "exact": "(d) exact f of the whole graph, exact options",
    "ceo": "(e) tabular CEO",
}
"""The compared parts, from nothing learned to everything exact, with their labels in tables and figures."""

# The loss between one part and the next.
_LOSSES = {
    "options": ("learned", "solved"),
    "representation": ("solved", "visited"),
    "data": ("visited", "exact"),
    "behaviour": ("exact", "ceo"),
}
MEASURES = ("goals", "states")


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`diagnose`: one value of each metric for each repeat (or run) and part.

    Attributes:
        goals (mapping of str to Tensor): goals per 1,000 steps of each part, float64 ``[R]``.
        states (mapping of str to Tensor): distinct states seen, float64 ``[R]``.
        steps (int): of each walk.
        num_states (int): the number of reachable states.
        num_visited (int): the number of states visited in training.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.analysis.diagnosis import PARTS, Diagnosis
        >>> goals = dict(zip(PARTS, torch.tensor([[0.1], [0.2], [0.5], [2.0], [2.5], [3.0]]).double()))
        >>> print(Diagnosis(goals, goals, steps=1000, num_states=9, num_visited=5).sentence())
        Of 3.00 goals per 1,000 steps (tabular CEO) the learned options keep 0.20: the representation loses 1.50, ...
    """

    goals: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    steps: int
    num_states: int
    num_visited: int
    name: str = field(default="")

    @classmethod
    def pooled(cls, each: Sequence[Diagnosis], name: str = "") -> Diagnosis:
        """Combines the diagnoses of several runs; each run's value is the mean of its repeats."""
        if not each:
            raise ValueError("pooled needs at least one diagnosis, got none")
        means = [
            {
                part: torch.stack([getattr(one, measure)[part].mean() for one in each])
                for part in PARTS
            }
            for measure in MEASURES
        ]
        visited = round(sum(one.num_visited for one in each) / len(each))
        return cls(means[0], means[1], each[0].steps, each[0].num_states, visited, name)

    def mean(self, part: str, measure: str = "goals") -> tuple[float, float]:
        """Returns the mean of a part and half the width of its 95 % interval (0 for a single value)."""
        return _mean(getattr(self, measure)[part])

    def loss(self, what: str, measure: str = "goals") -> tuple[float, float]:
        """Returns the loss due to ``"options"``, ``"representation"``, ``"data"`` or ``"behaviour"``, and its error.

        ``data`` is the loss due to unvisited parts of the graph, ``behaviour`` the gain of tabular CEO from
        updating its options while it explores.
        """
        low, high = (self.mean(part, measure) for part in _LOSSES[what])
        return high[0] - low[0], math.hypot(low[1], high[1])

    def table(self) -> str:
        """Returns one line per part: goals and states with their intervals, and the share of (c)."""
        width = max(map(len, PARTS.values()))
        lines = [f"{'':{width}}  goals per 1,000 steps    states of {self.num_states}"]
        for part, label in PARTS.items():
            (goals, goal_width), (states, width_of) = (self.mean(part, m) for m in MEASURES)
            shares = [
                f"{value / of:4.0%}" if (of := self.mean("visited", m)[0]) else "    "
                for value, m in ((goals, "goals"), (states, "states"))
            ]
            lines.append(
                f"{label:{width}}  {goals:6.2f} ± {goal_width:4.2f}  {shares[0]}     "
                f"{states:6.1f} ± {width_of:4.1f}  {shares[1]}"
            )
        return "\n".join([*lines, f"(shares of (c); visited before: {self.num_visited} states)"])

    def sentence(self, measure: str = "goals") -> str:
        """Returns one sentence with the loss of each part, the largest first."""
        unit = "goals per 1,000 steps" if measure == "goals" else f"states in {self.steps:,} steps"
        digits = 2 if measure == "goals" else 0
        order = sorted(_LOSSES, key=lambda what: -self.loss(what, measure)[0])
        top, kept = (self.mean(part, measure)[0] for part in ("ceo", "learned"))
        named = {"options": "the learning of the options", "data": "what was not visited yet"}
        parts = []
        for what in order:
            lost, half = self.loss(what, measure)
            verb = "loses" if lost >= 0 else "gains"
            around = f" (± {half:.{digits}f})" if half else ""
            parts.append(f"{named.get(what, f'the {what}')} {verb} {abs(lost):.{digits}f}{around}")
        return (
            f"Of {top:.{digits}f} {unit} (tabular CEO) the learned options keep {kept:.{digits}f}: "
            f"{', '.join(parts)}."
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes a CSV with one row per part and value; :func:`read_diagnosis` reads it."""
        target = Path(path)
        with target.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(
                ["part", "repeat", "goals_per_1000", "states", "steps", "num_states", "num_visited"]
            )
            of_all = (self.steps, self.num_states, self.num_visited)
            for part in PARTS:
                pairs = zip(self.goals[part].tolist(), self.states[part].tolist(), strict=True)
                for repeat, (goals, states) in enumerate(pairs):
                    rows.writerow([part, repeat, f"{goals:.6g}", f"{states:.6g}", *of_all])
        return target


def _mean(values: Tensor) -> tuple[float, float]:
    half = 1.96 * float(values.std()) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(values.mean()), half


def read_diagnosis(path: str | os.PathLike[str]) -> Diagnosis:
    """Reads a file of :meth:`Diagnosis.write`.

    Examples:
        >>> import pathlib, tempfile, torch
        >>> from torchrl_dceo.analysis.diagnosis import PARTS, Diagnosis, read_diagnosis
        >>> values = {part: torch.tensor([1.0, 2.0]).double() for part in PARTS}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Diagnosis(values, values, 100, 9, 5).write(pathlib.Path(folder, "diagnosis.csv"))
        ...     read_diagnosis(path).mean("learned")[0]
        1.5
    """
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or "goals_per_1000" not in rows[0]:
        raise ValueError(f"{path} holds no diagnosis: make one with `dceo diagnose`")
    columns: list[dict[str, Tensor]] = [
        {
            part: torch.tensor([float(row[name]) for row in rows if row["part"] == part]).double()
            for part in PARTS
        }
        for name in ("goals_per_1000", "states")
    ]
    steps, num_states, visited = (
        int(rows[0][name]) for name in ("steps", "num_states", "num_visited")
    )
    return Diagnosis(columns[0], columns[1], steps, num_states, visited)
