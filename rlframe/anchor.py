"""A config that means the same from every working directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlframe.config import Config, ModelConfig
    from rlframe.host.host import PluginHost

__all__ = ["anchored"]


def anchored(config: Config, host: PluginHost) -> Config:
    """The config with absolute paths to data and models: what a run's folder keeps.

    Only paths that are there are changed; a model name of the hub stays one.
    """
    from rlframe.data import anchor_uri

    validate = config.data.validate
    data = dataclasses.replace(
        config.data,
        train=anchor_uri(config.data.train, host),
        validate=None if validate is None else anchor_uri(validate, host),
    )
    roles = {
        name: dataclasses.replace(role, model=_model(role.model))
        for name, role in config.roles.items()
    }
    default = config.default_role
    return dataclasses.replace(
        config,
        data=data,
        model=_model(config.model),
        roles=roles,
        default_role=dataclasses.replace(default, model=_model(default.model)),
    )


def _model(model: ModelConfig) -> ModelConfig:
    folder = Path(model.path).expanduser()
    is_path = folder.is_dir() or (folder.suffix.lower() == ".gguf" and folder.is_file())
    return dataclasses.replace(model, path=str(folder.resolve())) if is_path else model
