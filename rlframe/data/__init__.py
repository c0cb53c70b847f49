"""From a dataset URI to prompts as exact tokens, drawn once an epoch, resumable at any draw."""

from rlframe.data.encode import check_columns, encode_prompt, limit_prompt, prompt_tokens
from rlframe.data.source import open_dataset
from rlframe.data.stop import stop_token_ids
from rlframe.data.stream import PromptStream, read_rows

__all__ = [
    "PromptStream",
    "check_columns",
    "encode_prompt",
    "limit_prompt",
    "open_dataset",
    "prompt_tokens",
    "read_rows",
    "stop_token_ids",
]
