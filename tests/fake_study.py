"""A study of fake runs, started as a person does: shared by the tests of studies."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent


class FakeStudy:
    """A study with fake training runs, started as a person does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "fake.py"
        shutil.copyfile(HERE / "studies" / "fake_training.py", self.program)
        self.declare()

    def declare(self, total: int = 50, pause: float = 0.0, seeds: int = 2) -> None:
        (self.folder / "study.py").write_text(
            "from torchrl_dceo.studies import Grid, Preset, Study\n"
            f"grid = Grid('fake', ['dceo', 'ddqn'], {seeds}, {total}, ['pause={pause}'], label='toy', "
            f"program={str(self.program)!r})\n"
            "STUDY = Study('fake', 'A fake', 'Does it run?', {'laptop': Preset('tiny', [grid])})\n"
        )

    def arguments(self, command: str, *given: str) -> list[str]:
        return [command, str(self.folder / "study.py"), "--out", str(self.folder / "out"), *given]

    def start(self, *given: str, command: str = "run") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "torchrl_dceo", "study", *self.arguments(command, *given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            # A suite that a shell runs in its background would pass on that Ctrl-C is to be ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def run(self, agent: str, seed: int) -> Path:
        return self.folder / "out" / "fake" / "laptop" / "runs" / "toy" / agent / f"seed_{seed}"

    def starts(self, agent: str, seed: int) -> list[str]:
        path = self.run(agent, seed) / "starts"
        return path.read_text().split() if path.is_file() else []

    def faults(self, *lines: str) -> None:
        environment = self.run("dceo", 0).parents[1]
        environment.mkdir(parents=True, exist_ok=True)
        (environment / "faults").write_text("\n".join(lines))

    def mend(self) -> None:
        (self.run("dceo", 0).parents[1] / "mended").touch()


def wait_for(condition, seconds: float = 60.0) -> None:
    """Waits until something is so; fails if it never is."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)
