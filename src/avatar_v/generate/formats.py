"""Sizes that the weights of each preset were trained for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """What the weights of a preset were trained for."""

    side: int  # pixels of the square picture
    chunk_latents: int
    shift: float  # of the sampling times
    refiner_latents: int = 16  # of each reference clip that a refiner reads


FORMATS = {
    "tiny": Format(side=32, chunk_latents=5, shift=1.0, refiner_latents=4),
    # as recipes/small.yaml trains
    "small": Format(side=64, chunk_latents=13, shift=3.0, refiner_latents=5),
    # Squares of the area of Wan's 480p and 720p; shifts of Wan's generate.py for those sizes.
    "wan_1_3b": Format(side=624, chunk_latents=41, shift=3.0),
    "wan_14b": Format(side=624, chunk_latents=41, shift=3.0),
    "wan22_5b": Format(side=960, chunk_latents=41, shift=5.0),
}
