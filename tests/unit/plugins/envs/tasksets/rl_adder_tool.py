"""The tools of the taskset rl_adder; a program of its own."""

from __future__ import annotations

import time

import verifiers.v1 as vf


class Count(vf.State):
    calls: int = 0


class AdderToolset(vf.Toolset[vf.ToolsetConfig, Count]):
    TOOL_PREFIX = None

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        self.state.calls += 1
        return str(a + b)

    @vf.tool
    def fails(self) -> str:
        """Raise."""
        raise ValueError("out of order")

    @vf.tool
    def floods(self) -> str:
        """Answer too much."""
        return "x" * 3_000_000

    @vf.tool
    async def hangs(self) -> str:
        """Never answer."""
        while True:
            time.sleep(1)


if __name__ == "__main__":
    AdderToolset.run()
