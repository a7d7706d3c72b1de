"""The motion network: how a face moves to a sound, before any picture of it is made.

A small transformer over motion tokens, one for each latent frame, of the layers that the DiT is
made of. It reads the sound, the end of the motion before (clean tokens at t = 0), and the style of
the person: the style code joins the time embedding, and the network works in units of the person's
own (motion/own_units.py). It sees no picture and no text. Training on video cannot damage it, and
motion costs a thousandth of its video.

With ``hearing_layers`` it also hears somebody else, whom the person listens to: blocks behind the
others read that voice, and a head of their own adds to the velocity. Where nobody is heard nothing
is added, so a network that learns to listen says what it said before (training/motion.py).
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base.stored import Count, Size, Within, built
from avatar_v.kernels.residual import gated_add, gated_add_norm, modulated_norm
from avatar_v.models.attention import SelfAttention
from avatar_v.models.blocks import Head
from avatar_v.models.checks import expect
from avatar_v.models.layers import (
    MLP,
    LayerNorm,
    RMSNorm,
    TimeEmbedding,
    compute_dtype,
    rotary_grid,
)
from avatar_v.motion.own_units import in_own_units
from avatar_v.motion.style import STYLE_DIM
from avatar_v.motion.vectors import MOTION_DIM
from avatar_v.types import MotionCond

Motion = Float[Tensor, "b l md"]
HEARING_LAYERS = 2
"""Blocks that a network gets which learns to hear somebody else."""


@dataclass(frozen=True)
class MotionNetConfig:
    """The shape of a motion network. Equal configs have exchangeable weights."""

    dim: Size
    num_heads: Count
    num_layers: Count
    ffn_dim: Size
    audio_dim: Size
    num_audio_tokens: Count = 8  # per latent frame, as the DiT reads them
    token_dim: Size = 48  # of one audio token, before those of a latent frame are joined
    freq_dim: Size = 256
    eps: float = 1e-6
    hearing_layers: Annotated[int, Within(0, 100)] = 0  # blocks that hear somebody else

    @property
    def hears(self) -> bool:
        """Whether the voice of somebody else is read."""
        return self.hearing_layers > 0

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, where: str = "config") -> "MotionNetConfig":
        """The config stored in JSON; the first weights were stored before a network could hear
        somebody else. ValueError names what does not fit."""
        return built(cls, {"hearing_layers": 0, **values}, where=where)

    @classmethod
    def tiny(cls, audio_dim: int) -> "MotionNetConfig":
        """For tests."""
        return cls(48, 2, 2, 96, audio_dim, token_dim=8, freq_dim=32)

    @classmethod
    def small(cls, audio_dim: int) -> "MotionNetConfig":
        """0.7 million parameters."""
        return cls(96, 4, 4, 384, audio_dim, token_dim=32)

    @classmethod
    def full(cls, audio_dim: int) -> "MotionNetConfig":
        """The config at full size: some six million parameters."""
        return cls(320, 8, 6, 1280, audio_dim, token_dim=64)


class MotionBlock(nn.Module):
    """Self-attention, the sound of each token's own frame, feed-forward."""

    def __init__(self, config: MotionNetConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = nn.Parameter(torch.empty(6, config.dim))
        self.self_attention = SelfAttention(config.dim, config.num_heads, config.eps)
        self.audio_inject = nn.Linear(config.dim, config.dim)
        self.ffn = MLP(config.dim, config.ffn_dim, config.dim)

    def forward(
        self,
        x: Float[Tensor, "b l 1 d"],
        modulation: Float[Tensor, "b l 6 d"],
        rotary: Float[Tensor, "l 1 half 2"],
        sound: Float[Tensor, "b l 1 d"],
    ) -> Float[Tensor, "b l 1 d"]:
        shift, scale, gate, shift_ffn, scale_ffn, gate_ffn = (
            (self.modulation.float() + modulation).unsqueeze(-2).unbind(2)
        )
        dtype = compute_dtype(x, self.ffn.up.weight)
        y = modulated_norm(x, shift, scale, self.eps, dtype)
        y, _ = self.self_attention(y.squeeze(2), rotary)
        x = gated_add(x, y.unsqueeze(2), gate)
        x, y = gated_add_norm(
            x, self.audio_inject(sound), None, shift_ffn, scale_ffn, self.eps, dtype
        )
        return gated_add(x, self.ffn(y), gate_ffn)


class Listening(nn.Module):
    """What the voice of somebody else adds to the velocity of motion."""

    def __init__(self, config: MotionNetConfig) -> None:
        super().__init__()
        self.token_embed = nn.Linear(config.audio_dim, config.token_dim)
        self.embed = MLP(config.num_audio_tokens * config.token_dim, 2 * config.dim, config.dim)
        self.blocks = nn.ModuleList(MotionBlock(config) for _ in range(config.hearing_layers))
        self.head = Head(config.dim, MOTION_DIM, config.eps)

    def forward(
        self,
        x: Float[Tensor, "b l 1 d"],
        embedding: Float[Tensor, "b l d"],
        modulation: Float[Tensor, "b l 6 d"],
        rotary: Float[Tensor, "l 1 half 2"],
        cond: MotionCond,
    ) -> Float[Tensor, "b l 1 md"]:
        """``x`` is what the blocks of the network have made of the motion. 0 for the samples that
        hear nobody, or have no sound of their own."""
        assert cond.heard is not None, "somebody is heard"
        audio = cond.heard.to(compute_dtype(cond.heard, self.token_embed.weight))
        heard = self.embed(self.token_embed(audio).flatten(2)).unsqueeze(2)
        for block in self.blocks:
            x = block(x, modulation, rotary, heard)
        v = self.head(x, embedding)
        for keep in (cond.heard_keep, cond.audio_keep):
            if keep is not None:
                v = v * keep[:, None, None, None].to(v)
        return v


class MotionNet(nn.Module):
    """Velocity of packed motion at per-frame times t, given sound and the person's style."""

    def __init__(self, config: MotionNetConfig) -> None:
        super().__init__()
        self.config = config
        self.motion_embed = nn.Linear(MOTION_DIM, config.dim)
        self.time_embed = TimeEmbedding(config.freq_dim, config.dim)
        self.style_embed = nn.Linear(STYLE_DIM, config.dim, bias=False)
        self.token_embed = nn.Linear(config.audio_dim, config.token_dim)
        self.audio_embed = MLP(
            config.num_audio_tokens * config.token_dim, 2 * config.dim, config.dim
        )
        self.silence = nn.Parameter(torch.empty(config.dim))  # stands for sound that is not kept
        self.blocks = nn.ModuleList(MotionBlock(config) for _ in range(config.num_layers))
        self.head = Head(config.dim, MOTION_DIM, config.eps)
        self.listening = Listening(config) if config.hears else None
        self.reset_parameters()

    def hearing(self) -> "MotionNet":
        """This network, able to hear somebody else: a new one with the same tensors, which says the
        same of every sound, whoever is heard, until it is trained. Itself where it can already."""
        if self.config.hears:
            return self
        new = MotionNet(dataclasses.replace(self.config, hearing_layers=HEARING_LAYERS))
        new.load_state_dict(
            {**new.state_dict(), **self.state_dict()}
        )  # an unknown name is an error
        return new.to(self.silence)

    def reset_parameters(self) -> None:
        """The DiT's initialisation; the heads and what reads the style are 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, RMSNorm | LayerNorm):
                module.reset_parameters()
            elif isinstance(module, MotionBlock | Head):
                nn.init.normal_(module.modulation, std=self.config.dim**-0.5)
        for linear in (self.time_embed.up, self.time_embed.down, self.time_embed.modulation):
            nn.init.normal_(linear.weight, std=0.02)
        nn.init.normal_(self.silence, std=0.02)
        nn.init.zeros_(self.style_embed.weight)
        if self.listening is not None:
            nn.init.zeros_(self.listening.head.out.weight)
        nn.init.zeros_(self.head.out.weight)

    def forward(self, motion_t: Motion, t: Float[Tensor, "b l"], cond: MotionCond) -> Motion:
        """v = ε - m_0 at every latent frame; clean frames carry t = 0.

        The style that is not kept is as if it were not known, but for the units of the person's
        own. ValueError for shapes that do not fit, and for a voice of somebody else where the
        network hears none.
        """
        self._check(motion_t, t, cond)
        own = in_own_units(motion_t, t, cond.style)
        code = None
        if cond.style is not None:
            code = cond.style.code
            code = code if cond.style_keep is None else code * cond.style_keep[:, None]
            code = F.linear(code.float(), self.style_embed.weight.float())
        embedding, modulation = self.time_embed(t, code)
        x = own.motion_t.to(compute_dtype(motion_t, self.motion_embed.weight))
        x = self.motion_embed(x).unsqueeze(2)
        sound = self._sound(cond, x)
        rotary = rotary_grid(t.shape[1], 1, 1, self.config.head_dim, t.device)
        for block in self.blocks:
            x = block(x, modulation, rotary, sound)
        v = self.head(x, embedding)
        if cond.heard is not None:
            assert self.listening is not None, "_check refuses it"
            v = v + self.listening(x, embedding, modulation, rotary, cond)
        return own.velocity(v.squeeze(2))

    def _sound(self, cond: MotionCond, x: Float[Tensor, "b l 1 d"]) -> Float[Tensor, "b l 1 d"]:
        """The sound of each latent frame; ``silence`` where there is none or it is not kept."""
        silence = self.silence.to(x.dtype)
        if cond.audio is None:
            return silence.expand_as(x)
        audio = cond.audio.to(compute_dtype(cond.audio, self.token_embed.weight))
        sound = self.audio_embed(self.token_embed(audio).flatten(2)).unsqueeze(2)
        if cond.audio_keep is None:
            return sound
        return torch.where(cond.audio_keep[:, None, None, None], sound, silence)

    def _check(self, motion_t: Motion, t: Float[Tensor, "b l"], cond: MotionCond) -> None:
        expect("motion_t", motion_t.shape, (*t.shape, MOTION_DIM))
        shape = (*t.shape, self.config.num_audio_tokens, self.config.audio_dim)
        for name, sound in (("cond.audio", cond.audio), ("cond.heard", cond.heard)):
            if sound is not None:
                expect(name, sound.shape, shape)
        if cond.heard is not None and self.listening is None:
            raise ValueError("cond.heard: this motion network hears nobody else")
        if cond.style is not None:
            expect("cond.style.code", cond.style.code.shape, (t.shape[0], STYLE_DIM))
