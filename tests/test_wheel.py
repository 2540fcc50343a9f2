"""The wheel alone, in a virtual environment of its own and an empty folder: all that runs is in it; and the sdist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest

import torchrl_dceo

ROOT = Path(__file__).parents[1]
SHORT = (
    "env.room_size=3",
    "num_envs=4",
    "learning_starts=100",
    "update_period=20",
    "log_period=100",
    "eval_period=200",
    "eval_episodes=2",
    "progress=false",
)
pytestmark = pytest.mark.slow  # called by .ci/run: `make test-wheel`


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Nothing of the checkout may be found.
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """What the wheel is made from, without what earlier builds left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "torchrl_dceo",
        source / "torchrl_dceo",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return source


def build_wheel(source: Path, out: Path) -> Path:
    build = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = run(sys.executable, *build, "-w", out, source, cwd=out)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of a virtual environment with the wheel, and with this one's packages for all that it needs."""
    folder = tmp_path_factory.mktemp("env")
    assert run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder).returncode == 0
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    # A plain path: files of this environment's own that would lead to the checkout are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = ["-m", "pip", "--python", folder / "bin" / "python", "install", "-q"]
    done = run(sys.executable, *pip, "--no-deps", "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def test_the_wheel_holds_what_it_runs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "torchrl_dceo"
    data = [
        path
        for path in package.rglob("*")
        if path.suffix in (".yaml", ".txt", ".html", ".js", ".css")
    ]
    assert len(data) > 20
    assert {str(path.relative_to(ROOT)) for path in data} <= names
    assert not [name for name in names if name.startswith(("tests", "recipes", "research"))]
    assert f"torchrl_dceo-{torchrl_dceo.__version__}-" in wheel.name


def test_the_sdist_makes_the_same_wheel_and_an_index_would_take_both(source, wheel, tmp_path):
    done = run(
        sys.executable,
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "-o",
        tmp_path,
        source,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    done = run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=tmp_path)
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    (tmp_path / "out").mkdir()
    again = build_wheel(unpacked, tmp_path / "out")
    assert again.name == wheel.name
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_the_package_is_that_of_the_wheel(installed, tmp_path):
    done = run(
        installed / "python", "-c", "import torchrl_dceo as t; print(t.__file__)", cwd=tmp_path
    )
    assert Path(done.stdout.strip()).is_relative_to(installed.parent), done.stderr


@pytest.mark.parametrize("agent", ["dceo", "ddqn"])
def test_trains_resumes_and_draws(installed, agent, tmp_path):
    words = ["env=nine_rooms", f"agent={agent}", *SHORT, "total_frames=200", "run_dir=mine"]
    done = run(installed / "dceo", "train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(installed / "dceo", "train", "resume=mine", "total_frames=300", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "300 frames" in done.stdout
    done = run(installed / "python", "-m", "torchrl_dceo", "plot", "mine", cwd=tmp_path)
    assert done.returncode == 0 and "learning_curve.png" in done.stdout, done.stderr


GYM = ("env=gym", "agent=dceo", "learning_starts=200", "log_period=100", "eval_episodes=2")


@pytest.mark.parametrize("name", ["CartPole-v1", "MiniGrid-FourRooms-v0"])
def test_a_foreign_environment_is_killed_resumed_and_used(installed, name, tmp_path):
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [*GYM, f"env.id={name}", "total_frames=20_000", "checkpoint_period=200", "run_dir=mine"]
    process = subprocess.Popen(
        [str(installed / "dceo"), "train", *words], cwd=tmp_path, env=clean,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    saved = tmp_path / "mine" / "checkpoints"
    while time.monotonic() < deadline and not list(saved.glob("*/state.json")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    process.kill()  # SIGKILL
    process.communicate()
    frames = 200 * (1 + max(int(path.name.split("_")[-1]) for path in saved.iterdir()) // 200)
    end = ["resume=mine", f"total_frames={frames}", "progress=false"]
    done = run(installed / "dceo", "train", *end, cwd=tmp_path)
    assert done.returncode == 0 and f"{frames:,} frames, greedy return" in done.stdout, done.stderr
    done = run(installed / "dceo", "evaluate", "mine", "--episodes", "3", cwd=tmp_path)
    assert done.returncode == 0 and f"dceo after {frames} frames" in done.stdout, done.stderr
    film = ["render", "mine", "--option", "3", "--steps", "20", "-o", "film.mp4"]
    done = run(installed / "dceo", *film, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "film.mp4").stat().st_size > 1000, done.stderr
    done = run(installed / "dceo", "plot", "mine", "--format", "pdf", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for figure in ("learning_curve", "visits", "options"):
        assert (tmp_path / "mine" / f"{figure}.pdf").read_bytes().startswith(b"%PDF"), figure


def test_lists_what_can_be_named(installed, tmp_path):
    done = run(installed / "dceo", "list", cwd=tmp_path)
    assert done.returncode == 0 and {"nine_rooms", "dceo", "online"} <= set(done.stdout.split())


def test_a_study_in_an_empty_folder(installed, tmp_path):
    words = ["-m", "torchrl_dceo", "study", "run", "online", "--preset", "smoke", "--no-figure"]
    done = run(installed / "python", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_trained_options_are_in_the_wheel(installed, tmp_path):
    lines = (
        "from torchrl_dceo.envs import make_env",
        "from torchrl_dceo.training import load_options",
        "env = make_env('NineRooms', seed=0)",
        "print(load_options('nine_rooms', env).options(env.reset())['option_action_value'].shape)",
    )
    done = run(installed / "python", "-c", "; ".join(lines), cwd=tmp_path)
    assert done.returncode == 0 and "[10, 4]" in done.stdout, done.stderr
