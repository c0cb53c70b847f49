"""A causal language model from a folder or a hub name, ready to be wrapped and placed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlframe.errors import ConfigError, ModelError
from rlframe.models.paths import resolve_model
from rlframe_strategies.attention import register_packed_attention

if TYPE_CHECKING:
    from rlframe.config import ModelConfig

__all__ = [
    "Loaded",
    "dtype_of",
    "load_model",
    "quiet",
    "read_config",
    "read_tensors",
    "save_tokenizer",
]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "*.tiktoken",
    "spiece.model",
    "sentencepiece*",
)


@dataclass(frozen=True)
class Loaded:
    """A transformers model on the CPU, where it came from, and the config that it had there."""

    model: Any
    source: str
    original_config: Any


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and load reports of transformers; what lacks is our own error."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """The torch type of ``model.dtype``."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[name]


def read_config(path: str) -> Any:
    """The transformers config at a resolved path. Raises ``ModelError``."""
    from transformers import AutoConfig

    folder = Path(path)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(f"model '{path}' is a folder without config.json")
    if not folder.exists() and (path.startswith((".", "/")) or path.count("/") > 1):
        raise ModelError(f"model '{path}': there is no such folder; check --model")
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(path, error) from error


def load_model(
    path: str, config: ModelConfig, device: torch.device, auto: str = "AutoModelForCausalLM"
) -> Loaded:
    """Load weights on the CPU in the wanted type, dropout off, in evaluation mode.

    ``auto`` is the class of transformers that knows the architecture.
    Raises ``ModelError`` for a missing folder, file or network, an unknown architecture, and
    weights that do not fit the config.
    """
    source = resolve_model(path)
    original, used = read_config(source), read_config(source)
    for name, value in vars(used).items():
        if "drop" in name and isinstance(value, float):
            setattr(used, name, 0.0)
    model = _load(source, used, dtype_of(config.dtype, device), config.attn, auto)
    model.eval()
    model.config.use_cache = False
    return Loaded(model, source, original)


def _load(source: str, config: Any, dtype: torch.dtype, attn: str, auto: str) -> Any:
    import transformers
    from safetensors import SafetensorError

    register_packed_attention()
    options = _attention(config, attn)
    try:
        with quiet():
            model, report = getattr(transformers, auto).from_pretrained(
                source,
                config=config,
                dtype=dtype,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise _unreadable(source, error) from error
    head = _head_names(model)
    missing = sorted(set(report["missing_keys"]) - head)
    if missing:
        raise ModelError(f"model '{source}' lacks weights: {', '.join(missing[:5])}")
    model.lacks_head = bool(set(report["missing_keys"]) & head)
    return model


def _attention(config: Any, attn: str) -> dict[str, str]:
    """transformers' choice for auto, but eager for Gemma 2's capped scores, which sdpa ignores."""
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    if attn == "auto":
        return {"attn_implementation": "eager"} if capped else {}
    if attn == "sdpa" and capped:
        raise ConfigError(
            "model.attn=sdpa ignores this model's cap of scores: set model.attn=eager"
        )
    return {"attn_implementation": attn}


def _head_names(model: Any) -> set[str]:
    head = model.get_output_embeddings()
    if head is None:
        return set()
    return {name for name, p in model.named_parameters() if any(p is q for q in head.parameters())}


def _unreadable(path: str, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelError(
        f"model '{path}' cannot be loaded: {reason}\n"
        "Name a folder with config.json and safetensors, or a hub name that this machine can reach."
    )


def read_tensors(source: str, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Those of the named tensors that a model's safetensors hold; for heads."""
    from safetensors import safe_open

    found = {}
    for file in sorted(_folder_of(source).glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as tensors:
            found.update({n: tensors.get_tensor(n) for n in names if n in tensors.keys()})  # noqa: SIM118
    return found


def _folder_of(source: str) -> Path:
    """A folder itself, or where the hub's cache holds a name that was loaded from it."""
    from transformers.utils import cached_file

    if Path(source).is_dir():
        return Path(source)
    return Path(cached_file(source, "config.json")).parent


def save_tokenizer(source: str, directory: Path) -> None:
    """Copy a folder's tokenizer files byte by byte, or save those of a hub name."""
    import shutil

    folder = Path(source)
    if folder.is_dir():
        for pattern in _TOKENIZER_FILES:
            for file in folder.glob(pattern):
                if file.is_file():
                    shutil.copyfile(file, directory / file.name)
        return
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(directory)
