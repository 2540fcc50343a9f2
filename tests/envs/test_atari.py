from __future__ import annotations

import ale_py
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.agents import make_agent
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import (
    StateCounts,
    find_transform,
    get_env_state,
    make_env,
    num_states,
    set_env_state,
)
from torchrl_dceo.envs.atari import MONTEZUMA, Console, RamMap, game_names, rom_path
from torchrl_dceo.envs.atari.env import AreaResize, AtariEnv, PlayerRecord
from torchrl_dceo.training import train
from torchrl_dceo.training.evaluation import evaluate


def _play(env, actions, **kwargs):
    """A rollout with given actions ``[T, *B]``."""
    sequence = iter(actions)
    return env.rollout(len(actions), lambda td: td.set("action", next(sequence).clone()), **kwargs)


def _random_actions(env, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(env.action_spec.space.n, (steps, *env.batch_size), generator=generator)


def _named(env, *plan):
    return torch.stack([env.action_index(name) for name, times in plan for _ in range(times)])


class TestPreprocessing:
    """Against the emulator, driven frame by frame with no sticky actions."""

    @pytest.mark.parametrize("frame_skip", [1, 4])
    def test_skip_pool_grey_stack(self, frame_skip):
        steps = 40
        env = AtariEnv("MontezumaRevenge", sticky=0.0, frame_skip=frame_skip, seed=0)
        actions = _random_actions(env, steps)
        data = _play(env, actions)
        assert not data["next", "done"].any()

        ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", 0.0)
        ale.loadROM(rom_path("MontezumaRevenge"))
        ale.reset_game()
        resize = AreaResize((210, 160), (84, 84))
        # The grey of the emulator is the luminance of its colours.
        grey = (ale.getScreenRGB() @ np.array([0.2989, 0.5870, 0.1140])).round()
        assert np.abs(grey - ale.getScreenGrayscale()).max() <= 1
        seen = [resize(torch.from_numpy(ale.getScreenGrayscale()))]
        for action in actions.tolist():
            screens = []
            for _ in range(frame_skip):
                ale.act(ale.getMinimalActionSet()[action])
                screens.append(ale.getScreenGrayscale())
            seen.append(resize(torch.from_numpy(np.maximum.reduce(screens[-2:]))))
        for t in range(steps + 1):
            stack = torch.stack([seen[max(0, t - back)] for back in (3, 2, 1, 0)])
            ours = data["pixels"][t] if t < steps else data["next", "pixels"][-1]
            assert ours.equal(stack), t
        assert data["next", "pixels"][:-1].equal(data["pixels"][1:])

    def test_pooling_matters(self):
        """In Space Invaders shots are drawn in some frames only: the test above would see it if none were pooled."""
        env = AtariEnv("SpaceInvaders", sticky=0.0, frame_skip=4, seed=0)
        _play(env, _random_actions(env, 60))
        console = env.consoles[0]
        last = console.ale.getScreenGrayscale()
        assert (console.screen >= last).all() and (console.screen != last).any()

    def test_size_and_stack(self):
        env = AtariEnv("Pong", size=42, frame_stack=2, seed=0)
        check_env_specs(env)
        assert env.rollout(3)["pixels"].shape == (3, 2, 42, 42)

    def test_replay_rebuilds_the_stacks(self):
        env = make_env("MontezumaRevenge", batch_size=2, seed=0, max_steps=7)
        data = env.rollout(30, break_when_any_done=False)
        replay = make_replay_buffer(200, num_streams=2, frame_stack=4, n_steps=3)
        rows = replay.extend(data).flatten()
        batch = replay.transitions()
        assert len(batch) == 2 * 29  # the newest step of either has no successor yet
        stored = data.reshape(-1)[[int((rows == row).nonzero()) for row in batch["index"]]]
        assert batch["pixels"].equal(stored["pixels"])
        assert batch["successor", "pixels"].equal(stored["next", "pixels"])
        assert replay.storage[0]["pixels"].shape == (1, 84, 84)


class TestStickyActions:
    def test_a_frame_keeps_the_last_action_with_that_probability(self):
        """Only the choice is ours: actions 1, 2, 3, … in single frames, and what reaches the emulator."""

        class Emulator:
            def __init__(self):
                self.played = []

            def act(self, action):
                self.played.append(action)
                return 0

            def game_over(self):
                return False

            def getScreenGrayscale(self, screen):
                pass

        console = Console(rom_path("Pong"), frame_skip=4, sticky=0.25, seed=0)
        console.ale = emulator = Emulator()
        for action in range(1, 5001):
            console.step(action)
        played = torch.tensor(emulator.played).view(5000, 4)
        chosen = torch.arange(1, 5001).view(-1, 1)
        # The last frame of a step still plays the action before with probability p^4.
        for frame in range(4):
            late = (played[:, frame] != chosen[:, 0]).double().mean()
            expected = 0.25 ** (frame + 1)
            assert abs(late - expected) < 4 * (expected / 5000) ** 0.5, frame
        # What is played is never anything but the chosen action or the one played before.
        flat, wanted = played.flatten(), chosen.expand(-1, 4).flatten()
        assert ((flat[1:] == wanted[1:]) | (flat[1:] == flat[:-1])).all()

    def test_seeds(self):
        def walk(seed, sticky=0.25):
            env = AtariEnv("MontezumaRevenge", seed=seed, sticky=sticky)
            return _play(env, _random_actions(env, 120), break_when_any_done=False)["position"]

        assert walk(0).equal(walk(0)) and not walk(0).equal(walk(1))
        assert walk(0, 0.0).equal(walk(1, 0.0))

    def test_environments_of_a_batch_differ(self):
        env = AtariEnv("MontezumaRevenge", seed=0, batch_size=[2])
        actions = _random_actions(env, 120)
        actions[:, 1] = actions[:, 0]
        position = _play(env, actions, break_when_any_done=False)["position"]
        assert not position[0].equal(position[1])


class TestPositions:
    """Panama Joe's room and position, by fixed actions."""

    def test_start(self):
        data = make_env("MontezumaRevenge", seed=0).reset()
        assert int(data["room"]) == int(data["state_id"]) == 1
        assert data["position"].tolist() == [77, 235]

    def test_walks_and_the_ladder(self):
        env = AtariEnv("MontezumaRevenge", sticky=0.0, seed=0)
        right = _play(env, _named(env, ("RIGHT", 2)))["next", "position"]
        assert right.tolist() == [[81, 235], [85, 235]]
        left = _play(env, _named(env, ("LEFT", 2)))["next", "position"]
        assert left.tolist() == [[73, 235], [69, 235]]
        down = _play(env, _named(env, ("DOWN", 12)))["next", "position"]
        y = down[:, 1]
        assert (
            down[y > 192, 0] == 77
        ).all()  # straight down the ladder, onto a belt that moves to the left
        assert (y[1:] <= y[:-1]).all() and y[-1] == 192  # the platform beneath
        up = _play(env, _named(env, ("DOWN", 8), ("UP", 12)))["next", "position"]
        assert up[7, 1] < 235 and up[-1].tolist() == [77, 235]

    def test_the_figure_on_the_screen_is_where_memory_says(self):
        """The pixels that change by a step lie around x, and go with it."""
        env = AtariEnv("MontezumaRevenge", sticky=0.0, seed=0)
        for name, sign in (("RIGHT", 1), ("LEFT", -1)):
            env.reset()
            before = env.render()
            data = _play(env, _named(env, (name, 2)), auto_reset=False, tensordict=env.reset())
            upper = slice(70, 95)  # the rows of the start's platform: the skull rolls far below
            changed = (env.render() != before).any(-1)[upper].any(0).nonzero()
            x = int(data["next", "position"][-1, 0])
            edge = changed.max() if sign > 0 else changed.min()
            assert abs(int(edge) - x) <= 8 and sign * (x - 77) > 0

    def test_rooms_and_coverage(self):
        env = make_env("MontezumaRevenge", seed=0, sticky=0.0, visits="coverage")
        data = env.reset()
        assert num_states(env) == 24 and int(data["coverage"]) == 1
        console = env.base_env.consoles[0]
        for room, covered in ((5, 2), (1, 2), (7, 3)):
            console.ale.setRAM(MONTEZUMA.room, room)
            data = env.step(data.set("action", torch.tensor(0)))["next"]
            assert int(data["room"]) == int(data["state_id"]) == room
            assert int(data["coverage"]) == covered
        assert find_transform(env, StateCounts).visited.nonzero().flatten().tolist() == [1, 5, 7]

    def test_own_addresses_and_whole_memory(self):
        env = AtariEnv("Pong", positions=RamMap(None, 49, 54), ram=True, batch_size=[2], seed=0)
        check_env_specs(env)
        data = env.rollout(30)
        assert data["ram"].shape == (2, 30, 128)
        assert data["position"].equal(data["ram"][..., [49, 54]].long())
        assert not data["room"].any() and env.num_states == 1

    def test_games_without_known_addresses(self):
        env = make_env("Atari/Pong", seed=0, visits="coverage")
        data = env.rollout(3)
        assert "room" not in data.keys() and not data["state_id"].any()
        assert (data["next", "coverage"] == 1).all()


class TestEpisodes:
    def test_truncation(self):
        env = make_env("MontezumaRevenge", seed=0, max_steps=5, batch_size=2)
        data = env.rollout(12, break_when_any_done=False)
        ends = [4, 9]
        for key in ("done", "truncated"):
            assert data["next", key][0, :, 0].nonzero().flatten().tolist() == ends
        assert not data["next", "terminated"].any()
        # A new game, and a stack of its first picture.
        assert data["position"][:, 5].tolist() == [[77, 235]] * 2
        assert (data["pixels"][:, 5] == data["pixels"][:, 5, :1]).all()
        assert make_env("MontezumaRevenge").base_env.max_steps == 27_000

    def test_the_end_of_the_game_terminates(self):
        env = AtariEnv("MontezumaRevenge", seed=0, sticky=0.0, max_steps=None)
        env.reset()
        data = _play(env, _named(env, ("RIGHT", 400)), break_when_any_done=True)
        assert data["next", "terminated"][-1] and not data["next", "truncated"].any()
        assert env.consoles[0].ale.lives() == 0  # falls off the platform, six times

    def test_a_life_may_end_the_episode(self):
        env = AtariEnv("MontezumaRevenge", seed=0, sticky=0.0, life_ends=True)
        fall = _named(env, ("RIGHT", 60))
        data = _play(env, fall)
        assert data["next", "terminated"][-1] and len(data) < 60
        assert env.consoles[0].ale.lives() == 5 and not env.consoles[0].ale.game_over()
        whole = AtariEnv("MontezumaRevenge", seed=0, sticky=0.0)
        assert not _play(whole, fall)["next", "done"].any()
        env.reset()
        assert env.consoles[0].ale.lives() == 6  # a new game

    def test_only_one_of_a_batch_is_reset(self):
        env = AtariEnv("MontezumaRevenge", batch_size=[2], sticky=0.0, seed=0)
        data = _play(env, _named(env, ("LEFT", 3)))[:, -1]["next"].select("pixels", "position")
        data["_reset"] = torch.tensor([[False], [True]])
        after = env.reset(data.clone())
        assert after["position"].tolist() == [data["position"][0].tolist(), [77, 235]]
        assert after["pixels"][0].equal(data["pixels"][0])
        assert (after["pixels"][1] == after["pixels"][1, :1]).all()

    def test_rewards_are_clipped_and_returns_are_true(self):
        def play(**kwargs):
            env = make_env("Atari/SpaceInvaders", seed=0, **kwargs)
            return _play(env, _random_actions(env, 300), break_when_any_done=False)["next"]

        clipped, true = play(), play(clip_rewards=False)
        assert true["reward"].max() > 1
        assert clipped["reward"].equal(true["reward"].clamp(-1, 1))
        assert clipped["episode_reward"].equal(true["episode_reward"])
        assert not play(coverage=True)["reward"].any()

    def test_evaluation_reports_the_true_return(self):
        env = make_env("Atari/SpaceInvaders", seed=0, batch_size=2, max_steps=120, sticky=0.0)
        fire = env.base_env.action_index("FIRE")
        data = env.rollout(120, lambda td: td.set("action", fire))["next"]
        expected = float(data["episode_reward"][:, -1].mean())
        assert expected > float(data["reward"].sum(1).mean()) > 0
        assert evaluate(lambda td: td.set("action", fire), env) == expected


class TestResume:
    def test_the_continuation_is_the_same_bit_for_bit(self):
        def settings():
            return make_env("MontezumaRevenge", seed=0, batch_size=2, max_steps=90)

        env = settings()
        actions = _random_actions(env, 200)
        data = env.reset()
        for action in actions[:53]:
            _, data = env.step_and_maybe_reset(data.set("action", action))
        saved, carried = get_env_state(env), data.clone()
        whole = _play(
            env, actions[53:], auto_reset=False, tensordict=data, break_when_any_done=False
        )
        assert whole["next", "done"].any()

        other = make_env("MontezumaRevenge", seed=7, batch_size=2, max_steps=90)
        other.rollout(3)
        set_env_state(other, saved)
        again = _play(
            other, actions[53:], auto_reset=False, tensordict=carried, break_when_any_done=False
        )
        assert (whole == again).all()

    @pytest.mark.parametrize("sticky", [0.25, 0.9])
    def test_the_action_that_sticks_is_saved(self, sticky):
        """What the emulator itself serialises leaves it out: seen after most steps if every frame may be one."""
        path = rom_path("MontezumaRevenge")
        ours, other = (Console(path, frame_skip=1, sticky=sticky, seed=s) for s in (0, 1))
        ours.reset()
        other.reset()
        generator = np.random.default_rng(0)
        for _ in range(100):
            for action in generator.integers(18, size=3):
                ours.step(int(action))
            other.set_state(ours.get_state())
            action = int(generator.integers(18))
            assert ours.step(action) == other.step(action)
            assert (ours.ram == other.ram).all()

    def test_before_the_first_reset(self):
        env, other = (make_env("MontezumaRevenge", seed=seed) for seed in (0, 1))
        set_env_state(other, get_env_state(env))
        actions = _random_actions(env, 100)
        assert (_play(env, actions) == _play(other, actions)).all()

    def test_another_shape_is_refused(self):
        saved = get_env_state(make_env("MontezumaRevenge", batch_size=2))
        with pytest.raises(ValueError, match=r"saved images have shape \[2, 4, 84, 84\]"):
            set_env_state(make_env("MontezumaRevenge"), saved)


class TestSettings:
    def test_names(self):
        assert len(game_names()) > 100 and make_env("Atari/MsPacman").base_env.game == "MsPacman"
        with pytest.raises(ValueError, match=r"'Montezuma' .did you mean 'MontezumaRevenge'"):
            make_env("Atari/Montezuma")
        with pytest.raises(ValueError, match="unknown Atari game 'qqq'; see"):
            make_env("Atari/qqq")

    def test_actions(self):
        assert AtariEnv("Freeway").action_names == ["NOOP", "UP", "DOWN"]
        assert len(AtariEnv("Freeway", full_actions=True).action_names) == 18
        with pytest.raises(ValueError, match="Freeway has no action 'LEFT'; it has NOOP, UP, DOWN"):
            AtariEnv("Freeway").action_index("LEFT")

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ({"sticky": 1.5}, r"sticky must lie in \[0, 1\], got 1.5"),
            ({"frame_skip": 0}, "frame_skip must be at least 1, got 0"),
            ({"frame_stack": 0}, "frame_stack must be at least 1, got 0"),
            ({"max_steps": 0}, "max_steps must be at least 1"),
            ({"size": 161}, "new_size must have 1 to 160 columns, got 161"),
        ],
    )
    def test_bad_values(self, setting, message):
        with pytest.raises(ValueError, match=message):
            AtariEnv("Pong", **setting)


class TestPlayerRecord:
    def test_counts_places_and_games_that_scored(self):
        """Against the entries of the rollout, listed one by one."""
        env = make_env("MontezumaRevenge", batch_size=2, seed=0, visits="counts", max_steps=30)
        data = _play(env, _random_actions(env, 100), break_when_any_done=False)
        after = data["next"]
        places = {
            (int(step["room"][i]), *step["position"][i].tolist())
            for step in (*data.unbind(-1), *after.unbind(-1))
            for i in range(2)
        }
        record = find_transform(env, PlayerRecord)
        assert len(places) > 20
        assert record.row() == {"positions": len(places), "scored_share": 0.0}
        assert record.row() == {"positions": len(places)}  # no game has ended since

    def test_share_is_of_the_games_that_ended(self):
        env = make_env(
            "Atari/Freeway",
            batch_size=2,
            seed=0,
            max_steps=250,
            positions=(None, 14, 14),
            visits="counts",
        )
        up = env.base_env.action_index("UP")
        # One chicken crosses the road, the other waits: one score of two.
        _play(env, (up * torch.tensor([1, 0])).expand(250, 2), break_when_any_done=False)
        assert find_transform(env, PlayerRecord).row()["scored_share"] == 0.5

    def test_rooms_are_told_apart(self):
        record = PlayerRecord(num_rooms=3)
        one = TensorDict({"position": torch.tensor([[5, 6], [5, 6]])}, [2])
        record._reset(one, one.set("room", torch.tensor([0, 2])))
        assert record.row() == {"positions": 2}
        record._reset(
            one, one.set("room", torch.tensor([2, 9]))
        )  # a byte that is no room is the last one
        assert record.row() == {"positions": 3}

    def test_is_saved_with_the_environment(self):
        env = make_env("MontezumaRevenge", seed=0, visits="counts", max_steps=10)
        _play(env, _random_actions(env, 15), break_when_any_done=False)
        other = make_env("MontezumaRevenge", seed=1, visits="counts", max_steps=10)
        other.load_state_dict(env.state_dict())
        rows = [find_transform(one, PlayerRecord).row() for one in (other, env)]
        assert rows[0] == rows[1] and rows[0]["positions"] > 1 and "scored_share" in rows[0]

    def test_only_where_places_are_known_and_counted(self):
        assert find_transform(make_env("MontezumaRevenge"), PlayerRecord) is None
        assert find_transform(make_env("Atari/Pong", visits="counts"), PlayerRecord) is None

    def test_is_in_the_log_of_a_run(self, tmp_path):
        env = make_env("MontezumaRevenge", batch_size=2, seed=0, visits="counts", max_steps=20)
        agent = make_agent("rainbow", env, network="nature_small")
        row = train(
            agent, env, total_frames=100, learning_starts=90, log_period=50, eval_episodes=0,
            run_dir=tmp_path, progress=False, eval_period=1000,
        )  # fmt: skip
        assert row["positions"] > 1 and row["scored_share"] == 0.0 and row["coverage"] == 1
