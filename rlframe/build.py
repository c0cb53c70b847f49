"""From a config to an Orchestrator: every part resolved, placed and connected."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlframe.algorithm import Algorithm, RoleSpec
from rlframe.batching.balance import width_of
from rlframe.collecting.client import CollectorClient
from rlframe.collecting.second_data import SecondData
from rlframe.collecting.spec import CollectorParts, CollectorSpec
from rlframe.config import Config
from rlframe.data import PromptStream, open_dataset, stop_token_ids
from rlframe.errors import ConfigError
from rlframe.evaluating.validation import validation_rows, validator_of
from rlframe.host.host import PluginHost
from rlframe.inputs import check_rows
from rlframe.interfaces.cluster import Cluster, WorkerGroup
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.interfaces.strategy import ModelSpec
from rlframe.interfaces.transfer import CountedTransfer
from rlframe.models.paths import load_tokenizer, resolve_model
from rlframe.orchestrator import Orchestrator
from rlframe.parts import Parts
from rlframe.place import Place, find_place
from rlframe.recording.callbacks import CallbackList
from rlframe.recording.placed import write_placement
from rlframe.recording.record import Recorder
from rlframe.recording.samples import pieces_of
from rlframe.requests import Sampling
from rlframe.rewards import Scorer
from rlframe.roles import reads_text, roles_of
from rlframe.snapshots.snapshot import SnapshotStore
from rlframe.timeline import Timeline
from rlframe.weights.connect import connect_checkpoint, longest_prompt, rollout_mesh
from rlframe.weights.shared_base import with_shared_bases

__all__ = [
    "Built",
    "build",
    "connect_checkpoint",
    "engine_specs",
    "run_sampling",
    "start_groups",
]


@dataclass
class Built:
    """A run that is ready to start, and what has to be closed after it."""

    orchestrator: Orchestrator
    cluster: Cluster
    snapshots: SnapshotStore

    def close(self) -> None:
        """End workers and loops, each also where the end of another fails."""
        parts = self.orchestrator.parts
        with ExitStack() as ends:
            ends.callback(self.cluster.close)
            ends.callback(parts.transfer.close)
            if parts.checkpoint is not None:
                ends.callback(parts.checkpoint.close)
            ends.callback(parts.collector.close)


def build(config: Config, host: PluginHost, run_dir: Path, place: Place | None = None) -> Built:
    """Start every part of a run. Raises ConfigError, ModelError or DataError before training.

    ``place`` was found before; it is this run's, and closed with it.
    """
    algorithm: Algorithm = config.algo.load()(config.algo.config)
    place = place or find_place(config, algorithm)
    with ExitStack() as undo:
        undo.callback(place.cluster.close)
        write_placement(run_dir, place)
        built = _build(place.config, host, run_dir, algorithm, place)
        undo.pop_all()
    return built


def _build(
    config: Config, host: PluginHost, run_dir: Path, algorithm: Algorithm, place: Place
) -> Built:
    path = resolve_model(config.model.path)
    tokenizer = load_tokenizer(path)
    sampling = run_sampling(config, path, tokenizer)
    stream = PromptStream(
        open_dataset(config.data.train, host, config.data),
        tokenizer,
        config.data,
        seed=config.seed,
        sampling=sampling,
    )
    scorer = Scorer.from_config(config.reward)
    held_out = open_dataset(uri, host, config.data) if (uri := config.data.validate) else None
    for name, dataset in (("train", stream.dataset), ("validate", held_out)):
        if dataset is not None:
            check_rows(name, dataset, config, algorithm, scorer, tokenizer)
    validation = validation_rows(config, held_out, tokenizer, sampling)
    groups, transfer = start_groups(config, algorithm, path, sampling, place)
    read = CountedTransfer(transfer)
    snapshots = SnapshotStore(run_dir, config.run.keep)
    with ExitStack() as undo:
        undo.callback(transfer.close)
        here = CollectorParts(algorithm, tokenizer, scorer)
        rollout = groups.get("rollout")
        client = rollout.client() if rollout is not None else None
        spec = CollectorSpec.of(config, path, sampling.max_new_tokens, client, here, run_dir)
        collector = CollectorClient.start(place.cluster, spec, algorithm.schema(), read)
        validator = validator_of(config, collector, validation, groups, algorithm)
        callbacks = CallbackList.from_config(config.callback)
        if (checkpoint := connect_checkpoint(config, groups)) is not None:
            undo.callback(checkpoint.close)
        parts = Parts(
            config=config,
            algorithm=algorithm,
            schema=algorithm.schema(),
            stream=stream,
            collector=collector,
            roles={name: group for name, group in groups.items() if name != "rollout"},
            transfer=read,
            checkpoint=checkpoint,
            recorder=_recorder(config, host, run_dir, callbacks, snapshots, validator, tokenizer),
            callbacks=callbacks,
            rollout=rollout,
            timeline=Timeline.of(run_dir, place, config.run.timeline_mb),
            second=SecondData.of(config, host, algorithm, tokenizer, sampling.max_new_tokens),
        )
        undo.pop_all()
    return Built(Orchestrator(parts), place.cluster, snapshots)


def _recorder(
    config: Config,
    host: PluginHost,
    run_dir: Path,
    callbacks: CallbackList,
    snapshots: SnapshotStore,
    validator: Callable[[], Mapping[str, float]] | None,
    tokenizer: Any,
) -> Recorder:
    loggers = [one.load()(one.config) for one in config.logger]
    pieces = pieces_of(tokenizer)
    return Recorder(config, run_dir, loggers, callbacks, snapshots, host.hook, validator, pieces)


def engine_specs(
    config: Config, algorithm: Algorithm, temperature: float, max_response: int
) -> dict[str, EngineSpec]:
    """What each model role's workers set up, the policy first."""
    roles = roles_of(config, algorithm)
    if not roles or roles[0].name != "policy":
        raise ConfigError(f"{type(algorithm).__name__}.roles() must begin with the policy")
    specs = {}
    for role in roles:
        options = config.role(role.name)
        source = options.model.path
        if role.name not in config.roles and role.init_from is not None:
            source = config.role(role.init_from).model.path
        model = ModelSpec(
            path=str(resolve_model(source)),
            model=options.model,
            kind=role.model,
            optim=options.optim if role.trained else None,
            optim_steps=_optim_steps(config, role),
            temperature=temperature,
            seed=config.seed,
        )
        specs[role.name] = EngineSpec(
            role=role,
            model=model,
            strategy=options.strategy,
            algorithm=config.algo,
            tokens_per_microbatch=options.optim.tokens_per_microbatch,
            max_grad_norm=options.optim.max_grad_norm,
            max_response_tokens=max_response,
            tokens_of=str(resolve_model(config.model.path)) if reads_text(role) else "",
        )
    return specs


def _optim_steps(config: Config, role: RoleSpec) -> int:
    """Optimiser steps of a role over the whole run: where its schedule ends."""
    epochs, per_step = role.schedule(config.algo.config)
    prompts = config.data.prompts_per_step
    steps = config.steps - max(role.from_step - 1, 0)
    return max(steps, 0) * epochs * math.ceil(prompts / (per_step or prompts))


def run_sampling(config: Config, path: str, tokenizer: Any) -> Sampling:
    """The run's sampling: options of the rollout, and every token that ends a response."""
    from transformers import AutoConfig, GenerationConfig

    sampling: Sampling = config.rollout.config.sampling()
    try:
        generation = GenerationConfig.from_pretrained(path)
    except OSError:
        generation = None
    described = AutoConfig.from_pretrained(path, trust_remote_code=False)
    stops = stop_token_ids(tokenizer, described, generation)
    ends = tuple(dict.fromkeys((*sampling.stop_token_ids, *stops)))
    return dataclasses.replace(sampling, stop_token_ids=ends)


def start_groups(
    config: Config, algorithm: Algorithm, path: str, sampling: Sampling, place: Place
) -> tuple[dict[str, WorkerGroup], Any]:
    """A group for each role of the algorithm and the rollout, and the transfer."""
    temperature = sampling.temperature or 1.0
    specs = engine_specs(config, algorithm, temperature, sampling.max_new_tokens)
    placement = place.placement
    transfer = config.transfer.load()(config.transfer.config)
    try:
        specs = with_shared_bases(specs, config, placement)
        rollout = None
        if not algorithm.offline:
            rollout = RolloutSpec(
                path=str(path),
                model=config.model,
                seed=config.seed,
                device=place.info.device,
                max_prompt_tokens=longest_prompt(config),
                max_new_tokens=sampling.max_new_tokens,
                mesh=rollout_mesh(config, placement),
                grouping=config.resharder.load().grouping,
            )
        groups = place.cluster.start(placement, specs, rollout, config, transfer)
        for role, spec in specs.items():
            groups[role].width = width_of(spec.model.path)
    except BaseException:
        transfer.close()
        raise
    return groups, transfer
