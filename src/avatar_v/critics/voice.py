"""Whose voice is heard: Resemblyzer's network (Wan et al. 2018), a unit vector of 1.6 s of speech.

Only the weights are Resemblyzer's: its package imports librosa and webrtcvad, which the network
does without. Mel powers are not logarithms, so loudness counts: speech is brought to `LEVEL_DB`.
"""

import importlib.util
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.types import SAMPLE_RATE_HZ

STEP, SPAN, NUM_MELS, WIDTH = 160, 400, 40, 256
"""Samples from one row of mel powers to the next, and that a row spans."""
WINDOW = 160
"""Rows that the network was trained on: 1.6 s."""
LEVEL_DB = -30.0
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


def mel_powers(audio: Float[Tensor, " s"]) -> Float[Tensor, "t 40"]:
    """Row i lies around sample 160 i. The numbers of librosa.feature.melspectrogram."""
    window = torch.hann_window(SPAN, device=audio.device)
    spectrum = torch.stft(
        audio, SPAN, STEP, window=window, center=True, pad_mode="constant", return_complex=True
    )
    return spectrum.abs().square().T @ _filters().to(audio.device)


def levelled(audio: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Speech that is too quiet, made louder."""
    power_db = 10 * torch.log10(audio.square().mean().clamp_min(1e-10))
    return audio * 10 ** ((LEVEL_DB - power_db).clamp_min(0) / 20)


@cache
def _filters() -> Float[Tensor, "bin 40"]:
    from transformers.audio_utils import mel_filter_bank

    bank = mel_filter_bank(
        SPAN // 2 + 1, NUM_MELS, 0.0, SAMPLE_RATE_HZ / 2, SAMPLE_RATE_HZ, "slaney", "slaney"
    )
    return torch.from_numpy(bank).float()
