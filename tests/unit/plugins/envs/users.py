"""Environments as users write them, good and bad."""

from __future__ import annotations

import asyncio
import os
import signal
import time


class Game:
    """Guess a number; every wrong guess costs."""

    reward = 0.0
    done = False

    def reset(self, answer: str) -> str:
        self.secret, self.count = int(answer), 0
        return "begin"

    def guess(self, number: int) -> str:
        """Guess."""
        self.count += 1
        if number == self.secret:
            self.reward, self.done = 1.0, True
            return "right"
        self.turn_reward = -0.25
        return "higher" if number < self.secret else "lower"

    async def slowly(self, number: int) -> str:
        """Guess later."""
        await asyncio.sleep(0)
        return self.guess(number)

    def calls(self) -> int:
        """How many guesses there were."""
        return self.count


class Bad:
    """Tools that do what tools should not."""

    def reset(self) -> list[dict]:
        return [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]

    def boom(self) -> str:
        """Raise."""
        raise LookupError("nothing there")

    def leave(self) -> str:
        """Raise what is no Exception."""
        raise SystemExit(3)

    def flood(self, size: int) -> str:
        """Say a lot."""
        print("x" * size)
        return "y" * size

    def sleep(self) -> str:
        """Wait, whatever comes."""
        while True:
            try:
                time.sleep(60)
            except Exception:
                continue

    def stuck(self) -> str:
        """Let no signal in."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        while True:
            time.sleep(60)

    def die(self) -> str:
        """End the process."""
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def pid(self) -> int:
        """Where it runs."""
        return os.getpid()

    def odd(self) -> dict:
        """Give what is no text."""
        return {"a": [1, None], "é": "\ud800"}


class Talk:
    """Answers text with text."""

    def reset(self) -> str:
        return "hello"

    def step(self, text: str) -> str | None:
        return None if "bye" in text else f"you said {len(text)}"

    def reward(self) -> dict[str, float]:
        return {"polite": 1.0, "short": 0.5}


class Broken:
    """Raises where nothing of it is a tool."""

    def reset(self, answer: str) -> str:
        if answer == "reset":
            raise ValueError("no reset")
        self.answer = answer
        return "go"

    def reward(self) -> float:
        if self.answer == "nan":
            return float("nan")
        raise ValueError("no reward")


class DiesOnce:
    """Its first process dies, the second does not."""

    def reset(self, prompt: str) -> str:
        if not os.path.exists(prompt):
            with open(prompt, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        return "again"
