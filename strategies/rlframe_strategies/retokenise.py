"""Rows for a score model with a tokenizer of its own: decoded, rendered anew, tokenised anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlframe import Batch, ModelError
from rlframe.batching.packed import Packed
from rlframe.data.render import conversation_tokens, same_tokens

__all__ = ["Retokeniser"]


class Retokeniser:
    """Turns rows in the policy's tokens into rows in the score model's.

    Each conversation is one prompt with an empty response, so that a score is read at its end.
    """

    def __init__(self, theirs: Any, own: Any) -> None:
        self._theirs, self._own = theirs, own

    @classmethod
    def between(cls, policy: str, scorer: str) -> Retokeniser | None:
        """From the policy's to the score model's tokenizer; None where both write alike.

        Raises ModelError for a folder or name without a tokenizer.
        """
        if policy == scorer:
            return None
        theirs, own = _tokenizer(policy), _tokenizer(scorer)
        return None if same_tokens(theirs, own) else cls(theirs, own)

    def __call__(self, batch: Batch) -> Batch:
        """A batch of the same rows with ``prompt_ids`` and an empty response."""
        prompts, responses = batch["prompt_text"], batch.packed("response_ids").rows()
        rows = []
        for prompt, ids in zip(prompts, responses, strict=True):
            text = self._theirs.decode(ids.tolist(), skip_special_tokens=True)
            rows.append(np.array(conversation_tokens(prompt, text, self._own), np.int64))
        none = np.zeros(len(batch), np.int64)
        columns = {
            "prompt_ids": Packed.from_rows(rows, "int64"),
            "response_ids": Packed(np.zeros(0, np.int64), none),
            "response_mask": Packed(np.zeros(0, bool), none),
        }
        return Batch.from_columns(columns, schema=batch.schema)


def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"no tokenizer in '{path}': {error}") from error
