"""Whether looks at a clip, one vector of a face each, show one person."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

LOOK_EVERY = 12
"""Frames between two looks at who it is: about two a second."""


@dataclass(frozen=True)
class FirstPerson:
    """Whom the first look shows."""

    face: Float[Tensor, " d"]  # the mean of their looks
    num: int  # of their looks
    other: int | None  # the look from which on somebody else is there; None: nobody is


def first_person(faces: Float[Tensor, "n d"], limit: float, in_a_row: int = 2) -> FirstPerson:
    """The first person of a clip, until somebody else comes. Vectors of one person are at most
    ``limit`` apart, as a rule.

    A single odd look is a turned, blurred or covered face; ``in_a_row`` of them are a person.
    """
    seen, num_odd = [faces[0]], 0
    for index in range(1, len(faces)):
        mean = torch.stack(seen).mean(0)
        if float((faces[index] - mean).norm()) <= limit:
            seen.append(faces[index])
            num_odd = 0
            continue
        num_odd += 1
        if num_odd == in_a_row:
            return FirstPerson(mean, len(seen), index - in_a_row + 1)
    return FirstPerson(torch.stack(seen).mean(0), len(seen), None)


def first_frame_of_other(
    who: FirstPerson,
    looks: list[int],
    faces: Float[Tensor, "n d"],
    look: Callable[[int], Float[Tensor, " d"] | None],
) -> int:
    """The first frame that shows somebody else than the clip's first person, who was found by
    ``faces`` at the frames ``looks``.

    Halves the frames between two looks, with ``look`` at one (None where it shows no face), so the
    two persons are told apart by whose face is nearer.
    """
    assert who.other is not None
    last, first = looks[who.other - 1], looks[who.other]
    other = faces[who.other]
    while first - last > 1:
        middle = (last + first) // 2
        face = look(middle)
        if face is None or (face - who.face).norm() <= (face - other).norm():
            last = middle
        else:
            first = middle
    return first
