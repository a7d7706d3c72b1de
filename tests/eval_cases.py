"""Small cases and readings of studies, whose answer is known."""

import torch
from torch import Tensor

from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v.world.clip import WorldClip
from avatar_v_eval.cases import Case, CaseIds
from avatar_v_eval.protocol import run_measurement


def clip_of(video: Tensor, *, person: int = 0, prompt: str = "") -> WorldClip:
    """A clip with silence and no motion."""
    num = len(video)
    return WorldClip(
        video=video,
        audio=torch.zeros(num * SAMPLES_PER_FRAME),
        text=prompt,
        motion=torch.zeros(num, len(MOTION_NAMES)),
        phonemes=torch.zeros(num, dtype=torch.long),
        transcript="",
        face_box=None,
        mouth_box=None,
        landmarks=None,
        valid=torch.ones(num, dtype=torch.bool),
        person_id=person,
        scene_id=0,
        sentence_id=0,
        seed=0,
    )


def case_of(person: int, video: Tensor, *, reference: Tensor | None = None, prompt="") -> Case:
    """A case that shows ``video`` everywhere, but for ``reference``."""
    target = clip_of(video, person=person, prompt=prompt)
    other = target if reference is None else clip_of(reference, person=person)
    return Case(CaseIds(person, 0, 0, 0, 0, 0), target, other, target)


def measured(command: str, name: str, *words: str) -> int:
    """`avatar-v-eval COMMAND NAME WORDS`, the module imported."""
    import importlib

    package = "studies" if command == "study" else command
    module = importlib.import_module(f"avatar_v_eval.{package}.{name}")
    return run_measurement(command, name, module, words)
