"""What a method is: its roles, its requests, its advantages, its loss terms. Nothing of devices.

A new method overrides :meth:`Algorithm.advantages` and :meth:`Algorithm.policy_loss`; the core
masks, normalises, sums over ranks and logs, so a loss cannot be normalised wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rlframe.batching.columns import Column, Schema, make_schema
from rlframe.config.checks import check_choice, check_range
from rlframe.errors import ConfigError, unknown_name
from rlframe.learning.correction import RolloutCorrection, correction_weight
from rlframe.requests import Group, Request, Row
from rlframe.roles import Divergence, ModelKind, RoleSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.batching.batch import Batch

__all__ = [
    "Algorithm",
    "Divergence",
    "Example",
    "ModelKind",
    "Output",
    "Reduction",
    "RoleSpec",
    "Term",
    "TokenReduction",
]

TokenReduction = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length"]
REDUCTIONS: tuple[str, ...] = get_args(TokenReduction)

Reduction = Literal[TokenReduction, "mean"]
_OUTPUTS = ("logprobs", "entropy", "values", "scores", "divergence")


@dataclass(frozen=True)
class Term:
    """One summand of a loss, not yet reduced.

    ``values``: (b, R) per token with a mask; else (b,) per row, or one per atom, whose reduction
    is "mean". ``mask`` names a bool (b, R) column that ``Algorithm.masks`` lists; for (b,) values a
    row counts when it has a True in it. ``mask=None`` counts every row, or every atom where ``per``
    says so. ``coef=0`` makes it a metric. The denominator is counted by the core over the whole
    mini-batch.
    """

    values: Tensor
    mask: str | None = "loss_mask"
    reduction: Reduction = "token-mean"
    coef: float = 1.0
    per: Literal["row", "atom"] = "row"


@dataclass(frozen=True)
class Output:
    """What a forward pass computed, aligned to response tokens; None where it was not asked for.

    ``logprobs``, ``entropy`` (b, R) in nats under the sampling temperature, ``values`` (b, R),
    ``scores`` (b,), ``divergence`` (b, R) in nats.
    """

    logprobs: Tensor = None  # type: ignore[assignment]  # reading an absent one raises
    entropy: Tensor = None  # type: ignore[assignment]
    values: Tensor = None  # type: ignore[assignment]
    scores: Tensor = None  # type: ignore[assignment]
    divergence: Tensor = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if value is None and name in _OUTPUTS:
            raise AttributeError(f"'{name}' was not computed: name it in RoleSpec.computes")
        return value

    def get(self, name: str) -> Tensor | None:
        """A field, or None where it was not computed."""
        tensor: Tensor | None = object.__getattribute__(self, name)
        return tensor


@dataclass(frozen=True)
class Example:
    """A written response for offline methods; ``columns`` are further per-row columns."""

    response: str
    columns: Mapping[str, Any] = field(default_factory=dict)


class Algorithm:
    """Base of every method. Copies in workers are stateless; state lives on the controller."""

    @dataclass(frozen=True)
    class Config(RolloutCorrection):
        """Options that every method has."""

        samples_per_prompt: int = 8
        """Responses drawn for each prompt, at least 1."""
        epochs: int = 1
        """Passes over each collected batch, at least 1."""
        minibatch_prompts: int = 0
        """Prompts an optimiser step; 0 takes the whole batch."""
        reduction: TokenReduction = "token-mean"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length."""
        kl_coef: float = 0.0
        """Weight of the KL loss to the reference, at least 0; 0 starts no reference."""
        kl_estimator: Literal["k1", "k2", "k3", "k3+"] = "k3+"
        """k1, k2, k3, or k3+ (k3's value with k2's gradient)."""
        entropy_coef: float = 0.0
        """Weight of the entropy bonus, nats."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            for name, least in (("samples_per_prompt", 1), ("epochs", 1), ("kl_coef", 0)):
                check_range(self, name, least)
            check_range(self, "minibatch_prompts", 0)
            check_range(self, "entropy_coef")
            check_choice(self, "reduction", *REDUCTIONS)
            check_choice(self, "kl_estimator", "k1", "k2", "k3", "k3+")

    offline: ClassVar[bool] = False
    """True when the data writes the responses, so that no rollout engine starts."""
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What a conformance kit may test beyond the rest: "group-relative" says that advantages are
    exactly 0 in a group of one and where all rewards of a group are equal, "shaped-rewards" that
    more than the outcome is compared there, "drops-tokens" that some tokens have no gradient though
    they have an advantage."""
    reads: ClassVar[tuple[str, ...]] = (
        "rewards",
        "group_ids",
        "episode_ids",
        "train",
        "response_tokens",
    )
    """Columns that :meth:`advantages` reads; all per row: it runs on the controller."""
    reads_if_there: ClassVar[tuple[str, ...]] = ()
    """Columns that it reads besides, where the data, a role or an environment wrote them."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """Further columns that this method's roles, data or advantages write."""
    masks: ClassVar[tuple[str, ...]] = ("loss_mask",)
    """Every mask column that a Term names; slots outside all of them are filled before the loss."""

    config: Any

    def __init__(self, config: Any = None, **options: Any) -> None:
        """``MyMethod(clip_ratio=0.3)`` is ``MyMethod(MyMethod.Config(clip_ratio=0.3))``.

        Raises ConfigError for an option that the method does not have, or out of range.
        """
        if config is not None and options:
            raise ConfigError(f"{type(self).__name__}: give a Config or options, not both")
        self.config = config if config is not None else self._made(options)
        if self.offline and self.config.rollout_correction != "off":
            raise ConfigError(
                f"{type(self).__name__}: rollout_correction needs responses that a rollout engine "
                "sampled; here the data writes them"
            )

    @classmethod
    def _made(cls, options: Mapping[str, Any]) -> Any:
        known = [one.name for one in fields(cls.Config)]
        for name in options:
            if name not in known:
                raise ConfigError(f"{cls.__name__}: {unknown_name('option', name, known)}")
        try:
            return cls.Config(**options)
        except ValueError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from error

    # --- collecting ---------------------------------------------------------------------------

    def roles(self) -> tuple[RoleSpec, ...]:
        """The models of this method; the policy comes first."""
        computes = ("logprobs", "entropy")
        before = {} if self.config.bypasses else {"logprobs": "old_logprobs"}
        policy = RoleSpec("policy", trained=True, outputs=before, computes=computes)
        if self.config.kl_coef == 0:
            return (policy,)
        outputs = {"logprobs": "ref_logprobs"}
        return (policy, RoleSpec("reference", outputs=outputs, init_from="policy"))

    def requests(self, row: Row) -> list[Request]:
        """What to sample for one prompt."""
        return [row.request() for _ in range(self.config.samples_per_prompt)]

    def examples(self, row: Row) -> list[Example]:
        """The responses that an offline method reads from a dataset row."""
        raise NotImplementedError(f"{type(self).__name__} is offline and has no examples()")

    def second_examples(self, row: Row) -> list[Example]:
        """The responses in a row of ``data.second``, for a term with ``mask="second_mask"``."""
        raise ConfigError(f"data.second: {type(self).__name__} has no term on a second data set")

    def accept(self, group: Group) -> bool:
        """Whether a collected group is learned from."""
        return True

    def scored(self, batch: Batch) -> None:
        """See, on the controller, the scores of a step's batch before :meth:`scalars` is asked.

        Only columns with one number a row are there to read without moving tokens.
        """

    @property
    def accepts_by_reward(self) -> bool:
        """Whether :meth:`accept` looks at rewards, which must then be there once a group is played.

        A reward model that is a role of the run scores later.
        """
        return type(self).accept is not Algorithm.accept

    # --- learning -----------------------------------------------------------------------------

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """Columns derived from ``reads``: advantages (B,) or (B, R), returns, loss_mask."""
        return {}

    def atoms(self, batch: Batch) -> NDArray[np.int64] | None:
        """Ids (B,) of rows that must share a micro-batch (pairs, whole groups); None: no such."""
        return None

    def minibatch(self, out: Output, batch: TensorDict) -> Mapping[str, Tensor]:
        """Columns that need the whole mini-batch, from a pass without gradient."""
        return {}

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The loss of each response token: (b, R), not masked, not reduced."""
        raise NotImplementedError(f"{type(self).__name__} defines neither policy_loss nor loss")

    def value_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The critic's loss of each response token: (b, R), not masked, not reduced."""
        raise NotImplementedError(f"{type(self).__name__} has a critic but no value_loss")

    def loss(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """Every summand of a role's loss by name."""
        from rlframe.ops.kl import kl_loss

        if role != "policy":
            return {"vf_loss": Term(self.value_loss(out, batch))}
        config = self.config
        losses = self.policy_loss(out, batch)
        if config.weighs:
            losses = losses * correction_weight(config, batch)
        terms = {"pg_loss": Term(losses, reduction=config.reduction)}
        if config.kl_coef:
            kl = kl_loss(out.logprobs, batch["ref_logprobs"], config.kl_estimator)
            terms["kl_loss"] = Term(kl, reduction=config.reduction, coef=config.kl_coef)
        if out.get("entropy") is not None:
            reduction: Reduction = config.reduction if config.entropy_coef else "token-mean"
            terms["entropy"] = Term(out.entropy, reduction=reduction, coef=-config.entropy_coef)
        return terms

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """Figures to log beside the loss terms, reduced exactly like them; ``coef`` is ignored."""
        return {}

    # --- state --------------------------------------------------------------------------------

    def scalars(self) -> Mapping[str, float]:
        """Numbers that change from step to step and travel to the workers with the batch."""
        return {}

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Change the state once a step is done."""

    def state_dict(self) -> dict[str, Any]:
        """State for the snapshot: JSON values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`."""

    def schema(self) -> Schema:
        """The core's columns, this method's, and one for every output of its roles."""
        outputs = [
            Column(name, "B" if out == "scores" else "BR", "float32", role.name, out)
            for role in self.roles()
            for out, name in role.outputs.items()
        ]
        known = make_schema(self.columns)
        return make_schema(self.columns, [one for one in outputs if one.name not in known])

    def scorers(self) -> Sequence[RoleSpec]:
        """The roles whose outputs become columns before the update, in order."""
        return [role for role in self.roles() if role.outputs]
