"""Methods with several models by name on Ray: some in the policy's pool, some in another."""

from __future__ import annotations

import pytest

from tests.e2e.test_every_method import fit, make_inputs

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("one_ray"),
]

REWARD = "--reward {reward}"
RUNS = {
    "grpo": f"{REWARD} algo.kl_coef=0.05 roles.reference.pool=second",
    "ppo": "roles.critic.pool=second roles.reward.model.path={scorer}",
    "vapo": f"{REWARD} roles.critic.pool=second",
    "decoupled-ppo": f"{REWARD} roles.critic.pool=second",
    "safe-rlhf": f"{REWARD} roles.critic.pool=second roles.cost_critic.pool=second",
    "distill": f"{REWARD} algo.form=sampled roles.teacher.pool=second",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("name", RUNS)
def test_a_method_with_several_models_runs_on_ray(name, inputs, tmp_path):
    pools = "--cluster ray pools.train.devices=1 pools.second.devices=1"
    steps = fit(name, inputs, tmp_path, *pools.split(), *RUNS[name].split())
    assert [line["training/global_step"] for line in steps] == [1, 2]
