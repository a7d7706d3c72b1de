"""Audio encoders: waveform "b s", 640 samples a frame → a feature vector per video frame, "b f d".

Each encoder hears a stated number of latents behind a latent's own (``look_ahead``) and a stated
stretch of sound before it (``memory_latents``), so that speech that arrives in pieces is encoded as
if whole; two frames more are the context of the latent windows (`latent_windows`). The embedded
encoder (`LogMelEncoder`) is causal by itself. `HiddenStateAudioEncoder` wraps wav2vec 2.0, HuBERT,
WavLM and Whisper, which are not: they encode whole files, or window by window, in training as in a
stream.
"""

import itertools
import math
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base.paths import indexed_weights
from avatar_v.base.stored import Count, Size, Within
from avatar_v.models.layers import MLP, LayerNorm
from avatar_v.models.time_grids import STATE_RATE_HZ, at_16_khz, of_frames
from avatar_v.types import (
    FRAME_RATE_HZ,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_FRAME,
    TEMPORAL_FACTOR,
    num_frames,
    num_latents,
)

CONTEXT_FRAMES = 2
"""Video frames that a latent's audio window reaches beyond its own, on each side."""
NUM_WINDOW_FRAMES = TEMPORAL_FACTOR + 2 * CONTEXT_FRAMES

LookAhead = Annotated[int, Within(0, 16)]
"""Latents behind its own whose sound a latent hears."""
Window = Annotated[int, Within(1, 1000)]
"""Latents of sound, the last its own, that an encoder hears at once, without the look-ahead."""
WINDOW_LATENTS = 12
"""1.9 s (our choice)."""

Depth = Annotated[int, Within(0, 16)]
"""Layers, of which each reaches twice as far back as the one before."""

KINDS = ("wav2vec2", "hubert", "wavlm", "whisper")
"""Encoders of transformers, by their config's model_type."""
AT_ONCE = 64
"""Windows in one pass of an encoder: they bound its memory."""

Waveform = Float[Tensor, "b s"]
Features = Float[Tensor, "b f d"]

_WINDOW = 400  # samples of one spectrum: 25 ms
_HOP = 160  # 10 ms: four spectra per video frame
_FFT = 512
_MELS_PER_FRAME = SAMPLES_PER_FRAME // _HOP
_FLOOR = 1e-6  # power below which a mel band is silent
# Constants, not statistics of the utterance, so that chunks agree. Recorded speech at -23 LUFS then
# has mean -0.1 and standard deviation 0.7 over bands and time.
_LOG_MEAN, _LOG_STD = -1.0, 2.0


def latent_windows(features: Features) -> Float[Tensor, "b l window d"]:
    """The features each latent frame sees: its four video frames and two on each side.

    Latent k holds frames 4k - 3 … 4k, so its window is 4k - 5 … 4k + 2, clamped to the clip; for
    k = 0, the image latent, the clamped window is frame 0 and its two followers.
    """
    num = num_latents(features.shape[1])
    start = TEMPORAL_FACTOR * torch.arange(num) - (NUM_WINDOW_FRAMES - 1 - CONTEXT_FRAMES)
    index = start[:, None] + torch.arange(NUM_WINDOW_FRAMES)
    return features[:, index.clamp(0, features.shape[1] - 1).to(features.device)]


def log_mel(waveform: Waveform, filters: Float[Tensor, "bins mels"]) -> Float[Tensor, "b t mels"]:
    """Log mel power at 100 Hz in fp32. Spectrum i ends with sample 160 (i + 1): it sees no future.

    Before the first sample there is silence. Scaled by constants to about zero mean, unit spread.
    """
    with torch.autocast(waveform.device.type, enabled=False):
        padded = F.pad(waveform.float(), (_WINDOW - _HOP, 0))
        frames = padded.unfold(-1, _WINDOW, _HOP) * torch.hann_window(
            _WINDOW, device=waveform.device
        )
        power = torch.fft.rfft(frames, n=_FFT).abs().square()
        mel = (power @ filters).clamp_min(_FLOOR).log10()
    return (mel - _LOG_MEAN) / _LOG_STD


def mel_filters(num_mels: int) -> Float[Tensor, "bins mels"]:
    """Triangular filters, evenly spaced on the HTK mel scale from 20 Hz to 7600 Hz, peak 1."""
    low, high = (2595 * math.log10(1 + hz / 700) for hz in (20.0, 7600.0))
    with torch.device("cpu"):  # also where the network has no memory yet
        mels = torch.linspace(low, high, num_mels + 2, dtype=torch.float64)
        bins = torch.linspace(0, SAMPLE_RATE_HZ / 2, _FFT // 2 + 1, dtype=torch.float64)[:, None]
    edges = 700 * (10 ** (mels / 2595) - 1)
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rise, fall).clamp_min(0).float()


class LogMelEncoder(nn.Module):
    """Log-mel spectra, then causal convolutions over video frames; trained with the model.

    With ``look_ahead`` the feature of a frame is what is known so many latents later; silence
    stands behind the sound.
    """

    mel_filters: Tensor

    def __init__(
        self,
        dim: Size,
        *,
        num_layers: Depth = 3,
        num_mels: Count = 80,
        look_ahead: LookAhead = 0,
    ) -> None:
        super().__init__()
        self._sizes = {"dim": dim, "num_layers": num_layers, "num_mels": num_mels}
        self.dim, self.look_ahead, self.window = dim, look_ahead, None
        self.register_buffer("mel_filters", mel_filters(num_mels), persistent=False)
        self.embed = MLP(_MELS_PER_FRAME * num_mels, dim, dim)
        self.layers = nn.ModuleList(_CausalLayer(dim, 2**i) for i in range(num_layers))
        self.norm = LayerNorm(dim, 1e-6)

    @classmethod
    def tiny(cls) -> "LogMelEncoder":
        return cls(32, num_layers=1, num_mels=16)

    @classmethod
    def small(cls) -> "LogMelEncoder":
        return cls(256)

    @property
    def config(self) -> dict[str, int]:
        return {**self._sizes, "look_ahead": self.look_ahead}

    def hear(self, look_ahead: LookAhead, window: Window | None = None) -> None:
        """Set the look-ahead. ValueError for a ``window``: its layers have their own memory."""
        if window is not None:
            raise ValueError(
                "models.audio_window is for wav2vec 2.0 and the like: the embedded encoder has a "
                f"memory of its own, {self.memory_latents} latents"
            )
        self.look_ahead = look_ahead

    @property
    def memory_frames(self) -> int:
        """Video frames before the last it hears that a feature depends on."""
        spectra = math.ceil((_WINDOW - _HOP) / SAMPLES_PER_FRAME)
        return spectra + sum(layer.memory_frames for layer in self.layers)  # pyright: ignore

    @property
    def memory_latents(self) -> int:
        """Latent frames before its own that a latent frame's window of features depends on: the
        window itself reaches back one latent and `CONTEXT_FRAMES`."""
        reach = self.memory_frames + TEMPORAL_FACTOR - 1 + CONTEXT_FRAMES
        return math.ceil(reach / TEMPORAL_FACTOR)

    def forward(self, waveform: Waveform, first: int = 0) -> Features:
        """Features of s / 640 video frames, whatever the ``first`` latent is that is asked for.
        ValueError unless s is a multiple of 640."""
        check_samples(waveform)
        ahead = TEMPORAL_FACTOR * self.look_ahead
        if ahead:
            waveform = F.pad(waveform, (0, ahead * SAMPLES_PER_FRAME))
        x = log_mel(waveform, self.mel_filters).unflatten(1, (-1, _MELS_PER_FRAME)).flatten(2)
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)[:, ahead:]


class HiddenStateAudioEncoder(nn.Module):
    """Hidden states of a frozen wav2vec 2.0, HuBERT, WavLM or Whisper encoder, all layers,
    softmax-weighted.

    ``folder`` is a local transformers folder; nothing is downloaded. Hidden states at 50 Hz are
    averaged over the time of each video frame: in pairs at 25 frames a second. At another
    ``frame_rate_hz`` the sound of each pass is resampled to 16 kHz (time_grids.py).

    Without ``look_ahead`` each feature depends on the whole recording. With it four video frames at
    a time (4k - 1 … 4k + 2, which latent k adds) come from a pass over the ``window`` latents of
    sound that end with them and ``look_ahead`` latents behind, as far as the recording reaches. A
    pass a latent: the features do not depend on where a stream is cut, and all that is normalised
    (wav2vec 2.0: the waveform, and channels in base models; Whisper: the loudest band) is
    normalised within a window. In the limit of long windows they are those of the whole recording.
    Whisper's pass is one of 30 s, whatever the window: silence fills it behind the window.
    """

    frame_rate_hz: int = FRAME_RATE_HZ

    def __init__(
        self,
        folder: str | Path,
        look_ahead: LookAhead | None = None,
        window: Window = WINDOW_LATENTS,
    ) -> None:
        super().__init__()
        from transformers import AutoConfig, AutoFeatureExtractor, AutoModel

        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"no folder {folder} to load an audio encoder from")
        indexed_weights(folder)
        of_here = {"local_files_only": True, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(folder, **of_here)
        if config.model_type not in KINDS:
            raise ValueError(f"{folder} holds a {config.model_type}, expected {' or '.join(KINDS)}")
        self.kind = config.model_type
        self.extractor = AutoFeatureExtractor.from_pretrained(folder, **of_here)
        self.model = AutoModel.from_pretrained(folder, **of_here)
        self.model.requires_grad_(False).eval()
        self.dim = int(config.hidden_size)
        self.layer_logits = nn.Parameter(torch.zeros(_num_states(config)))
        self.look_ahead, self.window = None, window
        if look_ahead is not None:
            self.hear(look_ahead)

    def hear(self, look_ahead: LookAhead, window: Window | None = None) -> None:
        """Encode by windows that end ``look_ahead`` latents behind a latent's own (None: of the
        length they have). ValueError for more than Whisper reads in a pass."""
        window = self.window if window is None else window
        self._check_pass(look_ahead, window, self.frame_rate_hz)
        self.look_ahead, self.window = look_ahead, window

    def at_rate(self, frame_rate_hz: int) -> None:
        """Take so many video frames a second, of 640 samples each. ValueError as `hear`."""
        if self.look_ahead is not None:
            self._check_pass(self.look_ahead, self.window, frame_rate_hz)
        self.frame_rate_hz = frame_rate_hz

    @property
    def config(self) -> dict[str, int]:
        if self.look_ahead is None:
            return {}
        return {"look_ahead": self.look_ahead, "window": self.window}

    @property
    def memory_latents(self) -> int:
        """As that of LogMelEncoder."""
        return self.window + 1

    def train(self, mode: bool = True) -> "HiddenStateAudioEncoder":
        """The backbone stays in evaluation mode: it is frozen."""
        self.training = mode
        return self

    def forward(self, waveform: Waveform, first: int = 0) -> Features:
        """Features of s / 640 video frames; with ``look_ahead`` 0 on those that no latent from
        ``first`` on sees. ValueError unless s is a multiple of 640."""
        check_samples(waveform)
        with torch.no_grad():
            if self.look_ahead is None:
                layers = self._features(waveform, 0, waveform.shape[1] // SAMPLES_PER_FRAME)
            else:
                layers = self._by_windows(waveform, max(first - 1, 0))
        return torch.einsum("k,kbfd->bfd", self.layer_logits.softmax(0), torch.stack(layers))

    def save_backbone(self, folder: Path) -> None:
        """The model and its feature extractor in transformers' layout."""
        self.model.save_pretrained(folder)
        self.extractor.save_pretrained(folder)

    def _check_pass(self, look_ahead: int, window: int, frame_rate_hz: int) -> None:
        length_s = TEMPORAL_FACTOR * (window + look_ahead) / frame_rate_hz
        if self.kind == "whisper" and length_s * SAMPLE_RATE_HZ > self.extractor.n_samples:
            most_s = self.extractor.n_samples / SAMPLE_RATE_HZ
            raise ValueError(
                f"models.audio_window {window} and audio_look_ahead {look_ahead} are "
                f"{length_s:.2f} s of sound, and Whisper hears {most_s:g} s at once"
            )

    def _features(self, waveform: Waveform, first: int, num: int) -> list[Features]:
        """Of each layer, of ``num`` of the waveform's video frames, from one pass over all."""
        states = self._states(at_16_khz(waveform, self.frame_rate_hz))
        return [of_frames(state, first, num, self.frame_rate_hz) for state in states]

    def _states(self, waveform: Waveform) -> tuple[Tensor, ...]:
        """Hidden states at 50 Hz of sound at 16 kHz, to its end or further."""
        return self._whisper(waveform) if self.kind == "whisper" else self._wav2vec2(waveform)

    def _by_windows(self, waveform: Waveform, skipped: int) -> list[Features]:
        """Features of groups of four video frames, of which the first begins at frame -1; 0 in
        those that are ``skipped``. Groups whose windows are alike take one pass."""
        assert self.look_ahead is not None
        num_samples, num_frames = len(waveform), waveform.shape[1] // SAMPLES_PER_FRAME
        behind = TEMPORAL_FACTOR * self.look_ahead
        found: list[_Heard] = []
        for group in range(skipped, num_frames // TEMPORAL_FACTOR + 1):
            stop = TEMPORAL_FACTOR * group + TEMPORAL_FACTOR - 1
            own = max(stop - TEMPORAL_FACTOR, 0)
            first = max(stop - TEMPORAL_FACTOR * self.window, 0)
            last = min(stop + behind, num_frames)
            found.append(_Heard(first, last - first, own - first, min(stop, num_frames) - own))
        parts: list[list[Tensor]] = []
        for alike, run in itertools.groupby(found, lambda heard: heard[1:]):
            size, at, num = alike
            starts = [SAMPLES_PER_FRAME * heard.first for heard in run]
            each = [waveform[:, x : x + SAMPLES_PER_FRAME * size] for x in starts]
            windows = torch.stack(each, dim=1).flatten(0, 1)
            passes = [self._features(some, at, num) for some in windows.split(AT_ONCE)]
            layers = (torch.cat(layer) for layer in zip(*passes, strict=True))
            parts.append([x.unflatten(0, (num_samples, -1)).flatten(1, 2) for x in layers])
        zeros = max(TEMPORAL_FACTOR * skipped - 1, 0)
        layers = (torch.cat(layer, dim=1) for layer in zip(*parts, strict=True))
        return [F.pad(x, (0, 0, zeros, 0)) for x in layers]

    def _wav2vec2(self, waveform: Waveform) -> tuple[Tensor, ...]:
        """States to the end of the sound: of 320 samples each, and the last hears 80 more."""
        x = waveform
        if self.extractor.do_normalize:
            x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-7).sqrt()
        behind = -x.shape[1] % (SAMPLE_RATE_HZ // STATE_RATE_HZ) + 80
        return self.model(F.pad(x, (0, behind)), output_hidden_states=True).hidden_states

    def _whisper(self, waveform: Waveform) -> tuple[Tensor, ...]:
        """The waveform in pieces of the length that Whisper reads."""
        piece = self.extractor.n_samples
        parts = []
        for start in range(0, waveform.shape[1], piece):
            rows = [row.cpu().numpy() for row in waveform[:, start : start + piece]]
            with torch.autocast("cpu", enabled=False):  # its spectra pass NumPy, which has no bf16
                mel = self.extractor(rows, sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt")
            mel = mel.input_features.to(waveform.device)
            parts.append(self.model.encoder(mel, output_hidden_states=True).hidden_states)
        return tuple(torch.cat(layer, dim=1) for layer in zip(*parts, strict=True))


def frames_heard(stop: int) -> int:
    """Video frames up to whose end the latents before number ``stop`` hear, without look-ahead."""
    return num_frames(stop) + CONTEXT_FRAMES


class _Heard(NamedTuple):
    """A window of sound, in video frames, and those of it that are encoded by it."""

    first: int
    size: int
    own: int  # the first of them, from the window's beginning
    num: int


def check_samples(waveform: Waveform) -> None:
    if waveform.shape[1] == 0 or waveform.shape[1] % SAMPLES_PER_FRAME:
        raise ValueError(
            f"a waveform has a whole number of video frames ({SAMPLES_PER_FRAME} samples each), "
            f"got {waveform.shape[1]} samples"
        )


def _num_states(config) -> int:
    layers = config.encoder_layers if config.model_type == "whisper" else config.num_hidden_layers
    return layers + 1


class _CausalLayer(nn.Module):
    """x + MLP of (x now, and at one and two dilations before)."""

    def __init__(self, dim: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.memory_frames = 2 * dilation
        self.norm = LayerNorm(dim, 1e-6)
        self.mix = MLP(3 * dim, dim, dim)

    def forward(self, x: Features) -> Features:
        y = F.pad(self.norm(x), (0, 0, self.memory_frames, 0))
        num = x.shape[1]
        taps = [y[:, i * self.dilation : i * self.dilation + num] for i in range(3)]
        return x + self.mix(torch.cat(taps, dim=-1))
