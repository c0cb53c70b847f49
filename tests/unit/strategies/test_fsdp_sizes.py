"""fsdp under replicas, tensor parallelism and both equals a plain float64 model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlframe.calling.protocol import Mesh
from rlframe.config import ModelConfig, OptimConfig
from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.testing.dist import RankError, run_ranks
from rlframe.testing.models import tiny_model
from rlframe.testing.strategy_reference import Reference
from rlframe.testing.strategy_runs import SEEDS, Job, run_job, whole_weights
from rlframe.weights.layout import Layout, Plan
from rlframe.weights.moving import Mover
from rlframe.weights.sharding import grid_layout
from rlframe.weights.storage import local_view
from rlframe_plugins.resharders.planner import missing_moves
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.single import SingleStrategy
from tests.unit.strategies.fsdp_runs import check_steps, run
from tests.unit.strategies.models import cut_model

pytestmark = [pytest.mark.dist, pytest.mark.timeout(180)]


SHAPES = [
    pytest.param(4, {"replicas": 2}, "qwen2", id="hsdp"),
    pytest.param(2, {"tp": 2, "activation_offload": True}, "llama", id="tp-row-bias-activations"),
    pytest.param(4, {"tp": 2, "cpu_offload": True}, "qwen3", id="fsdp-tp-head-norms-offload"),
    pytest.param(4, {"tp": 4}, "qwen3", id="tp-repeated-kv-head-norms"),
    pytest.param(8, {"tp": 2, "replicas": 2}, "qwen2", id="hsdp-tp"),
]


@pytest.mark.parametrize(("world", "options", "model"), SHAPES)
def test_two_steps_equal_the_reference(
    tmp_path: Path, world: int, options: dict[str, Any], model: str
) -> None:
    path = cut_model(tmp_path / "model", model)
    check_steps(run(world, path, options, seeds=SEEDS), path, "policy")


def test_a_padding_token_is_not_trained_in_its_own_part_of_the_vocabulary(tmp_path: Path) -> None:
    """Embeddings with ``padding_idx`` keep that row, wherever it lies."""
    path = cut_model(tmp_path / "model", "llama", pad_token_id=30)
    seen = run(2, path, {"tp": 2}, seeds=SEEDS)
    check_steps(seen, path, "policy")


@dataclass(frozen=True)
class Trained:
    """A run of two AdamW steps in one process, and a snapshot of its first on 2 x 2 ranks."""

    job: Job
    folder: Path
    saved: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    path = cut_model(folder / "model", "qwen3")
    optim = OptimConfig(lr=0.01, eps=1e-3, schedule="cosine", weight_decay=0.1)
    job = Job(FSDPStrategy, path, optim=optim, seeds=SEEDS[:1])
    saving = replace(job, options={"tp": 2}, save=folder / "snapshot")
    saved = whole_weights(run_ranks(run_job, 4, saving))
    after = run_ranks(run_job, 1, replace(job, target=SingleStrategy, seeds=SEEDS))
    return Trained(job, folder / "snapshot", saved, whole_weights(after))


@pytest.mark.parametrize(
    ("world", "options"), [(1, None), (2, {"tp": 2}), (4, {"replicas": 2}), (8, {"tp": 4})]
)
def test_a_snapshot_of_2_x_2_ranks_loads_into_others_bit_by_bit(
    trained: Trained, world: int, options: dict[str, Any] | None
) -> None:
    """None: ``single``."""
    target = SingleStrategy if options is None else FSDPStrategy
    job = replace(trained.job, target=target, options=options or {}, load=trained.folder)
    loaded = whole_weights(run_ranks(run_job, world, replace(job, seeds=())))
    for name, tensor in trained.saved.items():
        assert torch.equal(tensor, loaded[name]), name


@pytest.mark.parametrize(("world", "options"), [(2, {"tp": 2}), (8, {"tp": 2, "replicas": 2})])
def test_a_snapshot_of_2_x_2_ranks_continues_on_others(
    trained: Trained, world: int, options: dict[str, Any]
) -> None:
    """The next step with its optimiser state is that of one process."""
    job = replace(trained.job, options=options, load=trained.folder, seeds=SEEDS[1:])
    for name, tensor in whole_weights(run_ranks(run_job, world, job)).items():
        torch.testing.assert_close(tensor, trained.after[name], rtol=1e-5, atol=1e-5, msg=name)


def test_a_snapshot_of_one_process_loads_into_2_x_2_ranks(tmp_path: Path) -> None:
    path = cut_model(tmp_path / "model")
    job = Job(SingleStrategy, path, save=tmp_path / "snapshot")
    single = run_ranks(run_job, 1, job)
    there = Job(FSDPStrategy, path, {"tp": 2}, load=tmp_path / "snapshot", seeds=())
    many = whole_weights(run_ranks(run_job, 4, there))
    for name, tensor in whole_weights(single).items():
        assert torch.equal(tensor, many[name]), name


@pytest.mark.parametrize("options", [{"replicas": 4}, {"tp": 2, "replicas": 2}])
def test_a_snapshot_holds_every_element_once(tmp_path: Path, options: dict[str, Any]) -> None:
    from safetensors import safe_open

    path, folder = cut_model(tmp_path / "model"), tmp_path / "snapshot"
    seen = run(4, path, options, save=folder)
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as saved:
            names = [n for n in saved.keys() if n.startswith("weight/")]  # noqa: SIM118
            total += sum(saved.get_tensor(name).numel() for name in names)
    params = seen[0].layout.params.values()
    assert total == sum(torch.Size(info.shape).numel() for info in params)


def test_an_export_of_cut_and_sharded_weights_loads(tmp_path: Path) -> None:
    path = cut_model(tmp_path / "model", "llama")
    seen = run(8, path, {"tp": 4}, export=tmp_path / "exported")
    named = Reference(tmp_path / "exported").named_parameters()
    for name, tensor in whole_weights(seen).items():
        assert torch.equal(tensor, named[name].detach().float()), name


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("heads", {"tp": 4}, "strategy.tp=4 does not divide the model's 2 attention heads"),
        ("gpt2", {"tp": 2}, "GPT2LMHeadModel has no tensor-parallel plan"),
        ("phi3", {"tp": 2}, "Phi3ForCausalLM wants '(rowwise_split|colwise_gather)_"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(
    tmp_path: Path, kind: str, options: dict[str, Any], message: str
) -> None:
    path = tiny_model(tmp_path / "m") if kind == "heads" else other(tmp_path / "m", kind)
    with pytest.raises(RankError, match=message):
        run(options["tp"], path, options, seeds=())


def other(folder: Path, kind: str) -> Path:
    import transformers

    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=37, n_positions=64, n_embd=16, n_layer=1, n_head=2
        )
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
        return folder
    config = transformers.Phi3Config(
        vocab_size=37,
        hidden_size=16,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        max_position_embeddings=64,
        original_max_position_embeddings=64,
    )
    transformers.Phi3ForCausalLM(config).save_pretrained(folder)
    return folder


def reshard(rank: RankInfo, path: Path) -> int:
    """Move weights from 2 x 2 ranks to generation by single ranks and pairs; bytes received."""
    from rlframe.weights.model_cuts import cuts_of_model, meta_model

    strategy = FSDPStrategy(FSDPStrategy.Config(tp=2), rank)
    strategy.build(ModelSpec(str(path), ModelConfig(path=str(path))))
    source = strategy.layout()
    params, cuts = cuts_of_model(meta_model(str(path)))
    assert params == source.params
    whole = dict(Reference(path).named_parameters())
    received = 0
    for target in (
        Layout.full(params, rank.world),
        grid_layout(params, cuts, Mesh(dp=2, tp=2)),
        grid_layout(params, cuts, Mesh(tp=4, tg=2), "strided"),
    ):
        plan = Plan(source, target, tuple(missing_moves(source, target)))
        mover = Mover(plan, rank.rank, torch.device("cpu"))
        out = mover.run(strategy.views())
        received += mover.received
        for piece in target.ranks[rank.rank]:
            view = local_view(piece, out[piece.view.key])
            assert torch.equal(view, whole[piece.name][piece.box.slices()].float()), piece.name
    strategy.close()
    return received


def test_weights_move_from_strided_shards_to_generation_layouts_bit_by_bit(tmp_path: Path) -> None:
    path = cut_model(tmp_path / "model")
    assert all(received > 0 for received in run_ranks(reshard, 4, path))


def test_sizes_that_do_not_fit_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"strategy.tp=3 .* does not divide 4 ranks"):
        FSDPStrategy(FSDPStrategy.Config(tp=3), RankInfo(rank=0, world=4))
    with pytest.raises(ValueError, match="replicas"):
        FSDPStrategy.Config(replicas=0)


def test_adapters_under_tensor_parallelism_are_refused_before_anything_starts():
    values = {"strategy": {"name": "fsdp", "tp": 2}, "model": {"lora": {"rank": 4}}}
    with pytest.raises(ConfigError, match=r"no adapters under tensor parallelism.*strategy.tp=1"):
        load_config(PluginHost().load(), Asked(values=values))
