"""``make mutants``: breaks the code on purpose, one place at a time, and runs the tests that must notice.

Each mutation of :mod:`mutants.catalogue` is applied alone to a copy of the tree, and the test files that it names are
run until the first failure. A mutation that no test notices has survived. Exit code 1 if more than 3 % survive, or a
survivor has no explanation.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from mutants.catalogue import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
_COPIED = (
    "torchrl_dceo",
    "tests",
    "examples",
    "recipes",
    "docs",
    "README.md",
    "pyproject.toml",
    "conftest.py",
)
_TIMEOUT = 300  # seconds; an endless loop counts as noticed
_ENOUGH = 0.97


@dataclass(frozen=True)
class Outcome:
    """What the tests said of one mutation."""

    mutation: Mutation
    caught: bool
    seconds: float
    first_failure: str


def check(mutations: list[Mutation]) -> list[str]:
    """Sentences about mutations that cannot be applied: the code has changed since they were written."""
    problems = []
    for mutation in mutations:
        path = ROOT / "torchrl_dceo" / mutation.file
        if not path.is_file():
            problems.append(f"{mutation.name}: there is no {mutation.file}")
            continue
        found = path.read_text().count(mutation.old)
        if found != 1:
            problems.append(
                f"{mutation.name}: {mutation.old!r} stands {found} times in {mutation.file}"
            )
        problems += [
            f"{mutation.name}: there is no {test}"
            for test in mutation.tests
            if not (ROOT / "tests" / test.split("::")[0]).exists()
        ]
    return problems


def run(mutation: Mutation, tree: Path) -> Outcome:
    """Applies a mutation to a copy of the tree, runs its tests, and takes it back."""
    path = tree / "torchrl_dceo" / mutation.file
    original = path.read_text()
    started = time.monotonic()
    path.write_text(original.replace(mutation.old, mutation.new))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "--no-header",
        "-p",
        "no:cacheprovider",
    ]
    command += [str(Path("tests") / test) for test in mutation.tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        result = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_TIMEOUT
        )
        failures = [
            line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
        ]
        # 1: a test failed; 2: a module could not even be imported. Anything else is no verdict of the tests.
        if result.returncode not in (0, 1, 2):
            raise RuntimeError(
                f"{mutation.name}: pytest ended with {result.returncode}: {result.stdout[-500:]}"
            )
        caught, first = result.returncode != 0, failures[0].split(" - ")[0] if failures else ""
    except subprocess.TimeoutExpired:
        caught, first = True, "timeout"
    finally:
        path.write_text(original)
    return Outcome(mutation, caught, time.monotonic() - started, first)


def run_all(mutations: list[Mutation], jobs: int) -> list[Outcome]:
    """Runs every mutation, ``jobs`` at a time, each job in a copy of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        trees: Queue[Path] = Queue()
        for job in range(jobs):
            tree = Path(scratch) / str(job)
            tree.mkdir()
            for name in _COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(
                        source, tree / name, ignore=shutil.ignore_patterns("__pycache__")
                    )
                elif source.exists():
                    shutil.copy(source, tree / name)
            trees.put(tree)

        def one(mutation: Mutation) -> Outcome:
            tree = trees.get()
            try:
                outcome = run(mutation, tree)
            finally:
                trees.put(tree)
            word = "caught  " if outcome.caught else "SURVIVED"
            print(
                f"{word} {outcome.seconds:5.0f} s  {mutation.name}  {outcome.first_failure}",
                flush=True,
            )
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutations))


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time")
    parser.add_argument(
        "--only", default="", help="only mutations whose name or file contains this"
    )
    parser.add_argument(
        "--check", action="store_true", help="only see whether each one can be applied"
    )
    options = parser.parse_args()
    mutations = [m for m in MUTATIONS if options.only in m.name or options.only in m.file]
    problems = check(mutations)
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    if options.check:
        print(f"{len(mutations)} mutations can be applied")
        return 0
    started = time.monotonic()
    outcomes = run_all(mutations, options.jobs)
    survivors = [outcome.mutation for outcome in outcomes if not outcome.caught]
    rate = 1 - len(survivors) / len(outcomes)
    minutes = (time.monotonic() - started) / 60
    print(
        f"\n{len(outcomes) - len(survivors)} of {len(outcomes)} mutations caught ({rate:.1%}) in {minutes:.0f} min"
    )
    for mutation in survivors:
        print(f"survivor: {mutation.name}: {mutation.why_it_may_survive or 'NOT EXPLAINED'}")
    unexplained = any(not mutation.why_it_may_survive for mutation in survivors)
    return int(unexplained or rate < _ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
