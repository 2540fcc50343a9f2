"""``make chaos``: kills, damages and starves runs of every kind, and prints how many held.

A run holds if, interrupted any number of times, it ends as the run that never was: the same parameters, moments,
replay, generators and log, to the last bit (with workers: the same frames and rows). A fault holds if the run ends with
exit code 1, one sentence and nothing but finite numbers on disk. Exit code 1 if anything does not hold.
"""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from training_runs import Runs, difference, final_state, logged_frames, rows  # noqa: E402

from torchrl_dceo.training import Checkpoints  # noqa: E402

TWO = {"num_options": 2, "dimensions": 3, "batch_size": 8}
KINDS: dict[str, dict[str, Any]] = {
    "dceo": {"agent": "dceo", "frames": 2400},
    "dceo_two_phase": {
        "agent": "dceo_two_phase",
        "frames": 2400,
        "agent_settings": {"discovery_frames": 1100},
    },
    "rnd": {"agent": "rnd", "frames": 2400},
    "rainbow": {"agent": "rainbow", "frames": 1800},
    "cube with a table": {
        "agent": "dceo",
        "frames": 2400,
        "name": "RubiksCube222",
        "env_settings": {"max_depth": 3},
        "agent_settings": {"main_learner": "table", "network": "mlp"},
    },
    "multi_sync": {
        "agent": "dceo",
        "frames": 2400,
        "collector": "multi_sync",
        "num_workers": 2,
        "worker_steps": 10,
    },
}
# Its workers take seconds to start: fewer attempts, and no comparison to the last bit.
WORKERS = "multi_sync"
STUDY = "study"
FAULTS = {
    "reward nan": {"fault": "reward", "value": "nan"},
    "reward inf": {"fault": "reward", "value": "inf"},
    "reward -inf": {"fault": "reward", "value": "-inf"},
    "observation nan": {"fault": "observation", "value": "nan"},
    "observation inf": {"fault": "observation", "value": "inf"},
    "step size 1e30": {},
}
WAITING = 120.0  # seconds for a run to get where it shall be killed


class Table:
    """Counts what was tried and what held, by kind of run and of attack."""

    def __init__(self) -> None:
        self.tries: dict[tuple[str, str], int] = defaultdict(int)
        self.failures: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.kills = 0

    def add(self, kind: str, attack: str, failure: str | None, tries: int = 1) -> None:
        """Counts; ``failure`` says what did not hold."""
        self.tries[kind, attack] += tries
        if failure:
            self.failures[kind, attack].append(failure)
            print(f"FAILED {kind}, {attack}: {failure}", flush=True)

    def show(self) -> bool:
        """Prints the table; returns whether everything held."""
        print(f"\n{'run':20s}{'attack':28s}{'tries':>7s}{'held':>7s}{'failures':>10s}")
        for (kind, attack), tries in self.tries.items():
            bad = len(self.failures[kind, attack])
            print(f"{kind:20s}{attack:28s}{tries:7d}{tries - bad:7d}{bad:10d}")
        bad = sum(map(len, self.failures.values()))
        tries = sum(self.tries.values())
        print(f"{'all':48s}{tries:7d}{tries - bad:7d}{bad:10d}   ({self.kills} kills)")
        return not bad


class Chaos:
    """One kind of run after another, in a folder of its own.

    Args:
        folder (Path): where everything goes.
        seed (int): of the moments and the places of damage.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.draw = random.Random(seed)
        self.table = Table()
        self.runs = Runs()
        self._whole: dict[str, tuple[Path, float]] = {}

    def whole(self, kind: str) -> tuple[Path, float]:
        """The run that is never interrupted, and how long it takes."""
        if kind not in self._whole:
            path, began = self.folder / "whole" / kind.replace(" ", "_"), time.monotonic()
            self.runs.run(run_dir=path, **KINDS[kind])
            self._whole[kind] = path, time.monotonic() - began
        return self._whole[kind]

    def difference(self, kind: str, run_dir: Path) -> str | None:
        """What is not as in the run that was never interrupted."""
        whole, _ = self.whole(kind)
        if kind == WORKERS:
            frames = [[row["frames"] for row in rows(path)] for path in (run_dir, whole)]
            return None if frames[0] == frames[1] else f"rows {frames[0]}"
        if rows(run_dir) != rows(whole):
            return "the logs differ"
        return difference(final_state(run_dir), final_state(whole))

    # Kills

    def kill(self, kind: str, kills: int) -> None:
        """SIGKILL at random moments, every second one in the middle of a checkpoint, until the run has ended."""
        done = 0
        while done < kills:
            run_dir = self.folder / f"killed_{kind.replace(' ', '_')}_{done}"
            killed = 0
            # Several in one run; the last attempt is left alone.
            for _ in range(min(4, kills - done)):
                status = self._attempt(kind, run_dir, signal.SIGKILL, in_save=bool(killed % 2))
                if status != -signal.SIGKILL:
                    break
                killed += 1
            failure = self._finish(kind, run_dir)
            done += max(1, killed)
            self.table.kills += killed
            self.table.add(kind, "SIGKILL", failure, max(1, killed))
            shutil.rmtree(run_dir, ignore_errors=True)

    def _attempt(self, kind: str, run_dir: Path, number: int, *, in_save: bool = False) -> int:
        frames = self.draw.randrange(100, KINDS[kind]["frames"], 100)
        before = logged_frames(run_dir)
        target = min(KINDS[kind]["frames"] - 100, max(frames, before + 100))
        process = self.runs.start(run_dir=run_dir, resume="auto", **KINDS[kind])
        deadline = time.monotonic() + WAITING
        while time.monotonic() < deadline and _runs(process):
            if logged_frames(run_dir) >= target and (not in_save or _saving(run_dir)):
                break
            time.sleep(0.0005 if in_save else 0.002)
        if not in_save:
            time.sleep(self.draw.uniform(0, 0.05))
        if _runs(process):
            os.kill(process, number)
        return self.runs.wait()

    def _finish(self, kind: str, run_dir: Path) -> str | None:
        self.runs.start(run_dir=run_dir, resume="auto", **KINDS[kind])
        status = self.runs.wait()
        return f"exit code {status}" if status else self.difference(kind, run_dir)

    def stop(self, kind: str, number: signal.Signals) -> None:
        """SIGTERM or SIGINT: saved first, and the right exit code."""
        run_dir = self.folder / f"stopped_{kind.replace(' ', '_')}_{number.name}"
        status = self._attempt(kind, run_dir, number)
        failure = None
        if status not in (0, 128 + number):
            failure = f"exit code {status} after {logged_frames(run_dir)} frames"
        elif status:
            steps = Checkpoints(run_dir / "checkpoints").steps()
            if not steps or steps[-1] < logged_frames(run_dir):
                failure = f"checkpoints {steps} with {logged_frames(run_dir)} frames in the log"
        failure = failure or self._finish(kind, run_dir)
        self.table.add(kind, number.name, failure)
        shutil.rmtree(run_dir, ignore_errors=True)

    # Damage

    def damage(self, kind: str, most: int) -> None:
        """Each damage on a copy of a run that has ended: resumed it ends as it did, or is refused, unchanged."""
        whole, _ = self.whole(kind)
        damages = list(_damages(whole, self.draw))
        self.draw.shuffle(damages)
        for name, apply, refused in damages[:most]:
            copy = self.folder / "damaged"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole, copy)
            apply(copy)
            before = _files(copy)
            self.runs.start(
                run_dir=copy, resume=True, stderr=str(self.folder / "stderr"), **KINDS[kind]
            )
            status = self.runs.wait()
            if refused:
                said = (self.folder / "stderr").read_text().strip().splitlines()
                changed = _files(copy) != before
                failure = f"exit code {status}" if status != 1 else None
                failure = failure or ("files changed" if changed else None)
                failure = failure or (f"said {said}" if "Traceback" in "".join(said) else None)
            else:
                failure = f"exit code {status}" if status else self.difference(kind, copy)
            self.table.add(kind, "damage", f"{name}: {failure}" if failure else None)

    # Starvation and faults

    def starve(self, kind: str) -> None:
        """Files cannot grow beyond a size: one sentence, exit code 1, and the run ends as it should once they can."""
        whole, _ = self.whole(kind)
        largest = max(p.stat().st_size for p in whole.rglob("*.bin"))
        for limit in (largest // 2, 300):
            run_dir, said = self.folder / "starved", self.folder / "stderr"
            shutil.rmtree(run_dir, ignore_errors=True)
            self.runs.start(run_dir=run_dir, file_limit=limit, stderr=str(said), **KINDS[kind])
            status, lines = self.runs.wait(), said.read_text().strip().splitlines()
            sentence = [line for line in lines if "full" in line]
            failure = None
            if status != 1 or not (sentence or limit < 1000):
                failure = f"exit code {status}, said {lines[-1:]}"
            elif any(
                p.name.isdigit() and not (p / "state.json").exists() for p in _folders(run_dir)
            ):
                failure = "half a checkpoint is left"
            self.table.add(kind, "no space", failure or self._finish(kind, run_dir))

    def fault(self, name: str, agent: str) -> None:
        """Numbers that are not finite: a sentence, exit code 1, finite checkpoints, no finite row lost."""
        run_dir, said = self.folder / "faulty", self.folder / "stderr"
        shutil.rmtree(run_dir, ignore_errors=True)
        settings = {"lr": 1e30} if not FAULTS[name] else {}
        if agent.startswith("dceo"):
            settings |= {"num_options": 2, "dimensions": 3}
        fault = {"fault_step": 150, "fault_env": 3, **FAULTS[name]}
        self.runs.start(
            run_dir=run_dir,
            agent=agent,
            frames=2400,
            fault=fault,
            agent_settings=settings,
            stderr=str(said),
        )
        status = self.runs.wait()
        lines = said.read_text().strip().splitlines()
        word = "diverged" if not FAULTS[name] else "environment 3 gave"
        failure = None
        if status != 1 or not any(word in line for line in lines):
            failure = f"exit code {status}, said {lines[-1:]}"
        for folder in _folders(run_dir):
            state = Checkpoints(folder.parent).load_latest()
            if not _finite({key: state[key] for key in ("agent", "learning", "replay")}):
                failure = f"{folder} is not finite"
        self.table.add(agent, name, failure)

    # A study

    def study(self, kills: int) -> None:
        """SIGKILL of a whole study and all its processes, then once more to the end."""
        out = self.folder / "study"
        command = [sys.executable, "-W", "ignore", "-m", "torchrl_dceo", "study", "run", "online"]
        command += [
            "--preset",
            "smoke",
            "--no-figure",
            "--jobs",
            "1",
            "--keep-checkpoints",
            "--out",
        ]
        logs = {}
        for name in ("whole", "killed"):
            folder = out / name
            for _ in range(kills if name == "killed" else 0):
                process = _start([*command, str(folder)])
                time.sleep(self.draw.uniform(4, 15))
                _kill_group(process)
                self.table.kills += 1
            process = _start([*command, str(folder)])
            status = process.wait()
            if status:
                self.table.add(STUDY, "SIGKILL", f"exit code {status}", max(1, kills))
                return
            paths = sorted(folder.rglob("progress.csv"))
            logs[name] = [(str(p.relative_to(folder)), rows(p.parent)) for p in paths]
        same = logs["whole"] == logs["killed"] and logs["whole"]
        self.table.add(STUDY, "SIGKILL", None if same else "the logs differ", max(1, kills))


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _saving(run_dir: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any(
        p.name.isdigit() and not (p / "state.json").exists()
        for p in (run_dir / "checkpoints").glob("*")
    )


def _folders(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("[0-9]*"))


def _files(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    for name in ("run.lock", "error.txt"):
        found.pop(name, None)
    return found


def _finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or bool(value.isfinite().all())
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


Damage = tuple[str, Callable[[Path], None], bool]


def _damages(run_dir: Path, draw: random.Random) -> Iterator[Damage]:
    """All damages: what it is, how it is done, and whether the run must then be refused."""

    def change(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            path = folder / name
            path.write_bytes(edit(path.read_bytes()))

        return apply

    def flipped(data: bytes) -> bytes:
        place = draw.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]

    def directory(name: str) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            (folder / name).unlink()
            (folder / name).mkdir()

        return apply

    def remove(name: str) -> Callable[[Path], None]:
        return lambda folder: (folder / name).unlink()

    newest = _folders(run_dir)[-1]
    names = [str(path.relative_to(run_dir)) for path in sorted(newest.iterdir())]
    for name in names:
        yield f"{name} flipped", change(name, flipped), False
        yield f"{name} cut", change(name, lambda data: data[: len(data) // 2]), False
        yield f"{name} empty", change(name, lambda data: b""), False
        yield f"{name} removed", remove(name), False
        yield f"{name} a directory", directory(name), False
    log = "progress.csv"
    yield "log removed", remove(log), False
    yield "log cut", change(log, lambda data: data[: len(data) // 2]), False
    yield "log binary", change(log, lambda data: bytes(range(256)) * 20), False
    yield "log longer", change(log, lambda data: data + b"some words\n"), False
    yield "run.json removed", remove("run.json"), False
    yield "run.json garbage", change("run.json", lambda data: b"{"), False
    yield "run.lock a number", change("run.lock", lambda data: b"1\n"), False
    yield "no checkpoints", lambda f: shutil.rmtree(f / "checkpoints"), True
    yield (
        "no index",
        lambda f: [(p / "state.json").unlink() for p in _folders(f)] and None,
        True,
    )
    yield (
        "all damaged",
        lambda f: [(p / "state.json").write_bytes(b"x") for p in _folders(f)] and None,
        True,
    )


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all that it started, in sessions of their own or not."""
    family, children = [process.pid], defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children[int(fields[1])].append(int(path.parent.name))
    for pid in family:
        family += children[pid]
    for pid in family:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def main(arguments: list[str] | None = None) -> int:
    """Runs all attacks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=210, help="SIGKILLs in all")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, STUDY], help="kinds of runs")
    parser.add_argument("--damages", type=int, default=1000, help="damages of each kind, at most")
    parser.add_argument("--faults", nargs="*", default=["ddqn", "dceo", "rainbow"], help="agents")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    exact = [kind for kind in options.kinds if kind not in (WORKERS, STUDY)]
    shares = {WORKERS: 0.08, STUDY: 0.04}
    rest = 1 - sum(shares[kind] for kind in shares if kind in options.kinds)
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), options.seed)
        try:
            for agent in options.faults:
                for name in FAULTS:
                    chaos.fault(name, agent)
            for kind in options.kinds:
                share = shares.get(kind, rest / max(1, len(exact)))
                kills = math.ceil(options.kills * share) if options.kills else 0
                if kind == STUDY:
                    chaos.study(kills)
                    continue
                chaos.kill(kind, kills)
                for number in (signal.SIGTERM, signal.SIGINT):
                    chaos.stop(kind, number)
                if kind != WORKERS:
                    chaos.damage(kind, options.damages)
                    chaos.starve(kind)
        finally:
            chaos.runs.close()
        return 0 if chaos.table.show() else 1


if __name__ == "__main__":
    sys.exit(main())
