"""From a dataset URI to prompts as exact tokens, drawn once an epoch, resumable at any draw."""

from rlframe.data.encode import check_columns, encode_prompt, limit_prompt, prompt_tokens
from rlframe.data.mixture import Mixture, first_rows
from rlframe.data.nested import nested_paths, nested_value
from rlframe.data.source import anchor_uri, open_dataset
from rlframe.data.stop import stop_token_ids
from rlframe.data.stream import PromptStream, read_rows

__all__ = [
    "Mixture",
    "PromptStream",
    "anchor_uri",
    "check_columns",
    "encode_prompt",
    "first_rows",
    "limit_prompt",
    "nested_paths",
    "nested_value",
    "open_dataset",
    "prompt_tokens",
    "read_rows",
    "stop_token_ids",
]
