"""The page docs/environments/index.md: its numbers are those of the environments."""

from __future__ import annotations

import re
from pathlib import Path

from torchrl_dceo.envs import list_envs, make_env, num_states
from torchrl_dceo.envs.miniworld_headless import why_not

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "environments" / "index.md").read_text(encoding="utf-8")


def test_every_environment_has_a_row_with_its_numbers():
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(#[\w-]+\) \| (.*)$", PAGE, re.MULTILINE))
    assert set(rows) == set(list_envs())
    for name, row in rows.items():
        first_person = name.startswith(("MiniWorld", "MyWayHome"))
        if first_person and why_not() is not None:
            continue
        env = make_env(name)
        states, actions, sees, shortest, limit = (cell.strip(" |") for cell in row.split(" | "))
        if first_person:
            assert int(re.sub(r"\D", "", states)) == num_states(env)
            assert int(actions[0]) == env.action_spec.space.n == (4 if "Strafe" in name else 3)
            assert [int(n) for n in re.findall(r"\d+", sees)] == list(
                env.observation_spec["pixels"].shape
            )
            assert int(limit.replace(",", "")) == env.base_env.gym_env.max_episode_steps
            continue
        assert int(re.sub(r"\D", "", states)) == num_states(env)
        if name == "MontezumaRevenge":
            assert int(re.sub(r"\D", "", actions)) == env.action_spec.space.n
            assert [int(n) for n in re.findall(r"\d+", sees)] == [4, 84, 84]
            assert int(re.sub(r"\D", "", limit)) == env.base_env.max_steps
            continue
        assert actions.startswith("9" if "Cube" in name else "4")
        assert ("pickup" in actions) == (env.action_spec.space.n == 6)
        key = "observation" if "Cube" in name else "pixels"
        shape = env.observation_spec[key].shape
        assert [int(n) for n in re.findall(r"\d+", sees)] == list(shape)
        if name in ("EscapeRoom", "RoomsWithObstacles", "ObstructedKey"):
            assert int(shortest) == env.base_env.gym_env.plan_length
            assert int(limit) == env.base_env.gym_env.max_steps
            continue
        assert int(limit) == env.base_env.max_steps
        if "Cube" in name:
            assert int(shortest) == env.base_env.max_depth
            continue
        layouts = getattr(env.base_env, "layouts", [env.base_env.layout])
        lengths = {
            layout.distances(start)[goal]
            for layout in layouts
            for start in layout.starts
            for goal in layout.goals
        }
        assert {int(n) for n in re.findall(r"\d+", shortest)} == lengths


def test_every_picture_exists_and_every_link_leads_somewhere():
    for path in re.findall(r"\]\(\.\./(images/[^)]+)\)", PAGE):
        assert (DOCS / path).is_file()
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
