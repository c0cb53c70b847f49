"""One update on a GPU equals one on the CPU; bf16 runs."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_fit_learns_on_a_gpu(tmp_path, strategy):
    import rlframe

    result = rlframe.fit(
        strategy=strategy,
        steps=20,
        cluster={"name": "inline", "device": "cuda"},
        run={"dir": str(tmp_path), "name": "gpu"},
        logger=["jsonl"],
    )
    assert result.summary["val_after"] > result.summary["val_before"]
