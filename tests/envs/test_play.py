"""Playing by hand, with the keys given by the test."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import gymnasium as gym
import pygame
import pytest

from torchrl_dceo.envs import play as play_module
from torchrl_dceo.envs.minigrid import KeyDoorEnv, NineRooms, env_id
from torchrl_dceo.envs.play import decode_keys, draw_ansi, main, play


def test_keys_play_the_environment_to_its_end_and_on():
    env = KeyDoorEnv(["#####", "#K SD", "#####"], slip=0.0)
    said = []
    returns = play(env, [*"apdtd", "x", "left", "q", "left"], said.append, seed=0)
    assert returns == [1.0, 0.0]
    assert "wasd or arrows move, p pick up, t toggle, r restart, q quit" in said[0]
    assert "right · reward 1" in said[5]
    assert "the episode is over" in said[5]
    assert said[6:] == ["a new episode", "step 1 of 200 · left · reward 0 · state 1"]


def test_restart_and_unknown_keys():
    env = NineRooms(slip=0.0)
    said = []
    assert play(env, ["s", "r", "p"], said.append, seed=0) == [0.0, 0.0]
    assert said[2] == "a new episode"
    assert said[3].startswith(
        "'p' does nothing · wasd or arrows move, r restart"
    )  # no objects here
    assert env.step_count == 0


def test_only_our_environments_can_be_played():
    with pytest.raises(ValueError, match="needs one of the MiniGrid environments, got CartPoleEnv"):
        play(gym.make("CartPole-v1"), [], print)


def test_terminal_codes():
    assert decode_keys("\x1b[A\x1b[B\x1bOC\x1b[D") == ["up", "down", "right", "left"]
    assert decode_keys("Wq\x1b") == ["w", "q", "escape"]
    assert decode_keys("\x03") == ["escape"]


def test_picture_shows_the_objects_and_the_hidden_goal():
    env = NineRooms()
    env.reset(seed=0)
    lines = draw_ansi(env).splitlines()
    assert len(lines) == 19
    assert "48;2;255;0;0" in lines[1]  # the agent, top right
    assert lines[17].count("48;2;0;255;0") == 1  # the goal, bottom left
    room = KeyDoorEnv(["#####", "#KSBD", "#####"], slip=0.0)
    room.reset(seed=0)
    assert all(letters in draw_ansi(room) for letters in ("k ", "@ ", "::", "D "))
    room.step(4)
    assert "@k" in draw_ansi(room)
    assert "k " not in draw_ansi(room).replace("@k", "")


def test_list(capsys):
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.split()[0] == "NineRooms"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Labyrinth"], "unknown environment 'Labyrinth'; choose from NineRooms, FourRooms, Maze"),
        (["Maze"], "stdin is not a terminal: run this in one, or pass --window"),
        ([], "name an environment to play: NineRooms, FourRooms"),
    ],
)
def test_errors_are_one_sentence(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_in_a_real_terminal():
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "torchrl_dceo.envs.play", "NineRooms", "--slip", "0"]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True)
    os.write(ours, b"s\x1b[Dq")
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0
    assert "step 1 of 100 · down · reward 0" in out
    assert "step 2 of 100 · left · reward 0" in out
    assert "step 3" not in out


def test_in_a_window(monkeypatch, capsys):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    made, original = [], gym.make

    def make(*args, **kwargs):
        env = original(env_id("NineRooms"), slip=0.0, render_mode="human", screen_size=64)
        env.reset(seed=0)  # opens the window, so that it can get events
        for key in (pygame.K_DOWN, pygame.K_a, pygame.K_q):
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))
        made.append(env.unwrapped)
        return env

    monkeypatch.setattr(play_module.gym, "make", make)
    assert main(["NineRooms", "--window"]) == 0
    assert made[0].step_count == 2
    assert "step 2 of 100 · left" in capsys.readouterr().out
