"""The weight of a KL penalty from step to step: fixed, or steered towards a target."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KLController"]

_MOST = 0.2
"""Largest relative error that counts in one step, either way."""


@dataclass
class KLController:
    """Holds ``coef``; :meth:`update` moves it where there is a ``target`` (1909.08593, sec. 2.2).

    ``target`` is a KL in nats, summed over a response's tokens and averaged over responses; None
    keeps ``coef`` as it is. ``horizon`` counts episodes: larger is slower. A coefficient of 0 stays
    0. Plain numbers without torch, for the controller's side.
    """

    coef: float
    target: float | None = None
    horizon: float = 10_000.0

    def update(self, kl: float, episodes: float) -> float:
        """``coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * episodes / horizon``; the new one.

        ``kl`` in nats a response, measured over ``episodes`` responses. Never below 0: more
        episodes than 5 horizons in one step would turn the penalty into a reward.
        """
        if self.target is not None:
            error = min(max(kl / self.target - 1, -_MOST), _MOST)
            self.coef = max(self.coef * (1 + error * episodes / self.horizon), 0.0)
        return self.coef
