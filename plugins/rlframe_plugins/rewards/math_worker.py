"""A process that compares mathematical answers: one JSON request a line in, one reply a line out.

It is a process of its own because a hard expression can hold the interpreter for hours, where no
signal and no other thread gets a turn; who asked ends it then and starts another.
"""

from __future__ import annotations

import json
import logging
import sys

__all__ = ["main"]


def main() -> None:
    """Answer requests ``{"answer", "response"}`` until the input ends."""
    replies = sys.stdout
    sys.stdout = sys.stderr
    logging.disable(logging.WARNING)
    import math_verify

    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = _compare(math_verify, request["answer"], request["response"])
        except Exception as error:  # parsers of foreign text raise what they like
            reply = {"score": 0.0, "note": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _compare(library: object, answer: str, response: str) -> dict[str, object]:
    parse, verify = library.parse, library.verify  # type: ignore[attr-defined]
    gold = parse(answer, parsing_timeout=None)
    if not gold:
        gold = parse(f"${answer}$", parsing_timeout=None)
    if not gold:
        return {"error": f"the answer {answer!r} holds no mathematical expression"}
    found = parse(response, parsing_timeout=None)
    return {"score": float(verify(gold, found, timeout_seconds=None))}


if __name__ == "__main__":
    main()
