"""The tiny model that rlframe ships: ``python -m rlframe_templates.make_tiny DIR`` makes it again.

A random Qwen2 of 480,000 parameters with a tokenizer of one token a byte learns to add from
``recipes/tiny_sft.yaml`` and is exported. The demonstrations in that recipe often forget to carry
(the option ``slips`` of ``builtin:arithmetic``), so the model knows how to add but does it in less
than half of its greedy answers: what is left is for reinforcement learning.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main", "make_tiny", "write_model", "write_start", "write_tokenizer"]

SPECIAL = ("<pad>", "<eos>", "<system>", "<user>", "<assistant>", "<tool>", "<think>", "</think>")
"""Special tokens, ids from 0; the byte b is token 8 + b."""
RECIPE = Path(__file__).with_name("recipes") / "tiny_sft.yaml"
_CONTEXT = 512

_CHAT = (
    "{% for message in messages %}"
    "{% if message['role'] not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('unknown role ' ~ message['role']) }}{% endif %}"
    "<{{ message['role'] }}>{{ message['content'] }}<eos>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of one token a byte, which adds no token of its own to a text.

    It is Qwen2's without merges: for that model type ``AutoTokenizer`` takes no other, and the
    class is named so that older versions of transformers find it too.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *_byte_names()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<pad>",
        additional_special_tokens=list(SPECIAL[2:]),
        padding_side="left",
        model_max_length=_CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT,
    ).save_pretrained(directory)
    settings = directory / "tokenizer_config.json"
    known = {**json.loads(settings.read_text()), "tokenizer_class": "Qwen2Tokenizer"}
    settings.write_text(json.dumps(known, indent=2) + "\n")


def _byte_names() -> list[str]:
    """How byte-level tokenizers write the bytes 0 to 255: printable ones as they are."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def write_model(directory: Path, seed: int = 0) -> None:
    """Write a random float32 Qwen2 for that tokenizer: 3 layers of width 128, 4 heads over 2."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(SPECIAL) + 256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT,
        initializer_range=0.08,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<pad>"),
        eos_token_id=SPECIAL.index("<eos>"),
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.save_pretrained(directory)


def write_start(directory: Path, seed: int = 0) -> Path:
    """Write the untrained model and its tokenizer, the start of the recipe; returns the folder."""
    directory.mkdir(parents=True, exist_ok=True)
    write_model(directory, seed)
    write_tokenizer(directory)
    return directory


def make_tiny(directory: Path, seed: int = 0) -> Path:
    """Make the shipped model: start, recipe, export. Takes minutes.

    A model that is already in ``directory`` is replaced at the end; raises ConfigError at once for
    a folder that holds anything else.
    """
    from rlframe import ConfigError, fit
    from rlframe.snapshots.export import export

    if directory.is_dir() and any(directory.iterdir()) and not (directory / "config.json").exists():
        raise ConfigError(f"{directory} is there and holds no model: name a new folder")
    with tempfile.TemporaryDirectory() as scratch:
        start = write_start(Path(scratch) / "start", seed)
        run = {"dir": str(Path(scratch) / "runs"), "name": "tiny"}
        done = fit(config=RECIPE, model=str(start), seed=seed, run=run)
        made = export(done.run_dir, Path(scratch) / "made")
        if directory.is_dir():
            shutil.rmtree(directory)
        return Path(shutil.copytree(made, directory))


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the model in the folder that is named."""
    parser = argparse.ArgumentParser("python -m rlframe_templates.make_tiny", description=__doc__)
    parser.add_argument("directory", type=Path, help="a new folder, or that of a model to replace")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (default: 0)")
    parser.add_argument("--start", action="store_true", help="only the untrained model")
    options = parser.parse_args(arguments)
    make = write_start if options.start else make_tiny
    print(make(options.directory, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
