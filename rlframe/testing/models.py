"""Small models and micro-batches for kits and tests: random, seeded, made in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["random_micro", "tiny_model"]

VOCABULARY = 37


def tiny_model(directory: Path, kind: str = "qwen2", seed: int = 0, **options: Any) -> Path:
    """Write a random Qwen2 or Llama of about 10,000 parameters; returns its folder.

    Widths divide by neither 2, 4 nor 8 ranks, Qwen2 has biases and a tied head, Llama neither.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 20,
        "intermediate_size": 34,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "initializer_range": 0.25,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": kind == "qwen2",
        **options,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any
        if kind == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**settings))
        else:
            model = LlamaForCausalLM(LlamaConfig(**settings))
        # Norms and biases start at one and zero, where a mixed-up pair would not be noticed.
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(directory)
    finally:
        if bars:
            logging.enable_progress_bar()
    return directory


def random_micro(rows: int = 6, prompt: int = 7, response: int = 9, seed: int = 0) -> TensorDict:
    """Rows of unequal length, one without a response, padded as ``Batch.to_tensordict`` pads.

    Columns beside ids and lengths: ``weights`` (rows, response) float32, zero beyond each row.
    """
    import torch
    from tensordict import TensorDict

    g = torch.Generator().manual_seed(seed)
    prompt_n = torch.randint(1, prompt + 1, (rows,), generator=g)
    response_n = torch.randint(1, response + 1, (rows,), generator=g)
    prompt_n[0], response_n[0] = prompt, response
    if rows > 2:
        response_n[1] = 0
    inside = torch.arange(response) < response_n[:, None]
    left = torch.arange(prompt) >= prompt - prompt_n[:, None]
    return TensorDict(
        {
            "prompt_ids": torch.randint(1, VOCABULARY, (rows, prompt), generator=g) * left,
            "response_ids": torch.randint(1, VOCABULARY, (rows, response), generator=g) * inside,
            "prompt_lengths": prompt_n,
            "response_lengths": response_n,
            "weights": (torch.rand(rows, response, generator=g) - 0.3) * inside,
        },
        batch_size=[rows],
    )
