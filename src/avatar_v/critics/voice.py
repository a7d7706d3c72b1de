"""Whose voice is heard: Resemblyzer's network (Wan et al. 2018), a unit vector of 1.6 s of speech.

Only the weights are Resemblyzer's: its package imports librosa and webrtcvad, which the network
does without. Mel powers are not logarithms, so loudness counts: speech is brought to `LEVEL_DB`.
"""

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import scipy
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.critics.frozen import hash_files
from avatar_v.types import SAMPLE_RATE_HZ

STEP, SPAN, NUM_MELS, WIDTH = 160, 400, 40, 256
"""Samples from one row of mel powers to the next, and that a row spans."""
WINDOW = 160
"""Rows that the network was trained on: 1.6 s."""
HOP = WINDOW // 2
"""Rows from one window to the next, of a sound that is longer than one."""
LEVEL_DB = -30.0
SAME_WINDOWS = 0.31
"""The mean cosine distance of two groups of windows up to which they are one voice; the study
"sound" counts."""
SAME_VOICE = 0.25
"""The cosine distance of two mean vectors up to which they are of one voice: of 5 s each of real
and recorded voices at most 0.16 within a person (36 pairs) and at least 0.29 between persons."""
HOW_TO_INSTALL = (
    "voices need the weights in Resemblyzer 0.1.4 (Apache-2.0, 17 MB): "
    "pip install --no-deps Resemblyzer==0.1.4"
)


class VoiceEncoder(nn.Module):
    """Three layers of LSTM; the last state becomes the vector."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(NUM_MELS, WIDTH, num_layers=3, batch_first=True)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, mels: Float[Tensor, "b t 40"]) -> Float[Tensor, "b 256"]:
        _, (hidden, _) = self.lstm(mels)
        return F.normalize(self.linear(hidden[-1]).relu(), dim=1)

    @classmethod
    def from_package(cls) -> "VoiceEncoder":
        """ValueError where the package is not installed, with the command."""
        state = torch.load(weights_path(), map_location="cpu", weights_only=True)["model_state"]
        with torch.random.fork_rng(devices=[]):  # whoever draws meanwhile does not feel it
            encoder = cls()
        encoder.load_state_dict({name: state[name] for name in encoder.state_dict()})
        return encoder.eval().requires_grad_(False)


def weights_path() -> Path:
    """The file of the weights. Errors as in `VoiceEncoder.from_package`."""
    found = importlib.util.find_spec("resemblyzer")  # and not imported
    path = Path(found.origin).with_name("pretrained.pt") if found and found.origin else None
    if path is None or not path.is_file():
        raise ValueError(HOW_TO_INSTALL)
    return path


@cache
def weights_hash() -> str:
    """12 hex digits of the weights. Errors as in `VoiceEncoder.from_package`."""
    return hash_files([weights_path()])


def is_available() -> bool:
    """Whether the weights are installed."""
    try:
        return weights_path().is_file()
    except ValueError:
        return False


@torch.inference_mode()
def window_vectors(
    sound: Float[Tensor, " s"], windows: Sequence[Sequence[tuple[int, int]]]
) -> Float[np.ndarray, "n 256"]:
    """The vectors of windows, rows from and to, in groups."""
    mels = mel_powers(levelled(sound))
    rows = [mels[a:b] for own in windows for a, b in own]
    found: dict[int, Tensor] = {}
    for length in {len(row) for row in rows}:
        at = [n for n, row in enumerate(rows) if len(row) == length]
        vectors = _encoder()(torch.stack([rows[n] for n in at]))
        found |= dict(zip(at, vectors, strict=True))
    return torch.stack([found[n] for n in range(len(rows))]).double().numpy()


def windows_within(start: int, stop: int) -> list[tuple[int, int]]:
    """The windows of rows from ``start`` to ``stop``, the last one at their end."""
    last = max(stop - WINDOW, start)
    starts = [*range(start, last, HOP), last]
    return [(a, min(a + WINDOW, stop)) for a in starts]


def voices(vectors: Float[np.ndarray, "n 256"], same: float) -> np.ndarray:
    """Of each window the number of its voice, 0 for the one with the most. By average linkage."""
    if len(vectors) < 2:
        return np.zeros(len(vectors), int)
    groups = (
        scipy.cluster.hierarchy.fcluster(
            scipy.cluster.hierarchy.linkage(vectors, "average", "cosine"), same, "distance"
        )
        - 1
    )
    largest_first = np.argsort(-np.bincount(groups), kind="stable")
    return np.argsort(largest_first)[groups]


def mean_vector(vectors: Float[np.ndarray, "n 256"]) -> Float[np.ndarray, " 256"]:
    """Their direction: a unit vector."""
    total = vectors.sum(0)
    return total / max(float(np.linalg.norm(total)), 1e-9)


def vectors_of(sound: Float[Tensor, " s"]) -> Float[np.ndarray, "n 256"]:
    """The vectors of all windows of a sound at 16 kHz."""
    return window_vectors(sound, [windows_within(0, 1 + len(sound) // STEP)])


def mel_powers(audio: Float[Tensor, " s"]) -> Float[Tensor, "t 40"]:
    """Row i lies around sample 160 i. The numbers of librosa.feature.melspectrogram."""
    window = torch.hann_window(SPAN, device=audio.device)
    spectrum = torch.stft(
        audio, SPAN, STEP, window=window, center=True, pad_mode="constant", return_complex=True
    )
    return spectrum.abs().square().T @ mel_filters(SPAN, NUM_MELS).to(audio.device)


def levelled(audio: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Speech that is too quiet, made louder."""
    power_db = 10 * torch.log10(audio.square().mean().clamp_min(1e-10))
    return audio * 10 ** ((LEVEL_DB - power_db).clamp_min(0) / 20)


@cache
def _encoder() -> VoiceEncoder:
    return VoiceEncoder.from_package()


@cache
def mel_filters(span: int, num: int) -> Float[Tensor, "bin m"]:
    """Weights of mel bands over the bins of spectra of ``span`` samples at 16 kHz."""
    from transformers.audio_utils import mel_filter_bank

    high = SAMPLE_RATE_HZ / 2
    bank = mel_filter_bank(span // 2 + 1, num, 0.0, high, SAMPLE_RATE_HZ, "slaney", "slaney")
    return torch.from_numpy(bank).float()
