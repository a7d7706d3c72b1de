"""What is asked of one clip: lines of the two scales, kinds of faults, attributes to choose.

A study file may replace each list but the axes. Who is asked, and about what, is in `study`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

KEY = re.compile(r"[a-z0-9][a-z0-9_]{0,39}")
"""Of a line, a fault or a value: it stands in votes and in HTML."""
MAX_CHOICES = 9
"""Faults or values: each has a digit on the keyboard."""


@dataclass(frozen=True)
class Dimension:
    """One line of a scale. ``key`` goes to files, ``title`` and ``hint`` to raters."""

    key: str
    title: str
    hint: str


@dataclass(frozen=True)
class Fault(Dimension):
    """A kind of fault that is marked by the time it lasts."""


@dataclass(frozen=True)
class Attribute(Dimension):
    """A line with a choice of ``values``."""

    values: tuple[str, ...]


SIX_DIMENSIONS = (
    Dimension("identity", "Identity", "The same person as in the reference clip"),
    Dimension("lip_sync", "Lip sync", "The mouth fits the words, in shape and in time"),
    Dimension("motion_naturalness", "Natural motion", "Head, face and body move as people do"),
    Dimension("motion_consistency", "Own motion", "Moves like this person does in the reference"),
    Dimension("artifacts", "Clean picture", "No flicker, melting teeth, warped hands or edges"),
    Dimension("visual", "Visual quality", "Sharp, well lit, pleasant to look at"),
)
"""The six dimensions of Avatar V §7.3.1 (table 2), in its order."""

AXES = (
    Dimension("naturalness", "Naturalness", "Face, head and body move as a living person's do"),
    Dimension("synchronization", "Synchronization", "Lips, face and gestures go with the speech"),
    Dimension("consistency", "Consistency", "The person of the reference clip, and stays so"),
)
"""The axes from 0 to 100 of Live Avatar's user study (arXiv 2512.04677), in its order; the words
are ours."""

FAULTS = (
    Fault("identity_drift", "Identity drifts", "The face becomes another person's"),
    Fault("teeth", "Teeth", "They melt, multiply or change their shape"),
    Fault("occlusion", "Occlusion", "A hand or thing before the face tears or smears"),
    Fault("blink", "Blink", "One eye only, or a lid that stops half way"),
    Fault("lip_sync", "Lip sync", "The mouth does not fit the sound"),
    Fault("hands", "Hands", "Fingers too many, too few, or bent wrongly"),
    Fault("flicker", "Flicker", "Light, texture or edges jump"),
    Fault("other", "Other", "Anything else that spoils the clip"),
)
"""The artifacts of Avatar V §5.3 that filters miss, and those that raters meet beside them."""

ATTRIBUTES = (
    Attribute("gaze", "Gaze", "Where the eyes look most of the time",
              ("camera", "left", "right", "up", "down", "wandering")),
    Attribute("emotion", "Emotion", "What face and voice show",
              ("neutral", "happy", "sad", "angry", "surprised", "afraid", "disgusted")),
    Attribute("gesture", "Gesture", "What the hands do most",
              ("none", "beat", "pointing", "showing", "counting", "touching_self")),
    Attribute("style", "Speaking style", "How the person talks",
              ("conversation", "presentation", "reading", "storytelling", "excited")),
)  # fmt: skip
"""The four attributes of Avatar V §5.3; the values are ours."""


def chosen(expected: str) -> Mapping[str, str]:
    """The attributes of a known answer, "emotion=happy gaze=camera"; ValueError for other text."""
    pairs = [part.partition("=") for part in expected.split()]
    if not pairs or not all(key and value for key, _, value in pairs):
        raise ValueError(f"expected ATTRIBUTE=VALUE, got {expected!r}")
    return {key: value for key, _, value in pairs}


def check_lists(
    dimensions: tuple[Dimension, ...],
    faults: tuple[Fault, ...],
    attributes: tuple[Attribute, ...],
) -> None:
    """ValueError for an empty list, a name that is there twice or is none, too many choices."""
    lines = [line.key for line in (*dimensions, *attributes)]
    lists = {"dimension or attribute": lines, "fault": [fault.key for fault in faults]}
    lists |= {f"value of {one.key}": list(one.values) for one in attributes}
    for what, names in lists.items():
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{what} named twice: {twins}")
        if odd := [name for name in names if not KEY.fullmatch(name)]:
            raise ValueError(f"a {what} has a name of a-z, 0-9 and _, got {odd[0]!r:.60}")
        if not names or (what != "dimension or attribute" and len(names) > MAX_CHOICES):
            raise ValueError(f"a {what}: expected 1 to {MAX_CHOICES}, got {len(names)}")
