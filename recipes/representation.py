"""Learned against exact eigenfunctions, on a map of yours or one of the package's; about a minute of one core.

Prints the eigenvalues, learned and exact, the cosines, and which functions the data do not determine; writes tables
and figures. One setting serves every map: nothing has to be tuned.

    python recipes/representation.py map=my_map.txt
    python recipes/representation.py map=GridMaze19 objectives=allo,generalized seeds=0,1,2 out=runs/maze
    python recipes/representation.py map=GridRoom16 observation=pixels
"""

import sys

from torchrl_dceo.studies.experiments.eigenfunctions import main


def as_options(settings: list[str]) -> list[str]:
    """``key=a,b`` as the experiment's command takes it, ``--key a b``."""
    options = []
    for setting in settings:
        key, _, value = setting.partition("=")
        options += (
            [f"--{key.lstrip('-').replace('_', '-')}", *value.split(",")] if value else [setting]
        )
    if "--out" not in options:
        options += ["--out", "runs/representation"]
    return options


if __name__ == "__main__":
    sys.argv[1:] = ["objectives", *as_options(sys.argv[1:])]
    main()
