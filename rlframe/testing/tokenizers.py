"""A tokenizer of one token a character, for kits and tests."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase, digits

from rlframe.testing.models import VOCABULARY

__all__ = ["char_tokenizer"]

_CHARACTERS = (ascii_lowercase + digits)[: VOCABULARY - 3]


def char_tokenizer(directory: Path) -> Path:
    """Write a tokenizer for :func:`rlframe.testing.models.tiny_model` beside the model.

    Ids 0, 1, 2 are ``<pad>``, ``<bos>``, ``<eos>``; the others are a letter or digit each.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<bos>", "<eos>", *_CHARACTERS]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.save_pretrained(directory)
    return directory
