from __future__ import annotations

import json

import pytest
import yaml

from rlframe.cli.main import main
from rlframe.errors import ConfigError
from rlframe_plugins.mappers.calibrate import calibrate, calibrate_by_run, measured_stages
from rlframe_plugins.mappers.catalogue import load_catalogue, parse_hardware
from rlframe_plugins.mappers.compare import on_end, on_start, on_step, remember

PPO = ["map", "--algo", "ppo", "--model", "llama-2-7b", "--hardware", "2x8:a100-80g"]


def test_json(capsys):
    assert main([*PPO, "--json", "--minibatch-prompts", "128"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["search_s"] > 0
    assert len(answer["plans"]) == 3


def test_text_yaml_and_html(capsys, tmp_path):
    assert main([*PPO, "--response-tokens", "lognormal:mean=400,sigma=1,max=2048"]) == 0
    assert "s a step" in capsys.readouterr().out
    assert main([*PPO, "--yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["mapper"]["name"] == "fixed"
    page = tmp_path / "plan.html"
    assert main([*PPO, "--html", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")


def test_registered_and_well_known_methods(capsys):
    base = ["map", "--model", "qwen2.5-7b", "--hardware", "2x8:h100", "--json", "--plans", "1"]
    names = {}
    scorers = {"grpo": (), "remax": ("reward",), "safe-rlhf": ("reward", "cost")}
    for algo, roles in scorers.items():
        models = [word for role in roles for word in ("--role-model", f"{role}=qwen2.5-7b")]
        assert main([*base, "--algo", algo, *models]) == 0
        plan = json.loads(capsys.readouterr().out)["plans"][0]
        names[algo] = {unit["name"] for unit in plan["units"]}
    assert names["safe-rlhf"] >= {"policy", "cost_critic", "cost", "rollout"}
    assert "reward" in names["remax"]


def test_an_overlapping_scheduler_has_a_rollout_pool(capsys):
    base = ["map", "--algo", "ppo", "--model", "qwen2.5-7b", "--hardware", "4x8:h100"]
    assert main([*base, "--scheduler", "async", "--staleness", "2", "--json"]) == 0
    for plan in json.loads(capsys.readouterr().out)["plans"]:
        assert ["rollout"] in [pool["members"] for pool in plan["pools"]]


def test_models_by_role(capsys):
    more = ["--critic-model", "llama-2-13b", "--role-model", "reward=llama-2-7b", "--json"]
    assert main([*PPO, *more]) == 0
    units = {u["name"]: u for u in json.loads(capsys.readouterr().out)["plans"][0]["units"]}
    assert units["critic"]["parameters"] > 1.5 * units["reward"]["parameters"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--algo", "gpro"], "unknown algo 'gpro'. Did you mean 'grpo'"),
        (["--model", "lama-2-7b"], "Did you mean 'llama-2-7b'"),
        (["--hardware", "2x8:a100"], "unknown device 'a100'"),
        (["--strategy", "fsdq"], "Did you mean 'fsdp'"),
        (["--together", "policy+critc"], "Did you mean 'critic'"),
        (["--role-model", "x=llama-2-7b"], "unknown role 'x'"),
        (["--model", "llama-2-70b", "--strategy", "megatron"], "no plan fits: 'policy' needs"),
        (["--prompts", "0"], "at least 1"),
        (["--devices", "/no/such/file"], "/no/such/file"),
        (["--minibatch-prompts", "1000"], "multiple"),
    ],
)
def test_errors(capsys, more, words):
    assert main([*PPO, *more]) > 0
    assert words in capsys.readouterr().err


def test_calibration_is_a_catalogue(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(calibrate())
    catalogue = load_catalogue(str(file))
    assert catalogue.table["launch_s"]["basis"] == "measured"
    name = next(iter(yaml.safe_load(file.read_text())["devices"]))
    assert parse_hardware(f"1x2:{name}", catalogue).flops > 1e9


METRICS = [
    {"timing_s/gen": 9, "timing_s/step": 10},
    {
        "timing_s/gen": 2.0,
        "timing_s/old_log_prob": 1.0,
        "timing_s/ref": 0.5,
        "timing_s/update_actor": 3.0,
        "timing_s/update_critic": 1.0,
        "timing_s/update_weights": 0.25,
        "timing_s/step": 8.0,
    },
    {"val/reward": 1},
]


def test_timings_of_a_run(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(map(json.dumps, METRICS)))
    expected = {"collect": 2.0, "prepare": 1.5, "learn": 4.0, "publish": 0.25}
    assert measured_stages(file) == expected
    file.write_text(json.dumps({"loss": 1}))
    with pytest.raises(ConfigError, match="timing_s/step"):
        measured_stages(file)
    with pytest.raises(ConfigError):
        measured_stages(tmp_path / "none")


def test_calibrating_by_a_run_makes_its_prediction_true(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(METRICS[1]))
    monkeypatch.setattr(
        "rlframe_plugins.mappers.predict.predict_run",
        lambda run, devices: {"collect": 1.0, "prepare": 3.0, "learn": 4.0, "publish": 0.0},
    )
    table = yaml.safe_load(calibrate_by_run(tmp_path, None))["constants"]
    assert table["scale_collect"]["value"] == 2.0
    assert table["scale_prepare"]["value"] == 0.5
    assert "scale_publish" not in table


def test_predicted_beside_measured(capsys):
    config = object()
    remember(config, "the plan", {"collect": 1.0, "prepare": 1.0, "learn": 4.0, "publish": 0.0})
    on_start(config)
    for metrics in METRICS:
        on_step(metrics)
    on_end()
    text = capsys.readouterr().err
    assert "the plan" in text
    assert "learn        4.000     4.000" in text
    on_step(METRICS[1])
    on_end()
    assert capsys.readouterr().err == ""


def test_a_plan_of_another_run_is_not_shown(capsys):
    remember(object(), "the plan", {})
    on_start(object())
    on_step(METRICS[1])
    on_end()
    assert capsys.readouterr().err == ""
