"""HDR pictures to those of standard range: HLG and PQ (ITU-R BT.2100), or BT.2020 colours alone, to
BT.709.

Code values become light, light gets the primaries of BT.709 (BT.2087), and the white of standard
range is 203 cd/m² (BT.2408). Up to ``KNEE`` of that light stays as it is, so that a picture of
standard range that was put into HDR comes back; above, a Möbius curve takes ``PEAK`` to white.
"""

from functools import cache

import numpy as np
import torch
from av.video.reformatter import ColorPrimaries, ColorTrc
from jaxtyping import Float, UInt8
from torch import Tensor

HDR: dict[int, str] = {ColorTrc.SMPTE2084: "PQ", ColorTrc.ARIB_STD_B67: "HLG"}
WHITE = 203.0
"""cd/m² of HDR reference white (BT.2408)."""
PEAK = 1000.0
"""cd/m² of the display that HLG is made for, and of most footage in PQ; what is brighter is white.
"""
KNEE = 0.8
"""Of the light of white; 232 of the 255 grey levels."""
FULL = 255 << 8
"""FFmpeg's white in 16 bits, of YUV; of RGB it has 0.4 % more."""
GAMMA = 2.4
"""Of a display of standard range (BT.1886)."""
TO_BT709 = ((1.6605, -0.5876, -0.0728), (-0.1246, 1.1329, -0.0083), (-0.0182, -0.1006, 1.1187))
"""Light of BT.2020 primaries (BT.2087, annex 2)."""
LUMA = (0.2627, 0.6780, 0.0593)
"""Of BT.2020."""


def kind_of_colours(trc: int, primaries: int) -> str:
    """What a picture's transfer characteristic and primaries make it: "HLG", "PQ", "BT.2020" (its
    colours, in standard range) or ""."""
    return HDR.get(trc, "BT.2020" if primaries == ColorPrimaries.BT2020 else "")


def to_standard(picture: np.ndarray, kind: str, *, wide: bool = True) -> UInt8[np.ndarray, "h w 3"]:
    """RGB code values of 16 bits "h w 3", full range, to 8 bits of BT.709; ``wide``: its primaries
    are those of BT.2020."""
    light = torch.from_numpy(_table(kind)[picture])
    if kind == "HLG":  # what the display adds, by the brightness of the scene
        light = light * (light @ torch.tensor(LUMA))[..., None] ** 0.2 * (PEAK / WHITE)
    if wide:
        light = light @ torch.tensor(TO_BT709).T
    light = light.clamp_(min=0)
    codes = (compressed(light) if kind in HDR.values() else light).pow_(1 / GAMMA)
    return codes.mul_(255).round_().clamp_(0, 255).to(torch.uint8).numpy()


def compressed(light: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Light in units of white to [0, 1]: itself up to ``KNEE``, then the Möbius function that goes
    on from there with the same slope and takes ``PEAK`` to 1."""
    peak = PEAK / WHITE
    a = -(KNEE**2) * (peak - 1) / (KNEE**2 - 2 * KNEE + peak)
    b = (KNEE**2 - 2 * KNEE * peak + peak) / (peak - 1)
    scale = (b * b + 2 * b * KNEE + KNEE**2) / (b - a)
    bright = light.clamp(KNEE, peak)
    return torch.where(light > KNEE, scale * (bright + a) / (bright + b), light)


def pq_light(codes: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """cd/m² of PQ code values in [0, 1] (BT.2100, table 4)."""
    m1, m2 = 2610 / 16384, 2523 / 4096 * 128
    c1, c2, c3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
    power = codes ** (1 / m2)
    return 10_000 * (np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1)


def hlg_light(codes: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Light of the scene in [0, 1] of HLG code values in [0, 1] (BT.2100, table 5)."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return np.where(codes <= 0.5, codes**2 / 3, (np.exp((codes - c) / a) + b) / 12)


@cache
def _table(kind: str) -> Float[np.ndarray, " 65536"]:
    """The light of each code value of 16 bits: of the scene for HLG, else in units of white."""
    codes = np.minimum(np.arange(2**16) / FULL, 1)
    light = {
        "PQ": lambda: pq_light(codes) / WHITE,
        "HLG": lambda: hlg_light(codes),
        "BT.2020": lambda: codes**GAMMA,
    }[kind]()
    return light.astype(np.float32)
