"""Loading a whole config: layers, components, inheritance, and an error for each mistake."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import fields

import pytest

from rlframe.config import Config, Selected
from rlframe.config.load import Asked, Loaded, load_config
from rlframe.config.plain import config_from_dict, config_to_dict
from rlframe.config.render import render
from rlframe.errors import ConfigError, PluginError
from tests.unit.config import fakes


@pytest.fixture
def host(tmp_path):
    return fakes.make_host(tmp_path)


@pytest.fixture
def load(tmp_path, host, monkeypatch):
    """Load from arguments, flags and the text of YAML files."""
    monkeypatch.chdir(tmp_path)

    def loader(*dotlist, yaml=(), objects=None, values=None, **flags) -> Loaded:
        texts = [yaml] if isinstance(yaml, str) else yaml
        files = []
        for number, text in enumerate(texts):
            (tmp_path / f"run{number}.yaml").write_text(text)
            files.append(f"run{number}.yaml")
        asked = Asked(files, dotlist, flags, values or {}, objects or {})
        return load_config(host, asked)

    return loader


# --- what wins ------------------------------------------------------------------------------------


def test_nothing_said_gives_the_defaults(load):
    config = load().config
    assert (config.seed, config.steps) == (0, 100)
    assert config.algo == Selected("grpo", "tests.unit.config.fakes:Grpo", fakes.Grpo.Config())
    assert [one.name for one in config.logger] == ["terminal", "jsonl"]
    assert config.rollout.config.page == 32
    assert config.strategy.config is None


def test_later_layers_win_key_by_key(load):
    files = ["optim: {lr: 0.1, eps: 0.2}\nsteps: 5", "optim: {lr: 0.3}"]
    config = load("optim.warmup_steps=7", yaml=files).config
    optim = config.optim
    assert (optim.lr, optim.eps, optim.warmup_steps, config.steps) == (0.3, 0.2, 7, 5)
    assert load("optim.lr=0.4", yaml=files).config.optim.lr == 0.4


def test_model_and_data_flags(load):
    config = load(model="other/model", data="jsonl:mine.jsonl").config
    assert config.model.path == "other/model"
    assert config.data.train == "jsonl:mine.jsonl"
    assert config.data.validate is None


def test_own_validation_data_stays_beside_own_training_data(load):
    config = load("data.validate=jsonl:held.jsonl", data="jsonl:mine.jsonl").config
    assert config.data.validate == "jsonl:held.jsonl"


def test_a_name_alone_is_the_same_as_a_section_with_it(load):
    said = load(yaml="algo: gspo").config
    assert said == load(yaml="algo: {name: gspo}").config
    assert said == load(algo="gspo").config
    assert said == load("algo=gspo").config
    assert said == load("algo.name=gspo").config


def test_another_name_leaves_the_first_ones_own_options_behind(load):
    written = "algo: {name: grpo, clip_ratio: 0.1, epochs: 3}"
    loaded = load(yaml=written, algo="gspo")
    assert loaded.config.algo.config == fakes.Gspo.Config(epochs=3)
    assert loaded.notes == ("algo.clip_ratio=0.1 (run0.yaml:1) was for 'grpo' and is left out",)
    assert load(yaml=written, algo="grpo").config.algo.config.clip_ratio == 0.1


def test_options_without_a_name_are_for_whatever_is_chosen(load):
    loaded = load(yaml="algo: {clip_ratio: 0.1}", algo="gspo")
    assert loaded.config.algo.config.clip_ratio == 0.1
    assert loaded.notes == ()


def test_default_options_of_another_engine_go_without_a_note(load):
    loaded = load(rollout="plain")
    assert loaded.notes == ()
    assert loaded.config.rollout.config.max_new_tokens == 24


def test_options_beside_the_name_on_the_command_line_are_for_that_name(load):
    with pytest.raises(ConfigError, match=r"unknown key 'rollout.page' \(command line\)"):
        load("rollout.page=8", rollout="plain")


# --- lists, rewards, roles ------------------------------------------------------------------------


def test_lists_of_components(load):
    assert [one.name for one in load(logger="jsonl, terminal").config.logger] == [
        "jsonl",
        "terminal",
    ]
    assert load("logger=[]", callback="note").config.callback[0].name == "note"
    changed = load("logger.1.file=x.jsonl").config.logger
    assert [one.config for one in changed] == [None, fakes.Jsonl.Config("x.jsonl")]
    assert load("logger={name: jsonl, file: y}").config.logger[0].config.file == "y"
    beside = load("logger.1.file=z", logger="terminal,jsonl").config.logger
    assert [one.name for one in beside] == ["terminal", "jsonl"]
    assert beside[1].config.file == "z"
    assert load("logger.file=w", logger="jsonl").config.logger[0].config.file == "w"


def test_one_reward_with_its_options(load):
    reward = load("reward.answer_key=q", "reward.on_error=skip", "reward.weight=2").config.reward
    (part,) = reward.parts
    assert (part.label, part.weight, part.reward.config.answer_key) == ("exact", 2.0, "q")
    assert reward.on_error == "skip"


@pytest.mark.parametrize("form", ["reward: %s", "reward: {parts: %s}"])
def test_several_rewards(load, form):
    parts = "[exact, {name: length, weight: 0.5}, {name: exact, label: again, answer_key: b}]"
    reward = load("reward.parts.1.weight=0.25", yaml=form % parts).config.reward
    assert [(p.label, p.weight) for p in reward.parts] == [
        ("exact", 1.0),
        ("length", 0.25),
        ("again", 1.0),
    ]
    assert reward.parts[2].reward.config.answer_key == "b"


def test_options_of_all_parts_of_the_reward_together_stand_beside_its_name(load):
    given = ("reward.retries=3", "reward.retry_wait_s=0.5", "reward.timeout_s=7")
    loaded = load(*given, "reward.answer_key=q").config
    assert (loaded.reward.retries, loaded.reward.retry_wait_s) == (3, 0.5)
    assert loaded.reward.timeout_s == 7
    written = config_to_dict(loaded)["reward"]
    assert set(written) == {field.name for field in fields(loaded.reward)}
    assert (written["retries"], written["retry_wait_s"]) == (3, 0.5)


def test_a_flag_replaces_a_list_of_rewards(load):
    config = load(yaml="reward: {parts: [exact, length], timeout_s: 3}", reward="length").config
    assert [p.label for p in config.reward.parts] == ["length"]
    assert config.reward.timeout_s == 3


def test_roles_inherit_key_by_key(load):
    config = load(
        "optim.lr=0.5",
        "optim.warmup_steps=3",
        "roles.critic.optim.lr=1",
        "roles.critic.model.path=c",
        "roles.critic.strategy=sharded",
        "roles.critic.strategy.ranks=3",
    ).config
    critic = config.role("critic")
    assert (critic.optim.lr, critic.optim.warmup_steps) == (1.0, 3)
    assert (critic.model.path, critic.model.dtype) == ("c", "auto")
    assert (critic.strategy.name, critic.strategy.config.ranks) == ("sharded", 3)
    assert critic.engine.target.endswith(":Model")
    policy = config.role("policy")
    assert (policy.optim.lr, policy.strategy.name, policy.pool) == (0.5, "single", "train")


def test_a_role_inherits_options_of_the_same_strategy(load):
    config = load("strategy.ranks=4", "roles.critic.strategy.sizes=[1]", strategy="sharded").config
    assert config.role("critic").strategy.config == fakes.Sharded.Config(4, (1,))


def test_interpolation(load):
    config = load("seed=7", "run.name=s${seed}", "optim.eps=${optim.lr}").config
    assert config.run.name == "s7"
    assert config.optim.eps == config.optim.lr
    with pytest.raises(ConfigError, match=r"run.name = .*command line.*nope"):
        load("run.name=${nope}")


# --- from Python ----------------------------------------------------------------------------------


def test_live_objects(load):
    def score(answer):
        return 1.0

    instance = fakes.Grpo(fakes.Grpo.Config(clip_ratio=0.5, epochs=2))
    config = load("algo.epochs=3", objects={"algo": instance, "reward": score}).config
    assert config.algo.config == fakes.Grpo.Config(clip_ratio=0.5, epochs=3)
    assert config.algo.load() is fakes.Grpo
    assert config.reward.parts[0].reward.load() is score


def test_lists_of_live_objects(load):
    def score(answer):
        return 1.0

    config = load(objects={"reward": [score, "exact"]}, values={"callback": [fakes.Note]}).config
    assert [p.label for p in config.reward.parts] == ["score", "exact"]
    assert config.callback[0].load() is fakes.Note


def test_plain_values(load):
    config = load(values={"optim": {"lr": 0.5, "betas": (0.1, 0.2)}, "strategy": "sharded"}).config
    assert (config.optim.lr, config.optim.betas) == (0.5, (0.1, 0.2))
    assert config.strategy.name == "sharded"


# --- there and back -------------------------------------------------------------------------------

RICH = (
    "seed=4",
    "run.name=1e3",
    'rollout.stop=["yes", "a: b", "\\n"]',
    "roles.critic.optim.lr=1e-7",
    "pools.rollout.devices=2",
    "strategy.extra={a: 1}",
    "logger.1.file=x",
    "data.template=Q: {prompt}",
)


@pytest.mark.parametrize("arguments", [(), RICH], ids=["defaults", "rich"])
def test_the_printed_config_loads_to_the_same_config(load, arguments):
    loaded = load(*arguments, strategy="sharded")
    again = load(yaml=render(loaded))
    assert again.config == loaded.config


def test_the_printed_config_says_where_values_come_from(load):
    text = render(load("optim.lr=0.5", yaml="steps: 7"))
    lines = {line.split(":")[0].strip(): line for line in text.splitlines()}
    assert lines["lr"].endswith("# command line")
    assert lines["steps"].endswith("# run0.yaml:1")
    assert lines["page"].endswith("# defaults:3")
    assert lines["clip_ratio"].endswith("# default of algo 'grpo'")
    assert lines["keep"].endswith("# default")


def test_plain_values_there_and_back(load, host):
    config = load(*RICH, yaml="reward: [exact, length]", strategy="sharded").config
    data = json.loads(json.dumps(config.to_dict()))
    assert config_from_dict(data, host) == config


@pytest.mark.parametrize(
    "change",
    [
        {"algo": {"name": "/x/evil.py:X"}},
        {"algo": "os:system"},
        {"logger": ["/x/evil.py:X"]},
        {"reward": {"parts": [{"name": "evil:X"}]}},
        {"reward": ["evil:X"]},
        {"roles": {"critic": {"strategy": {"name": "evil:X"}}}},
        {"roles": {"critic": {"strategy": "evil:X"}}},
        {"roles": {"critic": {"model": {"engine": "evil:X"}}}},
        {"model": {"path": "m", "engine": "evil:X"}},
        {"callback": [{"name": "evil:X"}]},
    ],
)
def test_a_snapshot_names_no_code(load, host, change):
    data = {**load().config.to_dict(), **change}
    with pytest.raises(ConfigError, match="is code that a snapshot may not name"):
        config_from_dict(data, host)


def test_pickled_whole(load):
    config = load(*RICH, strategy="sharded").config
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_config_with_a_users_file_unpickles_in_another_process(load, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom rlframe import Algorithm\n"
        "class Mine(Algorithm):\n    '''Mine.'''\n"
        "    @dataclass(frozen=True)\n    class Config(Algorithm.Config):\n        '''Options.'''\n"
        "        size: int = 3\n        '''Size.'''\n"
    )
    config = load("algo.size=5", algo="mine.py:Mine").config
    data = tmp_path / "config.pickle"
    data.write_bytes(pickle.dumps(config.algo))
    code = (
        "import pickle, sys\n"
        f"algo = pickle.loads(open({str(data)!r}, 'rb').read())\n"
        "print(algo.config.size, algo.load().__name__, type(algo.config) is algo.load().Config)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["5", "Mine", "True"], done.stderr


def test_nothing_changes_a_config(load):
    config: Config = load().config
    with pytest.raises(AttributeError):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        config.algo.config.epochs = 3


# --- mistakes -------------------------------------------------------------------------------------

MISTAKES = [
    ("optm.lr=1", r"^unknown key 'optm'. Did you mean 'optim'\?.*command line"),
    ("optim.lrr=1", r"^unknown key 'optim.lrr' \(command line\). Did you mean 'optim.lr'\?"),
    ("model.lora.rnk=1", r"unknown key 'model.lora.rnk'.*Did you mean 'model.lora.rank'"),
    ("algo.clip=1", r"unknown key 'algo.clip' .*Did you mean 'algo.clip_ratio'"),
    ("env.x=1", r"unknown key 'env.x' \(command line\): 'single-turn' has no options"),
    ("reward.x=1", r"unknown key 'reward.x'"),
    ("roles.critic.x=1", r"unknown key 'roles.critic.x'"),
    ("roles.crtic.pool=train", r"roles.crtic: unknown role 'crtic'. Did you mean 'critic'"),
    ("logger.7.file=x", r"logger.7 is not there"),
    ("logger={name: 'terminal,jsonl', file: x}", r"logger.file .*say for which one, logger.0 is"),
    ("logger={name: 'terminal,jsonl', 2: {file: x}}", r"logger.2 .*logger.1 is jsonl"),
    ("pools.train.device=2", r"Did you mean 'pools.train.devices'"),
    ("steps=x", r"^steps = 'x' \(command line\): expected a whole number"),
    ("seed=1.5", r"^seed = '1.5' \(command line\): expected a whole number"),
    ("optim.lr=fast", r"^optim.lr = 'fast' \(command line\): expected a number"),
    ("optim.lr=null", r"^optim.lr = null .*expected a number"),
    ("optim.lr.x=1", r"optim.lr has keys below it .*expected a number"),
    ("optim.betas=[0.9]", r"expected a list of 2 numbers"),
    ("optim.name=adam", r"expected one of adamw, sgd"),
    ("data.shuffle=2", r"expected true or false"),
    ("data=3", r"^data = 3 \(command line\): expected keys below it"),
    ("env=3", r"^env = 3 \(command line\): expected a name"),
    ("rollout.stop=x", r"expected a list of texts"),
    ("model.lora=4", r"model.lora = 4 .*expected a section"),
    ("steps=0", r"^steps must be at least 1, not 0 \(command line\)"),
    ("seed=-1", r"^seed must be at least 0, not -1"),
    ("optim.lr=-1", r"^optim.lr must be at least 0, not -1.0 \(command line\)"),
    ("optim.lr=.nan", r"^optim.lr = '.nan' \(command line\): expected a number"),
    ("algo.kl_coef=.nan", r"^algo.kl_coef = '.nan' \(command line\): expected a number"),
    ("optim.betas=[0.9, .nan]", r"^optim.betas = .*: expected a list of 2 numbers"),
    ("optim.lr=.inf", r"^optim.lr must be at least 0, not inf"),
    ("optim.betas=[0.9, 1]", r"optim.betas must each be"),
    ("algo.clip_ratio=0", r"^algo.clip_ratio must be above 0, not 0.0 \(command line\)"),
    ("algo.samples_per_prompt=0", r"algo.samples_per_prompt .*\(command line\)"),
    ("algo.style=x", r"algo.style = 'x' \(command line\): expected one of plain, dr"),
    ("rollout.top_p=0", r"rollout.top_p must be above 0 and at most 1"),
    ("rollout.min_new_tokens=99", r"rollout.min_new_tokens must be at most max_new_tokens=24"),
    ("run.save_every=-1", r"run.save_every must be at least 0"),
    ("run.max_restarts=-1", r"run.max_restarts must be at least 0"),
    ("run.restart_wait_s=-1", r"run.restart_wait_s must be at least 0"),
    ("run.name=a/b", r"run.name must be the name of a folder"),
    ("pools.train.devices=0", r"pools.train.devices must be at least 1"),
    ("rollout.pool=nowhere", r"rollout.pool: unknown pool 'nowhere'. Known: train"),
    ("roles.critic.pool=nowhere", r"roles.critic.pool: unknown pool"),
    ("algo.minibatch_prompts=99", r"more than data.prompts_per_step=16"),
    ("model.path=''", r"model.path is empty: name a model with --model"),
    ("reward.timeout_s=0", r"reward.timeout_s must be above 0"),
    ("reward.weight=x", r"reward.weight = 'x'.*expected a number"),
]


@pytest.mark.parametrize(("argument", "expected"), MISTAKES)
def test_a_mistake_on_the_command_line(load, argument, expected):
    with pytest.raises(ConfigError, match=expected) as error:
        load(argument)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("\noptim:\n  lrr: 1", r"unknown key 'optim.lrr' \(run0.yaml:3\).*'optim.lr'"),
        ("optim.lr: 1", r"unknown key 'optim.lr'.*A dot in a YAML key makes no section"),
        ("optim: 3", r"optim = 3 \(run0.yaml:1\): expected keys below it"),
        ("model: {path: }", r"model.path = null \(run0.yaml:1\)"),
        ("algo: [1]", r"algo = \[1\] \(run0.yaml:1\): expected a name"),
        ("algo: {name: [1]}", r"algo.name must be the name of a component, not \[1\]"),
        ("algo: {name: gpro}", r"unknown algo 'gpro'.*\(run0.yaml:1\)"),
        ("reward: [exact, exact]", r"reward.parts holds 'exact' twice"),
        ("reward: {parts: [exact], answer_key: x}", r"reward.answer_key .*stands beside"),
        ("reward: {parts: 3}", r"reward.parts .*expected a list of components"),
        ("reward: [3]", r"reward.parts.0 = 3 \(run0.yaml:1\): expected a name"),
        ("logger: 3", r"logger = 3 .*expected a list of names"),
        ("roles: 3", r"roles = 3 .*expected keys below it"),
        ("roles: {critic: 3}", r"roles.critic .*expected keys below it"),
        ("pools: {train: 3}", r"pools.train = 3 .*expected a section"),
        ("seed: [1]", r"seed = \[1\] \(run0.yaml:1\): expected a whole number"),
        ("seed: {a: 1}", r"seed has keys below it"),
        ("optim: {betas: 3}", r"expected a list of 2 numbers"),
    ],
)
def test_a_mistake_in_a_file_names_its_line(load, yaml, expected):
    with pytest.raises(ConfigError, match=expected) as error:
        load(yaml=yaml)
    assert "\n" not in str(error.value)


def test_contradictions_on_the_command_line(load):
    for said in ("algo=gspo", "algo.name=gspo"):
        with pytest.raises(ConfigError, match="--algo grpo and algo=gspo contradict"):
            load(said, algo="grpo")
    with pytest.raises(ConfigError, match=r"--model a and model.path=b contradict"):
        load("model.path=b", model="a")
    assert load("algo=gspo", algo="gspo").config.algo.name == "gspo"


def test_a_component_checks_the_whole_config(load):
    with pytest.raises(ConfigError, match="algo: gspo is superstitious"):
        load("seed=13", algo="gspo")


def test_an_empty_section_says_nothing(load):
    assert load(yaml="optim:\nalgo:\nlogger:\n").config.optim == load().config.optim


def test_without_defaults_the_error_says_what_to_choose(tmp_path):
    host = fakes.make_host(tmp_path, "model: {path: m}\n")
    with pytest.raises(ConfigError, match=r"no algo is chosen: --algo NAME. Known: grpo, gspo."):
        load_config(host, Asked())


def test_a_rollout_config_must_have_the_shared_options(load, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom tests.unit.config.fakes import Plain\n"
        "class Mine(Plain):\n    '''Mine.'''\n    @dataclass(frozen=True)\n"
        "    class Config:\n        '''Options.'''\n"
    )
    with pytest.raises(PluginError, match="must derive from rlframe.config.SamplingConfig"):
        load(rollout="mine.py:Mine")
