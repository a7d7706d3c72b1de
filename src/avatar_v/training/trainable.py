"""Which parts of its network a stage trains: all of it, LoRA factors, or what the stage before
lacked.

Factors are models/lora.py's. They are merged into the matrices when weights are written, so a
pipeline folder is the same whichever way it was trained; beside it they are left as an adapter.
"""

from dataclasses import dataclass
from typing import Literal

from avatar_v.base import checks
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.lora import add_factors
from avatar_v.models.motion_net import MotionNet
from avatar_v.training.subject import Networks

MOTION = (
    "motion_embed", "motion_norm", "motion_inject", "style_embed", "face_embed",
    "anchor_embed", "identity_embed",
)  # fmt: skip
"""The motion stream, habits, face vectors and the marks of faces and anchor, which stage 2 does not
train."""
AUDIO = ("audio_embed", "audio_position", "audio_norm", "audio_attention")
"""The audio layers, which stage 1 does not train."""


@dataclass(frozen=True)
class Trainable:
    """``parts``: "all"; "lora", factors on the matrices of every block, and what is new in the
    stage; "new", that alone. Encoders train along with "all" only."""

    parts: Literal["all", "lora", "new"] = "all"
    lora_rank: int = 16
    lora_alpha: float = 32.0  # the factors' product counts alpha / rank

    def __post_init__(self) -> None:
        checks.count("lora_rank", self.lora_rank)
        checks.positive("lora_alpha", self.lora_alpha)


def select(
    network: AvatarDiT | MotionNet, trainable: Trainable, *, new: tuple[str, ...], seed: int = 0
) -> None:
    """Freeze what is not trained, and add LoRA's factors, in place. Parameters with one of ``new``
    in their names are trained whole. ValueError for "new" where nothing is."""
    if trainable.parts == "all":
        return
    network.requires_grad_(False)
    if trainable.parts == "lora":
        add_factors(
            network, rank=trainable.lora_rank, alpha=trainable.lora_alpha, whole=new, seed=seed
        )
    elif not new:
        raise ValueError(
            "trainable.parts new: this stage adds nothing to the weights that it starts from; "
            "expected all or lora"
        )
    for name, parameter in network.named_parameters():
        if any(part in name for part in new):
            parameter.requires_grad_(True)


def select_dit(
    networks: Networks,
    trainable: Trainable,
    *,
    new: tuple[str, ...],
    encoders: bool = True,
    seed: int = 0,
) -> None:
    """Freeze what a stage of the DiT does not train. The VAE is frozen already. The ``encoders``
    train along with all of the DiT only."""
    if trainable.parts != "all" or not encoders:
        networks.conditioner.requires_grad_(False)
    select(networks.dit, trainable, new=new, seed=seed)
