"""Guess a number from 1 to 7 in three turns: ``--config recipes/tiny_guess.yaml``.

The shipped model knows digits and nothing of the game. A message of one digit is a call of
``guess``, which is what the parser here says; the answers are ``<`` and ``>``. Three guesses are
enough for whoever halves the range every time.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlframe.interfaces.tools import Parsed, Piece, ToolCall, ToolParser, ToolSchema

__all__ = ["DigitParser", "Guess"]


class Guess:
    """A secret number, and whether a guess is too high or too low."""

    reward = 0.0
    done = False

    def reset(self, answer: str) -> str:
        """Begin: the secret comes from the row, and is the same for its whole group."""
        self._secret = 1 + int(answer) % 7
        return "?"

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: what it may be, 1 to 7.
        """
        if number == self._secret:
            self.reward, self.done = 1.0, True
            return "!"
        return ">" if number < self._secret else "<"


class DigitParser(ToolParser):
    """A digit is a guess."""

    def parse(self, text: str, tools: Sequence[ToolSchema] = ()) -> Parsed:
        """See :class:`ToolParser`."""
        found = [(n, letter) for n, letter in enumerate(text) if letter in "0123456789"]
        if not found:
            return Parsed((Piece(text),))
        at, digit = found[0]
        call = Piece(text[: at + 1], call=ToolCall("guess", {"number": int(digit)}))
        return Parsed((call, Piece(text[at + 1 :])) if text[at + 1 :] else (call,))
