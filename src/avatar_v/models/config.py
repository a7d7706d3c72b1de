"""Sizes of AvatarDiT as functions. Full-size widths are Wan's published ones (arXiv 2503.20314)."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from avatar_v.base.stored import Count, Size, Within, built

NUM_GUIDANCE = 3
"""Conditions with a guidance weight of their own: text, audio, reference."""

CAUSAL_FIRST = 2
"""Latent frames of the first block of a causal network: as many as a chunk shares with the one
before (sampling/chunks.OVERLAP), so that blocks end where chunks end (our choice)."""

PastKind = Literal["same_step", "clean"]
Sink = Literal["beside", "replaced"]


@dataclass(frozen=True)
class Streaming:
    """How a causal network sees what it has made, in training and in generation (Live Avatar §4.2,
    §4.4). Each part can be taken out; the defaults are those of weights that say nothing."""

    history: PastKind = "same_step"
    """Keys and values of blocks before: those that they left in the same step, at the same noise
    level, or those of one more pass over the finished block, which all steps read."""
    sink: Sink = "beside"
    """The anchor joins the reference behind the first chunk; or the first latent frame that was
    made takes the reference's place behind the first block (adaptive attention sink)."""
    rolling: bool = True
    """In generation, positions stay where training was; else they grow, away from the sink."""
    max_start: Annotated[int, Within(0, 4096)] = 0
    """Latent frames: a window of training begins at a place drawn from 0 to here."""
    corrupt_share: Annotated[float, Within(0, 1)] = 0.0
    """Share of the history's latent frames whose keys and values are noised in training."""
    corrupt_strength: Annotated[float, Within(0, 10)] = 0.0  # of that noise; 1: as large as they

    def __post_init__(self) -> None:
        if (self.corrupt_share > 0) != (self.corrupt_strength > 0):
            raise ValueError(
                "streaming.corrupt_share and corrupt_strength are both 0 or both more, got "
                f"{self.corrupt_share} and {self.corrupt_strength}"
            )

    @property
    def without_noise(self) -> "Streaming":
        """As generation has it."""
        return dataclasses.replace(self, corrupt_share=0.0, corrupt_strength=0.0)

    @property
    def needs_blocks(self) -> bool:
        """Whether a block's first step waits for the end of another, so that no single pass over a
        window makes what a stream makes."""
        return self.history == "clean" or self.sink == "replaced"


@dataclass(frozen=True)
class DiTConfig:
    """The shape of one AvatarDiT. Equal configs have exchangeable weights."""

    dim: Size
    num_heads: Count
    num_layers: Count
    ffn_dim: Size
    latent_channels: Size
    text_dim: Size
    audio_dim: Size
    audio_every: Count = 1  # audio cross-attention and motion injection in blocks 0, k, 2k, …
    num_audio_tokens: Count = 8  # per latent frame: 4 video frames and 2 of context on each side
    motion_dim: Size = 64  # per latent frame: 4 video frames of types.MOTION_NAMES
    freq_dim: Size = 256  # sinusoidal time features
    patch: Count = 2  # spatial; the temporal patch is one latent frame
    reference_gap: int = 8  # latent frames of RoPE distance between the reference and the target
    eps: Annotated[float, Within(1e-12, 1)] = 1e-6
    temporal_window: int | None = None  # latent frames each side that generated tokens see; all
    causal_block: Count | None = None
    """Latent frames of a block of a causal network, which sees no later ones; None: all see all."""
    causal_window: Count | None = None  # blocks before its own that a block sees; None: all
    identity_dim: Count | None = None
    """Numbers of a reference's face vector (models/identity.py); None: they read none."""
    refines_from: float | None = None  # t of the one step of a refiner, which reads Cond.low too
    guidance_ranges: tuple[tuple[float, float], ...] | None = None
    """Of weights with guidance inside (objectives/distill_cfg.py): least and largest guidance
    of text, audio and reference that they were trained with. They read Cond.guidance."""

    def __post_init__(self) -> None:
        if self.dim % self.num_heads or (self.dim // self.num_heads) % 2 or self.head_dim < 6:
            raise ValueError(
                f"dim / num_heads must be an even whole number of at least 6, "
                f"got {self.dim} / {self.num_heads}"
            )
        if self.audio_every < 1:
            raise ValueError(f"audio_every counts blocks from 1, got {self.audio_every}")
        if self.freq_dim % 2:
            raise ValueError(f"freq_dim is even: sines and cosines, got {self.freq_dim}")
        if self.temporal_window is not None and self.temporal_window < 0:
            raise ValueError(f"temporal_window is at least 0, got {self.temporal_window}")
        if self.causal_block is None and self.causal_window is not None:
            raise ValueError("causal_window is for a network with a causal_block")
        if self.causal_block is not None and self.temporal_window is not None:
            raise ValueError("a network is causal or local in time (temporal_window), not both")
        if self.refines_from is not None and not 0 < self.refines_from <= 1:
            raise ValueError(f"refines_from is a time in (0, 1], got {self.refines_from}")
        ranges = self.guidance_ranges
        if ranges is not None and (
            len(ranges) != NUM_GUIDANCE or any(len(r) != 2 or not 0 <= r[0] <= r[1] for r in ranges)
        ):
            raise ValueError(
                "guidance_ranges are 0 <= least <= largest of text, audio and reference, "
                f"got {ranges}"
            )

    @property
    def reads_low(self) -> bool:
        """True of a refiner (models/refiner.py)."""
        return self.refines_from is not None

    @property
    def is_causal(self) -> bool:
        """True of weights that make a video block after block (objectives/causal_forcing.py)."""
        return self.causal_block is not None

    @property
    def has_guidance_inside(self) -> bool:
        """True of weights that one pass guides."""
        return self.guidance_ranges is not None

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, where: str = "config") -> "DiTConfig":
        """The config stored in JSON. ValueError names what is unknown, missing, of another type or
        out of its range. The shipped weights were stored before a network could be causal, or read
        face vectors."""
        later = dict.fromkeys(("causal_block", "causal_window", "identity_dim"))
        return built(cls, {**later, **values}, where=where)

    def checked(self, *, where: str = "config") -> "DiTConfig":
        """This config, if it could be read from a file. ValueError as in `from_dict`."""
        return DiTConfig.from_dict(dataclasses.asdict(self), where=where)

    @classmethod
    def tiny(cls) -> "DiTConfig":
        """For tests: builds and runs in milliseconds on a CPU."""
        return cls(
            dim=48, num_heads=2, num_layers=2, ffn_dim=96, latent_channels=16,
            text_dim=32, audio_dim=32, freq_dim=32,
        )  # fmt: skip

    @classmethod
    def small(cls) -> "DiTConfig":
        """The shipped demonstration weights: 64x64 video, 16 tokens per latent frame."""
        return cls(
            dim=256, num_heads=4, num_layers=6, ffn_dim=1024, latent_channels=16,
            text_dim=256, audio_dim=256,
        )  # fmt: skip

    @classmethod
    def wan_1_3b(cls) -> "DiTConfig":
        """Wan 2.1 T2V 1.3B; audio features of wav2vec2-base."""
        return cls(
            dim=1536, num_heads=12, num_layers=30, ffn_dim=8960, latent_channels=16,
            text_dim=4096, audio_dim=768, audio_every=3,
        )  # fmt: skip

    @classmethod
    def wan_14b(cls) -> "DiTConfig":
        """Wan 2.1 T2V 14B; audio of wav2vec2-large in 10 blocks (Wan-S2V: 12 of 40)."""
        return cls(
            dim=5120, num_heads=40, num_layers=40, ffn_dim=13824, latent_channels=16,
            text_dim=4096, audio_dim=1024, audio_every=4,
        )  # fmt: skip

    @classmethod
    def wan22_5b(cls) -> "DiTConfig":
        """Wan 2.2 TI2V 5B, with the 48-channel VAE of spatial factor 16."""
        return cls(
            dim=3072, num_heads=24, num_layers=30, ffn_dim=14336, latent_channels=48,
            text_dim=4096, audio_dim=1024, audio_every=3,
        )  # fmt: skip
