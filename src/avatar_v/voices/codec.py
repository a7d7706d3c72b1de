"""A codec of speech: 25 frames a second, each a few codes of residual codebooks, at 16 kHz.

The encoder sees log-mel spectra. The quantiser is DAC's (Kumar et al. 2023; transformers' class).
The decoder gives magnitudes and phases of short spectra, whose inverse is the sound (Vocos, Siuzdak
2023). No convolution runs at more than 100 Hz, where those of DAC itself run at 16 kHz: steps of
training are cheaper on a processor. The decoder needs no later frame than the next one, so sound is
made while codes come.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import DacConfig
from transformers.models.dac.modeling_dac import DacResidualVectorQuantizer

from avatar_v.base.outside import read_json
from avatar_v.base.packed import compressed, decompressed
from avatar_v.base.states import check_numbers, check_state, hash_of, read_tensors
from avatar_v.base.stored import built
from avatar_v.critics.voice import mel_filters
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

WEIGHTS_FILE = "model.safetensors"
HOP, SPAN = 160, 640
"""Samples from one spectrum to the next, and that one covers."""
PARTS = SAMPLES_PER_FRAME // HOP
NUM_MELS = 80
MOST_LOG = 6.0
"""Of a magnitude: nothing that is made is louder."""
PAST_FRAMES = 12
"""That a sound's frame depends on, besides its own and the next one."""
USE_KEPT, LEAST_USE = 0.9, 0.01
"""Of the count of codes from batch to batch, and below which a code is unused."""
Sound = Float[Tensor, "b s"]
Codes = Int[Tensor, "b k f"]


@dataclass(frozen=True)
class CodecConfig:
    """Shapes of a codec."""

    num_codebooks: int = 4
    codebook_size: int = 1024
    codebook_dim: int = 8
    encoder_width: int = 192
    decoder_width: int = 256
    num_encoder_blocks: int = 4
    num_decoder_blocks: int = 6
    latent_width: int = 128

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 1 <= value <= 8192:
                raise ValueError(f"{name} is 1 to 8192, got {value}")


class ConvNeXtBlock(nn.Module):
    """Liu et al. 2022 in one dimension; ``past`` convolutions see no later step."""

    def __init__(self, width: int, *, past: bool) -> None:
        super().__init__()
        self.pads = (6, 0) if past else (3, 3)
        self.along = nn.Conv1d(width, width, 7, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.out = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Float[Tensor, "b c t"]) -> Float[Tensor, "b c t"]:
        y = self.norm(self.along(F.pad(x, self.pads)).transpose(1, 2))
        return x + (self.scale * self.out(y)).transpose(1, 2)


@dataclass(frozen=True)
class Quantised:
    """What the quantiser gives in training."""

    sound: Sound  # decoded
    codes: Codes
    commitment: Float[Tensor, ""]
    codebook: Float[Tensor, ""]


class VoiceCodec(nn.Module):
    """Sounds of whole frames to codes and back."""

    mels: Tensor
    window: Tensor

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = c = config
        self.register_buffer("mels", mel_filters(SPAN, NUM_MELS).clone(), persistent=False)
        self.register_buffer("window", torch.hann_window(SPAN), persistent=False)
        self.encoder = nn.Sequential(
            nn.Conv1d(NUM_MELS, c.encoder_width, 7, padding=3),
            *(ConvNeXtBlock(c.encoder_width, past=False) for _ in range(c.num_encoder_blocks // 2)),
            nn.Conv1d(c.encoder_width, c.encoder_width, PARTS, PARTS),
            *(ConvNeXtBlock(c.encoder_width, past=False) for _ in range(c.num_encoder_blocks // 2)),
            nn.Conv1d(c.encoder_width, c.latent_width, 1),
            # codes are found by directions: without a centre all latents have one and the same
            nn.BatchNorm1d(c.latent_width, affine=False),
        )
        sizes = DacConfig(
            n_codebooks=c.num_codebooks,
            codebook_size=c.codebook_size,
            codebook_dim=c.codebook_dim,
            quantizer_dropout=0.5,
        )
        sizes.hidden_size = c.latent_width
        self.quantiser = DacResidualVectorQuantizer(sizes)
        self.spread = nn.Linear(c.latent_width, PARTS * c.decoder_width)
        self.decoder = nn.Sequential(
            *(ConvNeXtBlock(c.decoder_width, past=True) for _ in range(c.num_decoder_blocks))
        )
        self.norm = nn.LayerNorm(c.decoder_width, eps=1e-6)
        self.head = nn.Linear(c.decoder_width, SPAN + 2)

    def forward(self, sound: Sound) -> Quantised:
        """For training: with gradients through the codes."""
        latents = self.latents(sound)
        kept, codes, _, commitment, codebook = self.quantiser(latents)
        return Quantised(self._sound(kept), codes, commitment.mean(), codebook.mean())

    def redecoded(self, sound: Sound) -> Quantised:
        """For training of the decoder alone: codes stay as they are."""
        for part in (self.encoder, self.quantiser):
            part.eval()
        with torch.no_grad():
            kept, codes = self.quantiser(self.latents(sound))[:2]
        nothing = sound.new_zeros(())
        return Quantised(self._sound(kept), codes, nothing, nothing)

    @torch.no_grad()
    def encode(self, sound: Sound) -> Codes:
        """Codes of whole frames; a last part of one is filled with silence."""
        sound = F.pad(sound, (0, -sound.shape[1] % SAMPLES_PER_FRAME))
        return self.quantiser(self.latents(sound))[1]

    @torch.no_grad()
    def decode(self, codes: Codes) -> Sound:
        """640 samples a frame."""
        latents = self.quantiser.from_codes(codes)[0]
        assert isinstance(latents, Tensor)
        return self._sound(latents)

    @torch.no_grad()
    def decode_between(self, codes: Codes, start: int, stop: int) -> Sound:
        """The sound of frames ``start`` to ``stop`` of `decode`, from no more codes than it depends
        on. Where frame ``stop`` is not there yet, it is as if it were silent at the seam."""
        first = max(start - PAST_FRAMES, 0)
        sound = self.decode(codes[:, :, first : stop + 1])
        begin = (start - first) * SAMPLES_PER_FRAME
        return sound[:, begin : begin + (stop - start) * SAMPLES_PER_FRAME]

    @torch.no_grad()
    def revive(self, sound: Sound, use: Float[Tensor, "k n"], generator: torch.Generator) -> None:
        """Put codes that are hardly used where latents of ``sound`` lie (as SoundStream does).
        ``use``, how often each code was found of late, is brought up to date."""
        rest = self.latents(sound)
        quantisers: Sequence[Any] = list(self.quantiser.quantizers)
        for quantiser, own in zip(quantisers, use, strict=True):
            inner = quantiser.in_proj(rest)
            found, codes = quantiser.decode_latents(inner)
            counts = torch.bincount(codes.flatten(), minlength=len(own))
            own.mul_(USE_KEPT).add_((1 - USE_KEPT) * counts)
            rest = rest - quantiser.out_proj(found.to(inner))
            unused = own < LEAST_USE
            rows = inner.transpose(1, 2).flatten(0, 1).float()
            chosen = torch.randint(len(rows), (int(unused.sum()),), generator=generator)
            quantiser.codebook.weight[unused] = rows[chosen.to(rows.device)]
            own[unused] = 1.0

    def codes_hash(self) -> str:
        """16 hex digits of what decides codes: the decoder does not."""
        state = self.state_dict().items()
        own = [(name, t) for name, t in state if name.startswith(("encoder.", "quantiser."))]
        return hash_of(asdict(self.config), own)

    def latents(self, sound: Sound) -> Float[Tensor, "b c f"]:
        return self.encoder(log_mel(sound, self.mels, self.window))

    def _sound(self, latents: Float[Tensor, "b c f"]) -> Sound:
        x = self.spread(latents.transpose(1, 2)).unflatten(2, (PARTS, -1)).flatten(1, 2)
        x = self.decoder(x.transpose(1, 2)).transpose(1, 2)
        logs, phases = self.head(self.norm(x)).float().transpose(1, 2).chunk(2, 1)
        spectra = torch.polar(logs.clamp(max=MOST_LOG).exp(), phases)
        spectra = F.pad(spectra, (0, 1))  # behind the last
        return torch.istft(spectra, SPAN, HOP, window=self.window, center=True)

    def save(self, folder: Path, error: float = 0.0) -> None:
        """config.json and model.safetensors, whose tensors are packed (base/packed.py) to within
        ``error`` of their norm."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(asdict(self.config), indent=1) + "\n")
        state = {name: value.half().contiguous() for name, value in self.state_dict().items()}
        save_file(compressed({}, state, error), folder / WEIGHTS_FILE)

    @classmethod
    def load(cls, folder: str | Path) -> "VoiceCodec":
        """Frozen. ValueError for a folder that holds none."""
        path = Path(folder) / "config.json"
        config = built(CodecConfig, read_json(path), where=path)
        codec, path = cls(config), Path(folder) / WEIGHTS_FILE
        state = decompressed({}, read_tensors(path), where=path)
        check_numbers(state, where=path)
        check_state(codec.state_dict(), state, where=path)
        codec.load_state_dict(state)
        return codec.eval().requires_grad_(False)


def log_mel(
    sound: Sound, mels: Float[Tensor, "bin m"], window: Float[Tensor, " n"]
) -> Float[Tensor, "b m t"]:
    """One column every `HOP` samples; 100 a second."""
    spectra = torch.stft(
        sound.float(), SPAN, HOP, window=window, center=True, pad_mode="constant",
        return_complex=True,
    )  # fmt: skip
    power = spectra.abs()[:, :, :-1]
    return (mels.T @ power).clamp_min(1e-5).log()


assert SAMPLE_RATE_HZ == FRAME_RATE_HZ * SAMPLES_PER_FRAME
