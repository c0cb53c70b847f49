"""A causal language model with the head that a role needs, in one ``forward``.

The head runs inside ``forward`` so that wrappers with hooks on the outermost module (FSDP) cover
embedding and head too. Parameter names are those of the transformers model, without any prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from rlframe.errors import ModelError
from rlframe_strategies.attention import CONTEXT_ATTENTION, PACKED_ATTENTION, attention_kwargs
from rlframe_strategies.divergence import Beside, Head, token_divergence
from rlframe_strategies.head import LogitMap, token_logprobs
from rlframe_strategies.vocabulary import Vocabulary, vocabulary_logprobs

if TYPE_CHECKING:
    from rlframe_strategies.packing import Inputs

__all__ = ["LanguageModel", "canonical", "logit_map"]

Kind = Literal["policy", "value", "score", "teacher"]
GIVES = {
    "policy": ("logprobs", "entropy", "divergence"),
    "teacher": ("logprobs", "entropy", "states"),
    "value": ("values",),
    "score": ("scores",),
}


def canonical(name: str) -> str:
    """A parameter's Hugging Face name from its name in :class:`LanguageModel`."""
    plain = name.removeprefix("lm.").replace(".base_layer.", ".")
    return plain.replace(".lora_A.default.", ".lora_A.").replace(".lora_B.default.", ".lora_B.")


def logit_map(config: Any, temperature: float) -> LogitMap:
    """What a model's config says of its logits: Gemma's cap, Cohere's and Granite's scale."""
    text = config.get_text_config()
    scale = float(getattr(text, "logit_scale", None) or 1.0)
    scale /= float(getattr(text, "logits_scaling", None) or 1.0)
    cap = float(getattr(text, "final_logit_softcapping", None) or 0.0)
    return LogitMap(scale, cap, temperature)


class LanguageModel(nn.Module):
    """Backbone and head: log-probabilities, values, or a score a row.

    ``vocabulary``: which part of the head's rows this rank has, where tensor parallelism cuts it.
    """

    vocabulary: Vocabulary | None = None

    def __init__(self, lm: Any, kind: Kind, temperature: float) -> None:
        super().__init__()
        self.lm = lm
        self.kind = kind
        self.logits = logit_map(lm.config, temperature)
        if kind in ("value", "score"):
            self._replace_head(bias=kind == "value")

    def _replace_head(self, *, bias: bool) -> None:
        head = self.lm.get_output_embeddings()
        for name, child in self.lm.named_children():
            if child is head:
                setattr(self.lm, name, nn.Identity())
        width, like = head.in_features, head.weight
        self.score = nn.Linear(width, 1, bias=bias, dtype=like.dtype, device=like.device)
        nn.init.zeros_(self.score.weight)
        if bias:
            nn.init.zeros_(self.score.bias)

    @property
    def backbone(self) -> Any:
        """The part that gives hidden states."""
        base = self.lm.base_model
        return base if base is not self.lm else self.lm.get_decoder()

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Canonical names and parameters; a tied one appears once, under its first name."""
        for name, parameter in self.named_parameters():
            yield canonical(name), parameter

    def blocks(self) -> list[nn.Module]:
        """The repeated layers, in order."""
        wanted = set(self.lm._no_split_modules or ())
        found = [m for m in self.lm.modules() if type(m).__name__ in wanted]
        if found:
            return found
        lists = [list(m) for m in self.lm.modules() if isinstance(m, nn.ModuleList)]
        return max(lists, key=len) if lists else []

    def use_packed_attention(self, on: bool) -> None:
        """Switch between our attention over packed rows and transformers' own.

        Under context parallelism it is always that one's.
        """
        config = self.lm.config
        if config._attn_implementation == CONTEXT_ATTENTION:
            return
        if on and config._attn_implementation != PACKED_ATTENTION:
            self._own_attention = config._attn_implementation
            self.lm.set_attn_implementation(PACKED_ATTENTION)
        elif not on and config._attn_implementation == PACKED_ATTENTION:
            self.lm.set_attn_implementation(self._own_attention)

    def hidden(self, inputs: Inputs) -> Tensor:
        """Last hidden states, rows flat: (T, H)."""
        out = self.backbone(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            position_ids=inputs.position_ids,
            use_cache=False,
            **attention_kwargs(inputs, self.lm.config._attn_implementation),
        )
        states: Tensor = out[0]
        return states.flatten(0, 1)

    def forward(
        self, inputs: Inputs, computes: Sequence[str], beside: Beside | None = None
    ) -> dict[str, Tensor]:
        """Per response token (N,), a score per row (b,); float32. A teacher's "states" are (N, G).

        ``beside`` is what "divergence" is measured against.
        """
        states = self.hidden(inputs)
        if self.kind == "score":
            return {"scores": self._number(states.index_select(0, inputs.last))}
        states = states.index_select(0, inputs.take)
        if self.kind == "value":
            return {"values": self._number(states)}
        head = self.lm.get_output_embeddings()
        states = states.to(head.weight.dtype)
        if "states" in computes:
            return {"states": states}
        logprobs, entropy = self._logprobs(states, inputs.labels, entropy="entropy" in computes)
        out = {"logprobs": logprobs}
        if entropy is not None:
            out["entropy"] = entropy
        if beside is not None:
            own = Head(head.weight, head.bias, self.logits)
            out["divergence"] = token_divergence(
                (states, own), beside.teacher, beside.form, self.vocabulary
            )
        return out

    def _logprobs(
        self, states: Tensor, labels: Tensor, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        head = self.lm.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if self.vocabulary is None:
            return token_logprobs(states, weight, bias, labels, self.logits, entropy=entropy)
        return vocabulary_logprobs(
            states, (weight, bias), labels, self.logits, self.vocabulary, entropy=entropy
        )

    def _number(self, states: Tensor) -> Tensor:
        number: Tensor = self.score(states.to(self.score.weight.dtype))
        return number[:, 0].float()

    def check_computes(self, computes: Sequence[str]) -> None:
        """Raise ``ModelError`` for an output that this kind of model does not give."""
        wrong = [name for name in computes if name not in GIVES[self.kind]]
        if wrong:
            given = ", ".join(GIVES[self.kind])
            raise ModelError(f"a model of kind '{self.kind}' gives {given}, not {wrong[0]}")

    @torch.no_grad()
    def check_head(self, path: str) -> None:
        """Raise ``ModelError`` where logits are not what :func:`logit_map` says they are."""
        if self.backbone is self.lm:
            raise ModelError(f"model '{path}' ({type(self.lm).__name__}) has no separate backbone")
        if self.kind not in ("policy", "teacher"):
            return
        ids = torch.tensor([[0, 1, 2]], device=self.lm.device)
        states = self.backbone(input_ids=ids, use_cache=False)[0][0]
        expected = self.lm(input_ids=ids, use_cache=False).logits[0].float()
        head = self.lm.get_output_embeddings()
        logits = head(states.to(head.weight.dtype)).float() * self.logits.scale
        if self.logits.softcap:
            logits = self.logits.softcap * torch.tanh(logits / self.logits.softcap)
        error = (logits - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
        if not error < (1e-3 if head.weight.dtype == torch.float32 else 5e-2):
            raise ModelError(
                f"model '{path}' makes logits from hidden states in a way that rlframe does not "
                f"know ({type(self.lm).__name__}): it cannot be used for log-probabilities"
            )
