"""Compare learned and exact eigenfunctions on your own map or one of the package; about a minute on one core.

Prints learned and exact eigenvalues, the cosines, and the functions that the data do not determine. Writes tables and
figures. The same settings work for every map.

    python recipes/representation.py map=my_map.txt
    python recipes/representation.py map=GridMaze19 objectives=allo,generalized seeds=0,1,2 out=runs/maze
    python recipes/representation.py map=GridRoom16 observation=pixels
"""

import sys

from torchrl_dceo.studies.experiments.eigenfunctions import main


def as_options(settings: list[str]) -> list[str]:
    """Converts ``key=a,b`` to the options of the experiment, ``--key a b``."""
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
