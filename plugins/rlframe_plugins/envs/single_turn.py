"""One question, one answer."""

from __future__ import annotations

from rlframe.interfaces.data import Environment, Generate
from rlframe.requests import Episode, Request, Row, Segment

__all__ = ["SingleTurn"]


class SingleTurn(Environment):
    """An episode of one turn: the response is the whole episode."""

    async def run(self, row: Row, request: Request, generate: Generate) -> Episode:
        """See :class:`Environment`."""
        done = await generate(request)
        count = len(done.token_ids)
        segment = Segment(
            prompt_ids=list(request.prompt_ids),
            response_ids=list(done.token_ids),
            response_mask=[True] * count,
            logprobs=list(done.logprobs),
            versions=list(done.versions),
            turn_ids=[0] * count,
        )
        text = self.tokenizer.decode(done.token_ids, skip_special_tokens=True)
        return Episode(request, [segment], done.finish_reason, str(text))
