"""What is refused before Megatron is imported, masks of packed rows, storages that rest."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlframe.config import LoraConfig
from rlframe.config.load import Asked, load_config
from rlframe.config.validate import validate
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost
from rlframe.testing.models import random_micro
from rlframe_strategies.megatron.feeding import feeds_of
from rlframe_strategies.megatron.options import MegatronConfig
from rlframe_strategies.megatron.parking import Parking
from rlframe_strategies.megatron.strategy import MegatronStrategy
from rlframe_strategies.packing import make_inputs


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tp": 0}, "tp"),
        ({"vpp": 2}, "pp above 1"),
        ({"sequence_parallel": True}, "tp above 1"),
        ({"cp": 2}, "Transformer Engine"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        MegatronConfig(**options)


def test_the_mesh_is_what_the_sizes_leave():
    mesh = MegatronStrategy.mesh_of(MegatronConfig(tp=2, pp=2), 8)
    assert (mesh.dp, mesh.pp, mesh.tp) == (2, 2, 2)
    with pytest.raises(ConfigError, match="strategy.tp=2 x strategy.pp=2 does not divide 6 ranks"):
        MegatronStrategy.mesh_of(MegatronConfig(tp=2, pp=2), 6)


def inputs(packed: bool, rows: int = 4):
    return make_inputs(random_micro(rows=rows), packed=packed, masked=False, whole=False)


def test_packed_rows_do_not_see_each_other():
    made = inputs(packed=True)
    (fed,) = feeds_of([made], multiple=4, masked=True)
    width = fed.ids.shape[1]
    assert fed.ids.shape[0] == 1
    assert width % 4 == 0
    assert width - made.input_ids.shape[1] in range(4)
    seen = ~fed.mask[0, 0]
    bounds = made.segments.bounds.tolist()
    for start, end in zip(bounds, bounds[1:], strict=False):
        for place in range(start, end):
            assert seen[place].nonzero()[:, 0].tolist() == list(range(start, place + 1))
    assert bool(seen.diagonal().all())  # a softmax over nothing would be NaN


def test_padded_rows_look_back_only():
    (fed,) = feeds_of([inputs(packed=False)], multiple=1, masked=True)
    width = fed.ids.shape[1]
    assert torch.equal(~fed.mask[0, 0], torch.ones(width, width).tril().bool())


@pytest.mark.parametrize("packed", [True, False])
def test_places_of_states_hold_when_shapes_are_made_alike(packed):
    several = [inputs(packed, rows) for rows in (4, 2)]
    fed = feeds_of(several, multiple=8, masked=True, alike=True)
    assert len({one.shape for one in fed}) == 1
    for made, one in zip(several, fed, strict=True):
        grid = one.ids.T  # (S, b), as states lie
        assert torch.equal(grid[one.take], made.input_ids.flatten()[made.take])
        assert torch.equal(grid[one.last], made.input_ids.flatten()[made.last])


def test_storages_come_back_as_they_were():
    whole, zeros = torch.arange(12.0), torch.ones(5)
    views = [whole[:4].view(2, 2), whole[6:]]
    before = [view.clone() for view in views]
    parking = Parking()
    parking.park(views)
    parking.park([zeros], keep=False)
    assert whole.untyped_storage().nbytes() == zeros.untyped_storage().nbytes() == 0
    parking.bring_back()
    assert all(torch.equal(*pair) for pair in zip(views, before, strict=True))
    assert torch.equal(zeros, torch.zeros(5))


def test_a_shared_cpu_process_is_refused(monkeypatch):
    config = load_config(PluginHost().load(), Asked(flags={"algo": "grpo"})).config
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--cluster ray"):
        MegatronStrategy.validate(config)


def test_adapters_are_refused():
    pytest.importorskip("megatron.core")
    asked = Asked(flags={"strategy": "megatron", "cluster": "ray"})
    loaded = load_config(PluginHost().load(), asked).config
    lora = dataclasses.replace(loaded.model, lora=LoraConfig(rank=4))
    policy = dataclasses.replace(loaded.default_role, model=lora)
    with pytest.raises(ConfigError, match="trains no adapters"):
        validate(dataclasses.replace(loaded, model=lora, default_role=policy))
