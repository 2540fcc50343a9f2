"""What a mutation is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One place broken on purpose.

    Attributes:
        name (str): what becomes wrong.
        file (str): inside the package.
        old (str): what stands there, exactly once in the file.
        new (str): what is put in its place.
        tests (tuple of str): inside ``tests/``, files or ``file.py::test``, each as narrow as it can be.
        why_it_may_survive (str): for a mutation that changes nothing that can be seen.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why_it_may_survive: str = ""
