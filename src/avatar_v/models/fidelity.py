"""Which pictures a VAE knows: how well it rebuilds them, against those it was trained on.

A VAE rebuilds what resembles its training pictures and blurs what does not: of a filmed face, one
trained on drawn people keeps the coarse picture and loses the fine detail. So one number of a
picture (`fidelity_db`), with what training pictures reach (`ReconstructionStats`), tells whether
weights have seen its like. The number is stored by the training of the VAE
(callbacks/export_vae.py) in ``known.json`` beside its weights.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.stored import Within

PERCENTILE = 0.01
"""Share of training pictures that rank as unknown (our choice): the false alarms accepted."""
NUM_DEVIATIONS = 3.0
"""Below the mean, where there are too few pictures for the percentile (our choice)."""

Pictures = Float[Tensor, "n 3 h w"]


@dataclass(frozen=True)
class ReconstructionStats:
    """`fidelity_db` that a VAE reaches on training pictures; not comparable between VAEs."""

    least_db: Annotated[float, Within(-200, 200)]  # `fidelity_db` of all but `PERCENTILE` of them
    num_pictures: Annotated[int, Within(1, 10**9)]  # it was measured on
    height: Annotated[int, Within(1, 65_536)]  # pixels of these
    width: Annotated[int, Within(1, 65_536)]


def fidelity_db(rebuilt: Pictures, pictures: Pictures) -> Float[Tensor, " n"]:
    """The mean, in dB, of two ratios of a picture in [-1, 1]: the PSNR of all of it, and the energy
    of its finest detail over that of the error there.

    The detail is what a mean over 3 x 3 pixels leaves out. Alone the PSNR is high for smooth
    pictures of anything; the detail alone is lost of drawn ones, too, where they are blurred.
    """
    error = ((rebuilt - pictures) / 2).square().flatten(1).mean(1)
    lost = detail(rebuilt - pictures).square().flatten(1).sum(1)
    there = detail(pictures).square().flatten(1).sum(1)
    whole = -10 * error.clamp_min(1e-10).log10()
    fine = 10 * (there.clamp_min(1e-10) / lost.clamp_min(1e-10)).log10()
    return (whole + fine) / 2


def detail(x: Pictures) -> Pictures:
    """``x`` without its mean over 3 x 3 pixels; borders repeat."""
    return x - F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)


def known(values: Float[Tensor, " n"], *, size: tuple[int, int]) -> ReconstructionStats:
    """What training pictures with these fidelities tell; ValueError for none, or one not finite.

    Fewer than a hundred pictures, such as the frames of one clip, do not show a percentile of
    theirs: then it is their mean less `NUM_DEVIATIONS` standard deviations.
    """
    if len(values) == 0 or not bool(torch.isfinite(values).all()):
        raise ValueError(f"fidelities are finite numbers of pictures, got {values.tolist()[:8]}")
    values = values.float()
    least = values.quantile(PERCENTILE)
    if len(values) * PERCENTILE < 1:
        least = values.mean() - NUM_DEVIATIONS * values.std(correction=0)
    return ReconstructionStats(round(float(least), 3), len(values), *size)
