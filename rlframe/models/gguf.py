"""GGUF models: dequantised once to a Hugging Face folder, which every engine then reads.

The folder lies in the system's place for temporary files and is made again where it is gone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_gguf", "dequantised", "gguf_file"]

_SUFFIX, _MAGIC = ".gguf", b"GGUF"
_PACKAGES = ("gguf", "accelerate")
_OTHER_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin")
_QUANTIZED = ("hf_quantizer", "is_quantized", "quantization_method")
"""Attributes of a model that keep it from being saved as a plain one."""


def gguf_file(path: str | Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one of a folder without other weights.

    Raises ``ModelError`` where a folder holds several.
    """
    place = Path(path)
    if place.suffix.lower() == _SUFFIX and place.is_file():
        return place
    if not place.is_dir() or any(any(place.glob(pattern)) for pattern in _OTHER_WEIGHTS):
        return None
    found = sorted(file for file in place.iterdir() if file.suffix.lower() == _SUFFIX)
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:6])
        raise ModelError(f"{place} holds several GGUF files ({names}): name one of them")
    return found[0] if found else None


def check_gguf(file: Path) -> None:
    """Raises ``ModelError`` where a file is no GGUF file, or none can be read here."""
    with file.open("rb") as opened:
        magic = opened.read(len(_MAGIC))
    if magic != _MAGIC:
        raise ModelError(f"{file} is no GGUF file: it begins with {magic!r}")
    absent = [name for name in _PACKAGES if find_spec(name) is None]
    if absent:
        raise ModelError(
            f"{file}: GGUF models need {' and '.join(absent)}: pip install 'rlframe[gguf]'"
        )


def dequantised(file: Path) -> Path:
    """A folder with the model in float32 safetensors, its config, generation config and tokenizer.

    Made at the first call for this file, its size and its time of change. Raises ``ModelError``
    for a file that cannot be read, an architecture that transformers does not read from GGUF, and
    a disk without room.
    """
    check_gguf(file)
    folder = _cache() / _key(file)
    if folder.is_dir():
        return folder
    try:
        made = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            _convert(file, made)
            _publish(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(
            f"{file} cannot be dequantised into {folder.parent}: {error}. Where the disk has no "
            "room for it, set TMPDIR to a folder that has"
        ) from error
    except Exception as error:  # the readers' own, of any kind: a damaged file, an unknown model
        text = " ".join(str(error).split())
        raise ModelError(f"{file} cannot be read ({type(error).__name__}: {text[:300]})") from error
    return folder


def _cache() -> Path:
    """The user's own folder among temporary files; nobody else may write weights there."""
    folder = Path(tempfile.gettempdir()) / f"rlframe-gguf-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ModelError(
            f"{folder} is not yours alone: remove it, or set TMPDIR to a folder of your own"
        )
    return folder


def _key(file: Path) -> str:
    found = file.stat()
    text = f"{file.resolve()}|{found.st_size}|{found.st_mtime_ns}|{version('transformers')}"
    return f"{file.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _publish(made: Path, folder: Path) -> None:
    """Give the finished folder its name, unless another process was first."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _convert(file: Path, folder: Path) -> None:
    import torch
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    fields = {key: field.contents() for key, field in _few(GGUFReader(str(file))).items()}
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(file.parent),
        "gguf_file": file.name,
        "trust_remote_code": False,
    }
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(**source)
        _check_rope(file, fields, config)
        _set_epsilon(fields, config)
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model, report = AutoModelForCausalLM.from_pretrained(
            **source, config=config, dtype=torch.float32, output_loading_info=True
        )
        _check_whole(file, model, report["missing_keys"])
        _as_plain(model)
        _add_end_of_turn(fields, model.generation_config)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        if bars:
            logging.enable_progress_bar()


def _few(reader: Any) -> dict[str, Any]:
    """Fields of one value: the long lists of tokens are the tokenizer's."""
    few = {key: field for key, field in reader.fields.items() if len(field.data) == 1}
    if any("rope_f" in tensor.name for tensor in reader.tensors):
        few["rope.factors"] = few["general.architecture"]
    return few


def _check_rope(file: Path, fields: Mapping[str, Any], config: Any) -> None:
    """Refuse scaled positions that the config does not have: the model would be a worse one."""
    scaling = fields.get(f"{fields['general.architecture']}.rope.scaling.type", "none")
    scaled = "rope.factors" in fields or scaling not in ("none", "")
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if scaled and kind == "default":
        raise ModelError(
            f"{file} scales its rotary positions, which transformers does not read from GGUF: use "
            "the model's safetensors"
        )


def _set_epsilon(fields: Mapping[str, Any], config: Any) -> None:
    """The file's epsilon in its shortest form: 1e-05, not 9.999999747378752e-06."""
    import numpy as np

    value = fields.get(f"{fields['general.architecture']}.attention.layer_norm_rms_epsilon")
    if value is not None and hasattr(config, "rms_norm_eps"):
        config.rms_norm_eps = float(str(np.float32(value)))


def _check_whole(file: Path, model: Any, missing: Any) -> None:
    head = model.get_output_embeddings()
    tied = model.get_input_embeddings().weight is getattr(head, "weight", None)
    lacks = sorted(name for name in missing if not (tied and name.startswith("lm_head")))
    if lacks:
        raise ModelError(f"{file} lacks weights: {', '.join(lacks[:5])}")


def _as_plain(model: Any) -> None:
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for name in _QUANTIZED:
        if name in vars(model):
            delattr(model, name)


def _add_end_of_turn(fields: Mapping[str, Any], generation: Any) -> None:
    """A chat model may end a turn by another token than a text."""
    turn, ends = fields.get("tokenizer.ggml.eot_token_id"), generation.eos_token_id
    if turn is None:
        return
    known = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    generation.eos_token_id = list(dict.fromkeys([*known, int(turn)]))
