"""Replies of a judge that are known already: in memory, and on disk where a folder is named."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

from rlframe import RewardError

__all__ = ["KnownReplies"]


class KnownReplies:
    """Texts by the content of the question; ``most`` of them in memory, the oldest dropped.

    The folder may be shared by several processes: a file is whole or not there.
    """

    def __init__(self, folder: str, most: int) -> None:
        self._folder = Path(folder).expanduser() if folder else None
        self._most = most
        self._texts: OrderedDict[str, str] = OrderedDict()

    @staticmethod
    def key(question: Any) -> str:
        """The same for equal questions (of JSON)."""
        text = json.dumps(question, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> str | None:
        """The reply, None where it is not known. Raises RewardError for a damaged file."""
        if key in self._texts:
            self._texts.move_to_end(key)
            return self._texts[key]
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            text = json.loads(path.read_text(encoding="utf-8"))["reply"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise RewardError(f"the cached reply {path} cannot be read; delete it") from error
        self._remember(key, str(text))
        return str(text)

    def put(self, key: str, text: str) -> None:
        """Keep a reply. Raises RewardError where the folder cannot be written."""
        self._remember(key, text)
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"reply": text}, file)
            os.replace(name, path)
        except OSError as error:
            raise RewardError(f"the judge's cache cannot be written: {error}") from error

    def _remember(self, key: str, text: str) -> None:
        self._texts[key] = text
        self._texts.move_to_end(key)
        while len(self._texts) > self._most:
            self._texts.popitem(last=False)

    def _path(self, key: str) -> Path | None:
        return None if self._folder is None else self._folder / key[:2] / f"{key}.json"
