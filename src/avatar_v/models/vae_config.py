"""What the networks of the video VAE are built of: config.json, in the words of diffusers."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from avatar_v.base.stored import Count, Size, Within, accepted_fields, checked

# Wan2.1-T2V vae/config.json.
_WAN21_MEAN = (
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
    -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
)  # fmt: skip
_WAN21_STD = (
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
    1.6382, 1.1253, 2.8251, 1.9160,
)  # fmt: skip
# Wan2.2-TI2V-5B vae/config.json.
_WAN22_MEAN = (
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813,
    0.0891, 0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108,
    -0.2158, 0.2502, -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313,
    -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944,
    0.3573, -0.0548, -0.1681, -0.0667,
)  # fmt: skip
_WAN22_STD = (
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
)  # fmt: skip


@dataclass(frozen=True)
class VAEConfig:
    """Values that are left out are those of Wan 2.1.

    ``temperal_downsample`` says of each halving of places whether it halves time, too. Patches of
    ``patch_size`` pixels become channels before the first convolution. The two ``scale_factor_…``
    follow from these and are not read. ValueError for ``attn_scales``, which no published VAE has,
    and for lists that do not fit each other.
    """

    base_dim: Size = 96
    decoder_base_dim: Size | None = None
    z_dim: Size = 16
    dim_mult: tuple[Count, ...] = (1, 2, 4, 4)
    num_res_blocks: Annotated[int, Within(1, 32)] = 2
    attn_scales: tuple[float, ...] = ()
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    dropout: Annotated[float, Within(0, 1)] = 0.0
    latents_mean: tuple[float, ...] = _WAN21_MEAN
    latents_std: tuple[float, ...] = _WAN21_STD
    is_residual: bool = False
    in_channels: Size = 3
    out_channels: Size = 3
    patch_size: Count | None = None
    scale_factor_temporal: Count | None = 4
    scale_factor_spatial: Count | None = 8

    def __post_init__(self) -> None:
        if self.attn_scales:
            raise ValueError("attention outside the middle block (attn_scales) is not supported")
        if len(self.temperal_downsample) != len(self.dim_mult) - 1:
            raise ValueError(
                "temperal_downsample has one entry less than dim_mult, got "
                f"{len(self.temperal_downsample)} and {len(self.dim_mult)}"
            )

    @classmethod
    def of(cls, fields: Mapping[str, Any], *, where: str | Path) -> "VAEConfig":
        """Of config.json; fields that the network does not have are left out. ValueError, which
        begins with ``where``, for values of another type or out of range."""
        found = checked(fields, accepted_fields(cls), where=where)
        try:
            return cls(**found)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """As config.json has it, without the class."""
        fields = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


WAN22 = VAEConfig(
    base_dim=160,
    decoder_base_dim=256,
    z_dim=48,
    latents_mean=_WAN22_MEAN,
    latents_std=_WAN22_STD,
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
    scale_factor_spatial=16,
)
"""Of Wan 2.2's 5B."""


def residual_config(base_dim: int) -> VAEConfig:
    """Wan 2.2's residual blocks at factor 8: 2x2 patches, then two halvings of space and time."""
    return VAEConfig(
        base_dim=base_dim,
        dim_mult=(1, 2, 2),
        num_res_blocks=1,
        temperal_downsample=(True, True),
        latents_mean=(0.0,) * 16,
        latents_std=(1.0,) * 16,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
    )
