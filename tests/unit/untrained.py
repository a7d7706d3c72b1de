"""Judges that know nothing yet, as folders."""

from pathlib import Path

import torch

from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic


def untrained_critics(folder: Path) -> dict[str, str]:
    """Their folders, by the options of PerceptualTerms."""
    torch.manual_seed(0)
    FaceCritic(8, 2, 16).save_pretrained(folder / "face")
    MotionMeter(8, 2).save_pretrained(folder / "motion")
    WorldSyncNet(8, 2, 8, 16).save_pretrained(folder / "sync")
    names = {"face_critic": "face", "motion_meter": "motion", "sync_critic": "sync"}
    return {option: str(folder / name) for option, name in names.items()}
