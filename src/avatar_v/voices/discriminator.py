"""Discriminators of sound: is this part of the spectrum real or made?

As Encodec's (Défossez et al. 2022): convolutions over complex spectra, at two resolutions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avatar_v.voices.codec import Sound

JUDGED = (400, 960)
"""Samples of the spectra that are seen."""


class SpectrumDiscriminator(nn.Module):
    """Logits of parts of the complex spectra of sounds, and the feature maps below them."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.judges = nn.ModuleList(self._judge(width, num_layers) for _ in JUDGED)

    @staticmethod
    def _judge(width: int, num_layers: int) -> nn.ModuleList:
        norm = nn.utils.parametrizations.weight_norm
        layers = [norm(nn.Conv2d(2, width, (7, 3), (2, 1), (3, 1)))]
        for number in range(num_layers - 1):
            spread = 2**number
            layers.append(norm(nn.Conv2d(width, width, (5, 3), (2, 1), (2, spread), (1, spread))))
        return nn.ModuleList([*layers, norm(nn.Conv2d(width, 1, 3, padding=1))])

    def forward(self, sound: Sound) -> list[list[Tensor]]:
        """Of each resolution the feature maps, the logits last."""
        found = []
        for span, judge in zip(JUDGED, self.judges, strict=True):
            window = torch.hann_window(span, device=sound.device)
            spectra = torch.stft(
                sound.float(), span, span // 4, window=window, return_complex=True,
                normalized=True,
            )  # fmt: skip
            x, maps = torch.view_as_real(spectra).movedim(3, 1), []
            layers = list(judge)  # pyright: ignore[reportArgumentType]
            for layer in layers[:-1]:
                x = F.leaky_relu(layer(x), 0.1)
                maps.append(x)
            found.append([*maps, layers[-1](x).float()])
        return found
