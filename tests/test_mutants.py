"""Every mutation of ``make mutants`` can be applied to the code as it is now."""

from __future__ import annotations

from dataclasses import replace

from mutants.__main__ import check
from mutants.catalogue import MUTATIONS


def test_every_mutation_can_be_applied():
    assert check(MUTATIONS) == []


def test_there_is_one_for_every_part():
    parts = [mutation.file.split("/")[0] for mutation in MUTATIONS]
    assert len(parts) >= 60
    for part in ("_fast", "objectives", "modules", "data", "agents", "training", "tabular"):
        assert parts.count(part) >= 5


def test_what_cannot_be_applied_is_named():
    one = MUTATIONS[0]
    assert check([replace(one, file="objectives/gone.py")]) == [
        f"{one.name}: there is no objectives/gone.py"
    ]
    assert "stands 0 times" in check([replace(one, old="no such line")])[0]
    assert "stands" in check([replace(one, old="\n")])[0]
    assert check([replace(one, tests=(f"{one.tests[0]}_of_old",))]) == [
        f"{one.name}: there is no {one.tests[0]}_of_old"
    ]
    assert check([replace(one, tests=())]) == [f"{one.name}: it names no test"]
    assert check([replace(one, new=one.old)]) == [f"{one.name}: it changes nothing"]
    assert check([one, one]) == [f"{one.name}: the name is taken twice"] * 2
