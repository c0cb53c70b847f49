"""From the run's options to the configuration of an environment of ``verifiers``.

What neither the taskset's author nor the user says is said here: agents run on this machine (there
the default is a rented sandbox), their limits are those of the run, and the agent that talks and
calls tools is :mod:`.harness` (there the default is a shell, prepared by the program ``uv``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["HARNESS", "resolved"]

HARNESS = "rlframe-chat"
"""Id of the harness of :mod:`.harness`."""
_FALLBACK = "bash"


def resolved(given: Mapping[str, Any]) -> Any:
    """The environment's configuration. Raises what verifiers raises for unknown ids and keys."""
    from verifiers.v1 import AgentConfig, default_harness_id, env_config_type, resolve_env_config

    from rlframe_plugins.envs.verifiers import harness

    # Ids of harnesses are names of modules at the top.
    sys.modules.setdefault(HARNESS.replace("-", "_"), harness)
    options = dict(given["env"])
    taskset = options["taskset"]["id"]
    own = default_harness_id(taskset)
    kind = env_config_type(taskset, options.get("id", ""))
    for name, field in kind.model_fields.items():
        if isinstance(field.default, AgentConfig):
            options[name] = _agent(field.default, dict(options.get(name, {})), own, given)
    return resolve_env_config(options)


def _agent(author: Any, agent: dict[str, Any], own: str, given: Mapping[str, Any]) -> Any:
    """An agent's options, with what the author and the user left open."""
    said = author.model_fields_set | set(agent)
    if "runtime" not in said:
        agent["runtime"] = {"type": "subprocess"}
    if "max_turns" not in said:
        agent["max_turns"] = given["max_turns"]
    if "harness" not in said and own == _FALLBACK:
        agent["harness"] = {"id": HARNESS}
    program = agent.get("harness")
    if isinstance(program, Mapping) and program.get("id") == HARNESS:
        limits = {name: given[name] for name in ("max_tool_output", "tool_timeout")}
        agent["harness"] = {**limits, **program}
    return agent
