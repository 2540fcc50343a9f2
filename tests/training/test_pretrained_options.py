"""The option sets that the package brings along: they load by name, fit their environment, and do something."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from needs_miniworld import needs_miniworld

import torchrl_dceo
from torchrl_dceo.analysis import (
    find_table_env,
    followed_eigenfunctions,
    option_climb,
    state_values,
)
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import list_options, load_options

FOLDER = Path(torchrl_dceo.__file__).parent / "training" / "pretrained"
ENVS = {
    "nine_rooms": {"name": "NineRooms"},
    "maze": {"name": "Maze"},
    "escape_room": {"name": "EscapeRoom", "room_size": 3, "max_steps": 200},
}
IN_3D = {"name": "MiniWorldFourRoomsStrafe", "obs_width": 40, "obs_height": 30, "samples": 1}


def test_names_and_sizes():
    assert {*ENVS, "miniworld_four_rooms"} <= set(list_options())
    for name in list_options():
        files = list((FOLDER / name).iterdir())
        assert sum(file.stat().st_size for file in files) < 2_000_000
        assert {file.suffix for file in files} <= {".json", ".bin"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [*ENVS.items(), pytest.param("miniworld_four_rooms", IN_3D, marks=needs_miniworld)],
)
def test_they_fit_their_environment(name, settings):
    settings = dict(settings)
    env = make_env(settings.pop("name"), seed=0, **settings)
    chosen = load_options(name, env)
    values = chosen.options(env.reset())["option_action_value"]
    assert values.shape == (chosen.options.num_options, env.action_spec.space.n)
    assert chosen.encoder is not None and chosen.reward is not None
    assert not any(p.requires_grad for p in chosen.options.parameters())


def test_the_images_of_another_map_are_refused():
    with pytest.raises(ValueError, match="do not fit observations"):
        load_options("nine_rooms", make_env("NineRooms", room_size=3))


@pytest.mark.parametrize("name", ["nine_rooms", "maze"])
def test_they_climb_what_they_follow(name):
    chosen = load_options(name)
    env = find_table_env(make_env(ENVS[name]["name"], coverage=True, seed=0))
    followed = followed_eigenfunctions(chosen.reward, state_values(chosen.encoder, env))
    climb = option_climb(state_values(chosen.options, env), followed, env.next_state)
    assert climb.mean().nanmean() > 0.6


def test_damage_is_found(tmp_path):
    shutil.copytree(FOLDER / "maze", tmp_path / "maze")
    (data,) = (tmp_path / "maze").glob("*.bin")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|checksum|CRC"):
        load_options(tmp_path / "maze")


def test_a_directory_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FOLDER / "maze", tmp_path / "nine_rooms")
    assert load_options("nine_rooms").options.module is not None
    with pytest.raises(ValueError, match="do not fit observations"):
        load_options("nine_rooms", make_env("NineRooms"))


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(FileNotFoundError, match=r"did you mean 'nine_rooms'\?"):
        load_options("nine_room")
