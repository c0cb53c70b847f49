"""Score models that are sequence classifiers of their own kind: encoders with a pooler, say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlframe.errors import ModelError
from rlframe_strategies.module import LanguageModel

if TYPE_CHECKING:
    from rlframe_strategies.divergence import Beside
    from rlframe_strategies.packing import Inputs

__all__ = ["Classifier", "is_own_kind"]


def is_own_kind(config: Any) -> bool:
    """Whether a checkpoint's classifier is more than a linear ``score`` of a decoder's last token.

    That one is built from the causal language model, as any model that gets a new head.
    """
    from transformers import AutoModelForSequenceClassification

    named = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
    known = AutoModelForSequenceClassification._model_mapping
    if not named or type(config) not in known:
        return False
    with torch.device("meta"):
        model = known[type(config)](config)
    return not isinstance(getattr(model, "score", None), nn.Linear)


class Classifier(LanguageModel):
    """A whole ``AutoModelForSequenceClassification`` with one label, called as it is."""

    def __init__(self, lm: Any, source: str) -> None:
        nn.Module.__init__(self)
        if lm.config.num_labels != 1:
            raise ModelError(
                f"model '{source}' has {lm.config.num_labels} labels; a score model has one"
            )
        self.lm = lm
        self.kind = "score"

    def forward(
        self, inputs: Inputs, computes: Sequence[str], beside: Beside | None = None
    ) -> dict[str, Tensor]:
        """A score per row (b,), float32."""
        out = self.lm(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask)
        logits: Tensor = out.logits
        return {"scores": logits[:, 0].float()}
