"""A default is written once, in a dataclass; an environment's yaml overrides it with a reason."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re

import pytest
import yaml

from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.cli.config import CONF, SHARED, compose, parse, prepared
from torchrl_dceo.envs import make_env
from torchrl_dceo.envs.miniworld_headless import why_not
from torchrl_dceo.settings import defaults, environment_fields
from torchrl_dceo.training.config import CollectorConfig, RunConfig, TrainConfig

ENVIRONMENTS = sorted(path.stem for path in (CONF / "env").glob("*.yaml"))
if why_not() is not None:  # the settings of 3D environments are found where they can be drawn
    ENVIRONMENTS = [name for name in ENVIRONMENTS if not name.startswith("miniworld")]
RUN = {**defaults(TrainConfig), **defaults(CollectorConfig), **defaults(RunConfig)}


def own_yaml(env: str) -> dict:
    """What the yaml of an environment sets, with what it takes over from the one that it names first."""
    listed = yaml.safe_load((CONF / "env" / f"{env}.yaml").read_text().replace("@package", ""))
    base = listed.get("defaults", [None])[0]
    if base not in ENVIRONMENTS:
        return listed
    inherited = own_yaml(base)
    agent = {**inherited.get("agent", {}), **listed.get("agent", {})}
    return {**inherited, **listed, "agent": agent, "defaults": inherited.get("defaults", [])}


def rainbow(env: str) -> dict:
    """What the group `learner` sets for every agent: Rainbow's own fields."""
    kind = AGENTS["rainbow"].config
    given = "learner@agent" in str(own_yaml(env).get("defaults"))
    return {name: defaults(kind)[name] for name in vars(kind)["__annotations__"]} if given else {}


@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize("agent", AGENTS)
def test_every_setting_is_its_dataclass_default_or_a_listed_override(env, agent):
    settings, listed = compose([f"env={env}", f"agent={agent}"]), own_yaml(env)
    config = AGENTS[agent].config
    expected = {"name": agent, **defaults(config), **rainbow(env), **listed.pop("agent", {})}
    for name in SHARED:
        if name in listed and name in environment_fields(config):
            expected[name] = listed[name]
        listed.pop(name, None)
    assert settings.pop("agent") == expected
    own = {key: 0 if value == "${seed}" else value for key, value in listed.pop("env").items()}
    assert settings.pop("env") == own
    assert settings.pop("logger") == {"name": "csv"}
    assert settings.pop("preset") == "ours"
    assert settings.pop("speed") == "default"
    listed.pop("defaults", None)
    assert settings == {**RUN, "resume": None, "run_dir": None, **listed}
    parse(compose([f"env={env}", f"agent={agent}"]))


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_yaml_repeats_no_default(env):
    listed = own_yaml(env)
    learner = defaults(AGENTS["ddqn"].config)
    for name, value in listed.items():
        if name in RUN:
            assert value != RUN[name], f"{env}: {name} is the default already"
    for name, value in listed.get("agent", {}).items():
        assert value != learner[name], f"{env}: agent.{name} is the default already"
    name = listed["env"].pop("name")
    if not name.startswith(("MiniWorld", "MyWay", "gym")):
        plain, given = make_env(name), make_env(name, **listed["env"])
        assert not listed["env"] or plain.base_env.__dict__ != given.base_env.__dict__


def test_every_override_has_its_reason():
    for path in (CONF / "env").glob("*.yaml"):
        for line in path.read_text().splitlines():
            _, colon, value = line.partition(":")
            if colon and value.strip() and not line.lstrip().startswith(("#", "-", "name:")):
                assert "#" in value, f"{path.name}: {line}"


def config_classes() -> list[type]:
    kinds = {base for kind in AGENTS.values() for base in kind.config.__mro__}
    return [
        kind
        for kind in (*kinds, TrainConfig, CollectorConfig, RunConfig)
        if dataclasses.is_dataclass(kind)
    ]


def test_every_default_names_its_origin():
    """A comment on the line of each field, or on the line before."""
    for kind in config_classes():
        lines = inspect.getsource(kind).splitlines()
        for index, line in enumerate(lines):
            if re.match(r"    \w+: .*=", line):
                assert "#" in line or lines[index - 1].lstrip().startswith("#"), f"{kind}: {line}"


def literals(kind: type) -> dict[str, object]:
    """Fields of a class whose default is written out in its body, and not taken from another class."""
    (tree,) = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body
    found = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "by_environment":
                value = value.args[0]
            if isinstance(value, ast.Constant):
                found[ast.unparse(node.target)] = value.value
    return found


# Where a subclass has a value of its own, and the class that it differs from.
SPECIAL = {
    "DiscoveryConfig": {"option_prob"},
    "OptionAgentConfig": {"eps_frames"},
    "LaplacianConfig": {"num_options", "termination"},
    "DCOConfig": {"num_options", "signs", "norm", "discovery_frames"},
    "RainbowConfig": {
        "lr", "adam_eps", "main_adam_eps", "n_steps", "target_tau", "target_period", "eps_end",
        "eps_frames", "main_learner", "prioritized", "centre_pixels", "replay_measure",
    },
    "RainbowDCEOConfig": {
        "num_options", "option_prob", "signs", "option_gamma", "one_step_options", "dimensions",
        "norm", "barrier", "reward_mode", "eps_per", "eps_after_reward", "termination",
    },
    "RNDConfig": {"bonus_scale"},
}  # fmt: skip


def test_a_default_is_written_once():
    """A field may be written again only where an agent's value is known to be its own."""
    written: dict[str, str] = {}
    order = sorted(config_classes(), key=lambda kind: kind.__name__ in SPECIAL)
    for kind in order:
        for name in literals(kind):
            if name in SPECIAL.get(kind.__name__, ()):
                continue
            assert name not in written, f"{name} in {written[name]} and in {kind.__name__}"
            written[name] = kind.__name__


@pytest.mark.parametrize("agent", AGENTS)
def test_make_agent_and_the_recipe_build_the_same_agent(agent):
    env = make_env("NineRooms", room_size=3, visits="counts")
    settings = compose(["env=nine_rooms", f"agent={agent}"])["agent"]
    assert make_agent(agent, env).made_from == settings


def test_the_values_of_the_recipes_won():
    """What `make_agent("dceo", env)` trains is what the results were made with."""
    config = AGENTS["dceo"].config()
    assert (config.lr, config.num_options, config.signs) == (5e-4, 5, "both")
    assert (config.option_prob, config.eps_frames) == (0.8, 40_000)
    assert (TrainConfig().update_period, RunConfig().num_envs) == (8, 8)
    two_phase = AGENTS["dceo_two_phase"].config()
    assert (two_phase.option_prob, two_phase.eps_frames) == (0.9, 40_000)
    assert AGENTS["diayn"].config().num_options == AGENTS["cic"].config().num_options == 10


def test_rainbow_dceo_weighs_orthogonality_as_the_authors_do():
    """Their smoothness has no factor ½, so their 1 is 0.5 here, whatever other agents' barrier is."""
    config = AGENTS["rainbow_dceo"].config()
    assert config.barrier == 0.5 and "barrier" in vars(type(config))["__annotations__"]
    env = make_env("NineRooms", room_size=3, visits="counts")
    assert make_agent("rainbow_dceo", env).objectives["laplacian"].barrier == 0.5


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (["~total_frames", "env=escape_room"], ("total_frames",), 300_000),
        (["env=escape_room", "~env.max_steps"], ("env",), {"name": "EscapeRoom", "room_size": 3}),
        (["env.goal_visible=true"], ("env", "goal_visible"), True),
        (["+env.goal_visible=true"], ("env", "goal_visible"), True),
        (["env=maze", "env.name=my_map.txt"], ("env",), {"name": "my_map.txt"}),
        (["option_prob=0.5"], ("agent", "option_prob"), 0.5),
        (["option_prob=0.5", "agent.option_prob=0.4"], ("agent", "option_prob"), 0.4),
        (["agent=diayn", "num_options=4"], ("agent", "num_options"), 4),
        (["agent=dceo", "num_options=4"], ("agent", "num_options"), 4),
        (["agent=dceo", "env=gym"], ("agent", "num_options"), 5),  # a recipe's is that of skills
        (["agent=cic", "discovery_frames=70"], ("agent", "discovery_frames"), 70),
    ],
)
def test_overrides(given, key, value):
    settings = compose(given)
    for name in key:
        settings = settings[name]
    assert settings == value


def test_a_deleted_setting_of_an_agent_is_its_default():
    settings = compose(["env=escape_room", "~agent.eps_frames"])
    assert "eps_frames" not in settings["agent"]
    assert parse(settings).agent_settings["eps_frames"] == 40_000


@pytest.mark.parametrize("env", ["nine_rooms", "maze"])
def test_a_map_of_ones_own_in_every_grid_recipe(env, tmp_path):
    path = tmp_path / "my_map.txt"
    path.write_text("S...\n.##.\n...G\n")
    made = parse(compose([f"env={env}", f"env.name={path}", "env.slip=0"]))
    assert make_env(made.env, **made.env_settings).base_env.num_states == 10


def test_prepared_overrides_can_be_prepared_again():
    words = ["env.slip=0", "~seed", "~env.slip", "agent=dceo"]
    assert prepared(prepared(words)) == prepared(words)
