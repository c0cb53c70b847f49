"""Environments as users write them, good and bad."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
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


class Forks:
    """Its tools leave processes behind, whose numbers they write to a file."""

    def reset(self, path: str) -> str:
        self.path = path
        return "go"

    def comes_back(self) -> str:
        """Fork, and answer in both."""
        return "child" if os.fork() == 0 else "parent"

    def leaves(self) -> str:
        """Start what does not end: in the group of the episode, and in one of its own."""
        for apart in (False, True):
            child = subprocess.Popen(["sleep", "1000"], start_new_session=apart)
            with open(self.path, "a") as file:
                file.write(f"{child.pid}\n")
        return "left"

    def die(self) -> str:
        """End the process."""
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


class Heavy:
    """Answers what is too much, and no text."""

    def reset(self) -> str:
        return "go"

    def hundred(self) -> str:
        """100 MB of text."""
        return "x" * 100_000_000

    def nested(self) -> dict:
        """30 MB in an object."""
        return {"a": ["é" * 1000] * 30_000}

    def binary(self) -> bytes:
        """Bytes, and more of them printed, to every place there is."""
        junk = bytes(range(256)) * 400
        for number in (1, 2):
            os.write(number, junk)
        print(junk.decode("latin1"))
        return junk


class NeverMade:
    """Hangs before it begins."""

    def __init__(self) -> None:
        while True:
            time.sleep(60)


class Raises:
    """One in ten raises, wherever it can."""

    def reset(self, number: int) -> str:
        if number % 10 == 0:
            raise RuntimeError(f"number {number}")
        return str(number)

    def reward(self) -> float:
        return 1.0
