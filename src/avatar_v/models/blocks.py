"""One block of the DiT over its streams, and the heads behind the last one.

A block is Wan's: self-attention, cross-attention, feed-forward; ours are audio, the injection of
motion, and self-attention that may be local in time or causal (models/attention.py). The same block
serves the video, its motion tokens and the reference stream: `run_block` decides which tokens look
at which.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.kernels.key_mask import KeyMask
from avatar_v.kernels.residual import (
    Tokens,
    gated_add,
    gated_add_norm,
    modulated_norm,
)
from avatar_v.models.attention import (
    AsSeen,
    Blocked,
    ContextKeyValue,
    Core,
    CrossAttention,
    ExtraKeyValue,
    ExtraKV,
    KeyValue,
    Pattern,
    SelfAttention,
    attend_self,
)
from avatar_v.models.config import DiTConfig
from avatar_v.models.layers import (
    MLP,
    LayerNorm,
    compute_dtype,
)
from avatar_v.models.spread import ALONE, Cores


class ContextKeys(NamedTuple):
    """Keys and values that a block reads of text and of the sound of each latent frame."""

    text: ContextKeyValue
    audio: ContextKeyValue | None


class Block(nn.Module):
    """Self-attention → text and audio cross-attention → motion injection → feed-forward."""

    def __init__(self, config: DiTConfig, *, has_audio: bool) -> None:
        super().__init__()
        dim, num_heads, self.eps = config.dim, config.num_heads, config.eps
        self.modulation = nn.Parameter(torch.empty(6, dim))
        self.self_attention = SelfAttention(dim, num_heads, self.eps)
        self.text_norm = LayerNorm(dim, self.eps)
        self.text_attention = CrossAttention(dim, num_heads, self.eps)
        self.audio_norm = LayerNorm(dim, self.eps) if has_audio else None
        self.audio_attention = CrossAttention(dim, num_heads, self.eps) if has_audio else None
        self.motion_norm = LayerNorm(dim, self.eps) if has_audio else None
        self.motion_inject = nn.Linear(dim, dim) if has_audio else None
        self.ffn = MLP(dim, config.ffn_dim, dim)

    def forward(
        self,
        x: Tokens,
        modulation: Float[Tensor, "#b #l 6 d"],
        rotary: Float[Tensor, "*positions 1 half 2"],
        *,
        text: Float[Tensor, "b m d"] | ContextKeyValue | None = None,
        audio: Float[Tensor, "b l a d"] | ContextKeyValue | None = None,
        audio_scale: Float[Tensor, "b 1 1 1"] | None = None,
        motion: Float[Tensor, "b l 1 d"] | None = None,
        core: Core = attend_self,
        beside: ExtraKV | None = None,
        extra: ExtraKeyValue | None = None,
        key_mask: KeyMask | None = None,
        blocked: Blocked | None = None,
    ) -> tuple[Tokens, KeyValue]:
        """One block over one stream; also returns its unrotated K and V.

        ``core`` and what it reads beside x are those of `SelfAttention`. Text and audio are tokens,
        or their `context_keys`. ``audio_scale`` multiplies the contribution of audio, per sample.
        ``motion`` are the motion tokens of x's frames.
        """
        shift, scale, gate, shift_ffn, scale_ffn, gate_ffn = (
            (self.modulation.float() + modulation).unsqueeze(-2).unbind(2)
        )
        num_frames, attention = x.shape[1], self.self_attention
        y = modulated_norm(x, shift, scale, self.eps, compute_dtype(x, attention.query.weight))
        y, key_value = attention(
            y.flatten(1, 2), rotary,
            core=core, beside=beside, extra=extra, key_mask=key_mask, blocked=blocked,
        )  # fmt: skip
        y = y.unflatten(1, (num_frames, -1))  # x waits for gate · y: its next norm adds it
        if text is not None:
            dtype = compute_dtype(x, self.text_attention.query.weight)
            x, y = self.text_norm.behind(x, y, gate, dtype)
            y, gate = self.text_attention(y.flatten(1, 2), text), None
            y = y.unflatten(1, (num_frames, -1))
        if audio is not None and self.audio_attention is not None and self.audio_norm is not None:
            dtype = compute_dtype(x, self.audio_attention.query.weight)
            x, y = self.audio_norm.behind(x, y, gate, dtype)
            heard = audio.flatten(0, 1) if isinstance(audio, Tensor) else audio
            y, gate = self.audio_attention(y.flatten(0, 1), heard), audio_scale
            y = y.unflatten(0, (-1, num_frames))
        dtype = compute_dtype(x, self.ffn.up.weight)
        if motion is not None and self.motion_inject is not None and self.motion_norm is not None:
            x, y = gated_add(x, y, gate), self.motion_norm(motion)
            x = x + self.motion_inject(y.to(compute_dtype(y, self.motion_inject.weight)))
            y = modulated_norm(x, shift_ffn, scale_ffn, self.eps, dtype)
        else:
            x, y = gated_add_norm(x, y, gate, shift_ffn, scale_ffn, self.eps, dtype)
        return gated_add(x, self.ffn(y), gate_ffn), key_value

    def context_keys(
        self, text: Float[Tensor, "b m d"], audio: Float[Tensor, "b l a d"] | None
    ) -> ContextKeys:
        """What `forward` computes of text and audio whatever x and t are."""
        heard = None
        if audio is not None and self.audio_attention is not None:
            heard = self.audio_attention.project_keys(audio.flatten(0, 1))
        return ContextKeys(self.text_attention.project_keys(text), heard)


def run_block(
    block: Block,
    x: Tokens,
    motion: Float[Tensor, "b l 1 d"] | None,
    modulation: Float[Tensor, "#b #l 6 d"],
    rotary: Float[Tensor, "*positions 1 half 2"],
    motion_rotary: Float[Tensor, "*frames 1 half 2"],
    *,
    motion_modulation: Float[Tensor, "#b #l 6 d"] | None = None,
    text: Float[Tensor, "b m d"] | ContextKeyValue | None = None,
    audio: Float[Tensor, "b l a d"] | ContextKeyValue | None = None,
    audio_scale: Float[Tensor, "b 1 1 1"] | None = None,
    extra: ExtraKeyValue | None = None,
    key_mask: KeyMask | None = None,
    motion_key_mask: KeyMask | None = None,
    pattern: Pattern | None = None,
    as_seen: AsSeen | None = None,
    cores: Cores = ALONE,
) -> tuple[Tokens, Float[Tensor, "b l 1 d"] | None, KeyValue]:
    """One block over video tokens, then over their motion tokens; also the video's K and V.

    Motion tokens look at each other, at the video and at its ``extra`` keys (``motion_key_mask``
    covers the three, one after another); they read no text. ``motion_modulation`` is that of their
    own times (None: those of the video). The video does not look at them. With ``pattern`` video
    and motion see by it of each other and of themselves; without one they see all. ``as_seen``:
    how later blocks see the video. ``cores`` are the two streams' own.
    """
    blocked = None if pattern is None else Blocked(pattern, x.shape[1], as_seen)
    x, (key, value) = block(
        x, modulation, rotary, text=text, audio=audio, audio_scale=audio_scale,
        motion=motion, core=cores.video, extra=extra, key_mask=key_mask, blocked=blocked,
    )  # fmt: skip
    if motion is None:
        return x, None, (key, value)
    own = modulation if motion_modulation is None else motion_modulation
    motion, _ = block(
        motion, own, motion_rotary, audio=audio, audio_scale=audio_scale,
        core=cores.motion, beside=ExtraKV(key, value, rotary), extra=extra,
        key_mask=motion_key_mask, blocked=blocked,
    )  # fmt: skip
    return x, motion, (key, value)


class Head(nn.Module):
    """Modulated norm and projection of each token to its part of the velocity."""

    def __init__(self, dim: int, dim_out: int, eps: float) -> None:
        super().__init__()
        self.modulation = nn.Parameter(torch.empty(2, dim))
        self.out = nn.Linear(dim, dim_out)
        self.eps = eps

    def forward(self, x: Tokens, embedding: Float[Tensor, "b l d"]) -> Float[Tensor, "b l n o"]:
        shift, scale = (self.modulation.float() + embedding[:, :, None]).unsqueeze(-2).unbind(2)
        dtype = compute_dtype(x, self.out.weight)
        return self.out(modulated_norm(x, shift, scale, self.eps, dtype))
