"""What the adapter of verifiers says before the package itself is asked."""

from __future__ import annotations

import pytest

from rlframe.errors import RolloutError
from rlframe_plugins.envs.tools.config import ToolsConfig
from rlframe_plugins.envs.tools.environment import ToolsEnvironment
from rlframe_plugins.envs.verifiers.environment import VerifiersEnvironment
from tests.unit.chat_templates import TEMPLATES, byte_tokenizer
from tests.unit.plugins.envs.playing import Policy, play, row
from tests.unit.plugins.envs.programs import Prepared


def test_a_taskset_has_to_be_named():
    with pytest.raises(ValueError, match="name an installed taskset"):
        VerifiersEnvironment.Config()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "needs the column 'task', which --data 'verifiers:sums' gives"),
        ({"task": {}, "data_source": "other"}, "env.taskset is 'sums', the row's is 'other'"),
    ],
)
def test_a_row_must_be_of_the_taskset(columns, message, tmp_path):
    tokenizer = byte_tokenizer(tmp_path, TEMPLATES["chatml"])
    env = VerifiersEnvironment(VerifiersEnvironment.Config(taskset="sums"), tokenizer)
    with pytest.raises(RolloutError, match=message):
        play(env, Policy(tokenizer, ["a"]), row(**columns))
    env.close()


class Told(ToolsEnvironment):
    user = Prepared
    given = 0.25


def test_a_program_is_prepared_once_for_all_episodes(tmp_path):
    tokenizer = byte_tokenizer(tmp_path, TEMPLATES["chatml"])
    env = Told(ToolsConfig(), tokenizer)
    assert [play(env, Policy(tokenizer, ["a"])).earned for _ in range(2)] == [0.25, 0.25]
    env.close()
    assert Prepared.told == 0.0
