"""Whether weights have seen pictures like those of a reference: a warning where they have not.

A picture of the person goes through the VAE once, which takes milliseconds; models/fidelity.py
explains the number. Weights without it check nothing, and the record says so.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.media.pixels import sized
from avatar_v.models.fidelity import fidelity_db
from avatar_v.models.vae import VideoVAE
from avatar_v.request.record import ReferenceCheck

Picture = UInt8[Tensor, "3 _h _w"]
NamedPictures = Sequence[tuple[str, Picture]]
"""Pictures of the person, each with the file that it is from."""


ReferenceChecker = Callable[[NamedPictures], tuple[ReferenceCheck, tuple[str, ...]]]
"""The measurement, and the warnings."""


@torch.inference_mode()
def check_reference(
    pictures: NamedPictures, vae: VideoVAE, *, video: VideoFormat, people: str
) -> tuple[ReferenceCheck, tuple[str, ...]]:
    """Compare ``pictures``, at the size that the weights make, with what ``vae`` knows."""
    known = vae.known
    if known is None or (known.height, known.width) != video.size:
        at = (
            ""
            if known is None
            else f"at {known.width} x {known.height} pixels, and not at {video},"
        )
        why = "do not say" if known is None else f"say {at}"
        note = f"not checked: the weights {why} which pictures they know (vae/known.json)"
        return ReferenceCheck(None, None, people, note), ()
    x = torch.cat([sized(image[None], video.size) for _, image in pictures]).to(
        vae.latents_mean.device
    )
    rebuilt = vae.decode(vae.encode(x[:, None]))[:, 0]
    values = fidelity_db(rebuilt, x)
    lowest = int(values.argmin())
    check = ReferenceCheck(round(float(values[lowest]), 2), round(known.least_db, 2), people)
    if float(values[lowest]) >= known.least_db:
        return check, ()
    return check, (
        f"{pictures[lowest][0]}: unlike the pictures that the weights know, "
        f"{people or 'of whom they do not say'} ({check.fidelity_db:.1f} dB of it are kept, of "
        f"theirs at least {check.least_db:.1f}), so another face comes out; to train for this one "
        "see “Your own face” in the README",
    )
