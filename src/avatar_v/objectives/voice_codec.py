"""Training of the codec of speech (recipes/voices/codec.yaml): voices/codec.py.

Distances of log-mel spectra at four resolutions, the quantiser's two terms, and discriminators of
complex spectra at two resolutions with the distance of their feature maps, as codecs are trained
since Encodec (Défossez et al. 2022). One update of the discriminators, then one of the codec.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import lightning as L
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base import checks
from avatar_v.critics.voice import mel_filters
from avatar_v.training.adversarial import DISCRIMINATOR, Adversarial
from avatar_v.training.batch import Draws, Logs
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.roles import STUDENT, Role, Updates
from avatar_v.training.subject import Subject
from avatar_v.training.windows import value_at
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.voices.codec import CodecConfig, Quantised, Sound, VoiceCodec
from avatar_v.voices.discriminator import SpectrumDiscriminator

SPANS = ((256, 40), (512, 64), (1024, 80), (2048, 96))
"""Samples of a spectrum and its mel bands, of the distance."""
FEATURE_SPREAD = 1e-3
REVIVED_EVERY = 10
"""Steps, after which codes without use are moved."""


@dataclass(frozen=True)
class CodecLoss:
    """Weights of the codec's terms beside 1 for the distance of spectra."""

    commitment: float = 0.25
    codebook: float = 1.0
    features: float = 1.0

    def __post_init__(self) -> None:
        for name in ("commitment", "codebook", "features"):
            checks.weight(name, getattr(self, name))


@dataclass(frozen=True)
class SoundWindows:
    """Windows of whole frames."""

    sound: Sound
    draws: torch.Generator

    @property
    def size(self) -> int:
        return len(self.sound)

    @property
    def num_tokens(self) -> int:
        return self.sound.numel() // SAMPLES_PER_FRAME


class SoundSubject(Subject[SoundWindows]):
    """Windows as they come, for a codec of these shapes, or the trained one in a folder."""

    def __init__(self, config: CodecConfig, init_from: str | None) -> None:
        self.config, self.init_from = config, init_from

    def load(self, seed: int, trainer: L.Trainer | None) -> dict[str, nn.Module]:
        if self.init_from is not None:
            codec = VoiceCodec.load(self.init_from).requires_grad_(True)
            if codec.config != self.config:
                raise ValueError(f"{self.init_from} holds a codec of other shapes: {codec.config}")
            return {"codec": codec}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return {"codec": VoiceCodec(self.config)}

    def begin(self, networks: object, batch: Tensor, draws: Draws) -> SoundWindows:
        return SoundWindows(batch, draws.own)


class TrainVoiceCodec(Engine[SoundWindows]):
    """Trains a `VoiceCodec`.

    Args:
        codec: its shapes.
        optim: numbers of the codec's optimiser.
        adversarial: of the discriminators; None: there are none.
        loss: weights of the terms.
        updates: clipping of the codec's gradient.
        num_judged: windows of a batch that the discriminators see, which take most of the time.
        init_from: folder of a trained codec of these shapes; None starts fresh.
        decoder_only: keep encoder and quantiser, so that a language model of the codes stays right.
        seed: of fresh weights.
    """

    subject: SoundSubject
    codec: VoiceCodec
    discriminator: SpectrumDiscriminator
    use: Tensor

    def __init__(
        self,
        codec: CodecConfig,
        optim: Optim,
        loss: CodecLoss,
        updates: Updates,
        adversarial: Adversarial | None = None,
        num_judged: int = 8,
        init_from: str | None = None,
        decoder_only: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(SoundSubject(codec, init_from), optim, seed, updates=updates)
        checks.count("num_judged", num_judged)
        if decoder_only and init_from is None:
            raise ValueError("decoder_only needs init_from: trained codes to keep")
        self.decoder_only = decoder_only
        self.adversarial, self.weights, self.num_judged = adversarial, loss, num_judged
        sizes = (codec.num_codebooks, codec.codebook_size)
        self.register_buffer("use", torch.ones(sizes))
        self._spectra = nn.ModuleList(MelDistance(*span) for span in SPANS)

    @property
    def automatic_optimization(self) -> bool:
        """``updates`` count without discriminators, too."""
        return False

    def roles(self) -> Mapping[str, Role]:
        clip = self.updates.gradient_clip_val
        student = Role(("codec",), self.optim, ema=True, export=True, gradient_clip=clip)
        judge = {} if self.adversarial is None else {DISCRIMINATOR: self.adversarial.role()}
        return {STUDENT: student, **judge}

    def select_trainable(self) -> None:
        if self.decoder_only:
            self.codec.encoder.requires_grad_(False)
            self.codec.quantiser.requires_grad_(False)

    def build_roles(self) -> None:
        if self.adversarial is None:
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            numbers = self.adversarial
            self.discriminator = SpectrumDiscriminator(numbers.width, numbers.num_layers)

    def iterate(self, batch: SoundWindows) -> tuple[Tensor, Logs]:
        if self.step % REVIVED_EVERY == 0 and not self.decoder_only:
            self.codec.revive(batch.sound, self.use, batch.draws)
        made, judge = self.rebuild(batch), self.adversarial
        judged = judge is not None and value_at(judge.weight, self.step) > 0
        learned = made.sound.new_zeros(())
        if judged:
            with self.only(DISCRIMINATOR):
                real, fake = batch.sound[: self.num_judged], made.sound[: self.num_judged]
                learned = self.discriminator_loss(real, fake.detach())
                self.update(DISCRIMINATOR, learned)
        with self.only(STUDENT):
            loss, logs = self.codec_loss(batch.sound, made, judged=judged)
            self.update(STUDENT, loss)
        return loss, {**logs, "discriminator": learned}

    def loss(self, batch: SoundWindows) -> tuple[Tensor, Logs]:
        """The terms without the discriminators'."""
        return self.codec_loss(batch.sound, self.rebuild(batch), judged=False)

    def rebuild(self, batch: SoundWindows) -> Quantised:
        if self.decoder_only:
            return self.codec.redecoded(batch.sound)
        with torch.random.fork_rng(devices=[]):  # which codebooks are left out torch itself draws
            torch.manual_seed(int(torch.randint(2**62, (), generator=batch.draws)))
            return self.codec(batch.sound)

    def codec_loss(self, sound: Sound, made: Quantised, *, judged: bool) -> tuple[Tensor, Logs]:
        mel = torch.stack([distance(made.sound, sound) for distance in self._spectra]).mean()
        terms = {"mel": mel, "commitment": made.commitment, "codebook": made.codebook}
        w = self.weights
        loss = mel + w.commitment * made.commitment + w.codebook * made.codebook
        if judged and self.adversarial is not None:
            fake = self.discriminator(made.sound[: self.num_judged])
            real = self.discriminator(sound[: self.num_judged])
            logits = [F.relu(1 - maps[-1]).mean() for maps in fake]
            terms["generator"] = torch.stack(logits).mean()
            terms["features"] = feature_maps_distance(fake, real)
            weight = value_at(self.adversarial.weight, self.step)
            loss = loss + weight * (terms["generator"] + w.features * terms["features"])
        return loss, terms

    def discriminator_loss(self, real: Sound, fake: Sound) -> Tensor:
        """Hinge loss."""
        terms = [
            F.relu(1 - true[-1]).mean() + F.relu(1 + made[-1]).mean()
            for true, made in zip(self.discriminator(real), self.discriminator(fake), strict=True)
        ]
        return torch.stack(terms).mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """The distance of spectra, and how many codes of the codebooks are in use."""
        made = self.codec.decode(codes := self.codec.encode(batch))
        mel = torch.stack([distance(made, batch) for distance in self._spectra]).mean()
        self.log("val/mel", mel, prog_bar=True, batch_size=len(batch), sync_dist=True)
        used = torch.tensor([float(len(own.unique())) for own in codes.movedim(1, 0)])
        share = used.mean() / self.codec.config.codebook_size
        self.log("val/used", share, batch_size=len(batch), sync_dist=True)


class MelDistance(nn.Module):
    """The mean absolute difference of log-mel spectra."""

    mels: Tensor
    window: Tensor

    def __init__(self, span: int, num_mels: int) -> None:
        super().__init__()
        self.span = span
        self.register_buffer("mels", mel_filters(span, num_mels).clone(), persistent=False)
        self.register_buffer("window", torch.hann_window(span), persistent=False)

    def forward(self, made: Sound, true: Sound) -> Float[Tensor, ""]:
        return F.l1_loss(self._logs(made), self._logs(true))

    def _logs(self, sound: Sound) -> Tensor:
        spectra = torch.stft(
            sound.float(), self.span, self.span // 4, window=self.window, return_complex=True
        )
        return (self.mels.T @ (spectra.abs() + 1e-9)).clamp_min(1e-3).log()


def feature_maps_distance(fake: list[list[Tensor]], real: list[list[Tensor]]) -> Float[Tensor, ""]:
    """Relative to how large the maps of true sounds are."""
    terms = [
        (a.float() - b.float().detach()).abs().mean()
        / b.float().detach().abs().mean().clamp_min(FEATURE_SPREAD)
        for made, true in zip(fake, real, strict=True)
        for a, b in zip(made[:-1], true[:-1], strict=True)
    ]
    return torch.stack(terms).mean()
