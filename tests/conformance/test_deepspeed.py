"""Strategy deepspeed passes the kit in every stage; ``make test-deepspeed`` runs it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("deepspeed", reason="strategy 'deepspeed' needs deepspeed: make test-deepspeed")

from rlframe.testing.strategy_kit import StrategyKit
from rlframe_strategies.deepspeed_setup import CPU_ADAM, SHARED_MEMORY, import_deepspeed, load_op

pytestmark = pytest.mark.dist

import_deepspeed(torch.device("cpu"))  # once, before ranks are forked
for _op in (SHARED_MEMORY, CPU_ADAM):
    load_op(_op)


class TestZero0(StrategyKit):
    """Nothing is cut."""

    strategy = "deepspeed"
    options = {"zero": 0}  # noqa: RUF012


class TestZero1(StrategyKit):
    """The optimiser's state is cut."""

    strategy = "deepspeed"
    options = {"zero": 1}  # noqa: RUF012


class TestZero2(StrategyKit):
    """Gradients too."""

    strategy = "deepspeed"
    options = {"zero": 2}  # noqa: RUF012


class TestZero3(StrategyKit):
    """Parameters too, all of them."""

    strategy = "deepspeed"
    options = {"zero": 3, "persist_below": 0}  # noqa: RUF012


class TestSmallParametersStayWhole(StrategyKit):
    """As by default, where every parameter of a small model is gathered between steps."""

    strategy = "deepspeed"
    worlds = (2,)


class TestZero2InSmallBuckets(StrategyKit):
    """Several sums a backward pass, one parameter larger than a bucket."""

    strategy = "deepspeed"
    worlds = (2,)
    options = {"zero": 2, "bucket_elements": 700}  # noqa: RUF012


class TestZero3InSmallBuckets(StrategyKit):
    """The same for parameters that are cut."""

    strategy = "deepspeed"
    worlds = (2,)
    options = {"zero": 3, "persist_below": 0, "bucket_elements": 700}  # noqa: RUF012


class TestZero2Offload(StrategyKit):
    """The optimiser steps in host memory."""

    strategy = "deepspeed"
    worlds = (2,)
    options = {"zero": 2, "offload_optimizer": True}  # noqa: RUF012


class TestZero3Offload(StrategyKit):
    """The optimiser and the parameters lie in host memory."""

    strategy = "deepspeed"
    worlds = (2, 4)
    options = {  # noqa: RUF012
        "zero": 3,
        "offload_optimizer": True,
        "offload_params": True,
        "persist_below": 0,
    }
