"""The asset in memory: shapes, actions, where eyes, lips and neck are; motion to actions.

Axes: x to the person's left (the picture's right), y backwards, z up; metres.
"""

import os
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.types import MOTION_NAMES

ASSET = os.environ.get("PEOPLE3D_ASSET", "/work/n/people/asset.npz")
SKIN, EYE, TEETH_UPPER, TEETH_LOWER, TONGUE, LASH, CURTAIN = range(7)
SIDE = 768
"""Of maps over the UV, in texels."""
WIDEST = 0.42
"""The opening between inner lips at mouth_open 1, in interocular distances."""
_TEETH_DOWN = 0.003  # metres: the upper teeth end behind the lip otherwise, and never show
_LARGER = 0.13  # of the eyes: at 128 px they are hard to read otherwise
_WIDER = 0.12  # of the mouth, for the same reason
_AT_REST = 0.28  # of a smile, so that corners lie level
_APART = 0.35  # of the difference between men and women, added to it
_VARIETY = 0.85  # of the sampled shapes, some of which are too odd


@dataclass(frozen=True)
class Body:
    """Of all persons."""

    neutral: Tensor  # "p v 3"
    actions: Tensor  # "52 v 3"
    labels: tuple[str, ...]
    triangles: Tensor  # "t 3"
    uv: Tensor  # "t 3 2"
    material: Tensor  # "t"
    masks: Tensor  # "5 SIDE SIDE": lips, lids, inside of the mouth, ears, face
    looks: Tensor  # "p k"
    look_names: tuple[str, ...]
    lip_upper: int  # vertices of the inner lips in the middle
    lip_lower: int

    def vertices_of(self, *materials: int) -> Tensor:
        """Vertices of triangles of these materials."""
        chosen = torch.isin(self.material, torch.tensor(materials))
        return self.triangles[chosen].unique()


@dataclass(frozen=True)
class Frame:
    """A person's measures at rest."""

    eye_left: Tensor  # "3", centre of the ball at the picture's left
    eye_right: Tensor
    eye_radius: float
    middle: Tensor  # "3", between the eyes
    interocular: float
    crown: float  # height
    chin: float
    chin_front: float  # y of the chin
    pivot: Tensor  # "3", about which the head turns


@cache
def load_body() -> Body:
    """The asset, read once."""
    d = np.load(ASSET)
    labels = tuple(str(x) for x in d["labels"])
    triangles, material = torch.from_numpy(d["triangles"]).long(), torch.from_numpy(d["material"])
    neutral = torch.from_numpy(d["neutral"]).float()
    neutral = neutral.mean(0) + _VARIETY * (neutral - neutral.mean(0))
    neutral[:, triangles[material == TEETH_UPPER].unique(), 2] -= _TEETH_DOWN
    apart = neutral[1::2].mean(0) - neutral[0::2].mean(0)  # even ones are men
    neutral[1::2] += 0.5 * _APART * apart
    neutral[0::2] -= 0.5 * _APART * apart
    neutral = _larger_eyes(neutral, triangles[material == EYE].unique())
    actions = torch.from_numpy(d["actions"]).float()
    uv = torch.from_numpy(d["uv"])
    masks = torch.from_numpy(d["masks"]).float()[None] / 255
    masks = F.interpolate(masks, (SIDE, SIDE), mode="area")[0]
    upper, lower = _lip_vertices(neutral.mean(0), actions, labels, triangles, material)
    off = neutral - neutral[:, upper][:, None]
    near = torch.exp(-((off.norm(dim=2) / 0.036) ** 4))
    neutral = neutral + _WIDER * near[..., None] * off
    return Body(
        neutral=neutral,
        actions=actions,
        labels=labels,
        triangles=triangles,
        uv=uv,
        material=material.long(),
        masks=masks,
        looks=torch.from_numpy(d["looks"]).float(),
        look_names=tuple(str(x) for x in d["look_names"]),
        lip_upper=upper,
        lip_lower=lower,
    )


def _larger_eyes(neutral: Tensor, eye: Tensor) -> Tensor:
    """Eyes and lids scaled about the balls' centres, fading out over the sockets."""
    for sign in (-1, 1):
        ball = neutral[:, eye[neutral[0, eye, 0] * sign > 0]]
        center = (ball.amin(1) + ball.amax(1))[:, None] / 2
        off = neutral - center
        near = torch.exp(-((off.norm(dim=2) / 0.021) ** 4))
        neutral = neutral + _LARGER * near[..., None] * off
    return neutral


def _lip_vertices(
    mean: Tensor, actions: Tensor, labels: tuple[str, ...], triangles: Tensor, material: Tensor
) -> tuple[int, int]:
    """In the middle, where the lips touch: the pair that is close at rest and parts the most."""
    skin = triangles[material == SKIN].unique()
    jaw = actions[labels.index("jawOpen")]
    middle = skin[mean[skin, 0].abs() < 0.002]
    down = -jaw[middle, 2]
    moves, stays = middle[down > 0.6 * down.max()], middle[down < 0.15 * down.max()]
    apart = torch.cdist(mean[moves], mean[stays])
    close = apart < apart.min() + 0.0015
    front = mean[moves, 1][:, None] + mean[stays, 1][None] + (~close) * 9.0
    at = int(front.argmin())
    return int(stays[at % len(stays)]), int(moves[at // len(stays)])


def measure(body: Body, shape: int) -> Frame:
    """Of one person at rest."""
    v = body.neutral[shape]
    eyes = v[body.vertices_of(EYE)]
    left, right = (eyes[eyes[:, 0] < 0], eyes[eyes[:, 0] > 0])
    centres = [(e.amin(0) + e.amax(0)) / 2 for e in (left, right)]
    radius = float((left[:, 0].max() - left[:, 0].min()) / 2)
    middle = (centres[0] + centres[1]) / 2
    skin = v[body.vertices_of(SKIN)]
    column = skin[(skin[:, 0].abs() < 0.012) & (skin[:, 1] < middle[1] + 0.02)]
    below = column[(column[:, 2] < middle[2] - 0.085) & (column[:, 2] > middle[2] - 0.15)]
    front = below[:, 1].min()
    chin = below[below[:, 1] < front + 0.012, 2].min()
    return Frame(
        eye_left=centres[0],
        eye_right=centres[1],
        eye_radius=radius,
        middle=middle,
        interocular=float((centres[1] - centres[0]).norm()),
        crown=float(skin[:, 2].max()),
        chin=float(chin),
        chin_front=float(front),
        pivot=middle + torch.tensor([0.0, 0.085, -0.10]),
    )


def act(body: Body, motion: Tensor, interocular: float) -> tuple[Tensor, Tensor]:
    """Amounts of actions "f 52" and the opening of the lips "f" in interocular distances.

    The opening wanted is ``WIDEST`` times mouth_open: what the other actions leave of it is given
    by the jaw, or taken back by mouthClose, so that lips that should touch do.
    """
    m = dict(zip(MOTION_NAMES, motion.float().unbind(1), strict=True))
    f = motion.shape[0]
    out = {name: torch.zeros(f) for name in body.labels}
    opening = m["mouth_open"].clamp(0, 1)
    wide, narrow = m["mouth_width"].clamp(0, 1), (-m["mouth_width"]).clamp(0, 1)
    pursed = m["mouth_round"].clamp(0, 1)
    free = (opening / 0.08).clamp(0, 1)
    out["mouthPucker"] = 0.45 * pursed + 0.25 * narrow
    out["mouthFunnel"] = 0.45 * pursed * free
    out["mouthStretchLeft"] = out["mouthStretchRight"] = 0.35 * wide
    smile, skew = m["corner_raise"].clamp(-1, 1), m["corner_asymmetry"].clamp(-1, 1)
    for side, sign in (("Left", 1.0), ("Right", -1.0)):  # of the person; the picture's is mirrored
        amount = (smile - 0.5 * sign * skew).clamp(-1, 1)
        out[f"mouthSmile{side}"] = _AT_REST + 0.65 * amount.clamp_min(0) + 0.18 * wide
        out[f"mouthFrown{side}"] = 0.5 * (-amount).clamp_min(0)
        out[f"cheekSquint{side}"] = 0.45 * amount.clamp_min(0)
        out[f"eyeSquint{side}"] = 0.30 * amount.clamp_min(0)
        shut = (1 - m["eye_open"].clamp(0, 1)) ** 1.3
        out[f"eyeBlink{side}"] = shut
        out[f"eyeWide{side}"] = 0.45 * (1 - shut)
        out[f"browOuterUp{side}"] = 0.6 * m["brow"].clamp_min(0)
        out[f"browDown{side}"] = 0.7 * (-m["brow"]).clamp_min(0)
        down, up = (m["gaze_y"]).clamp_min(0), (-m["gaze_y"]).clamp_min(0)
        out[f"eyeLookDown{side}"], out[f"eyeLookUp{side}"] = 0.6 * down, 0.6 * up
        out[f"mouthUpperUp{side}"] = (0.45 * m["teeth"].clamp(0, 1) + 0.35 * opening) * free
        out[f"mouthLowerDown{side}"] = 0.30 * m["teeth"].clamp(0, 1) * free
    out["tongueOut"] = 0.30 * m["tongue"].clamp(0, 1) * free
    out["browInnerUp"] = 0.5 * m["brow"].clamp_min(0)
    change = body.actions[:, body.lip_lower, 2] - body.actions[:, body.lip_upper, 2]
    gap = dict(zip(body.labels, (-change / interocular).tolist(), strict=True))
    so_far = sum(out[name] * gap[name] for name in body.labels)
    wanted = WIDEST * opening
    least = 0.05 * m["jaw"].clamp(0, 1)
    out["jawOpen"] = torch.maximum((wanted - so_far) / gap["jawOpen"], least).clamp(0, 0.95)
    over = so_far + out["jawOpen"] * gap["jawOpen"] - wanted
    out["mouthClose"] = (over / -gap["mouthClose"]).clamp(0, 0.6)
    truth = so_far + out["jawOpen"] * gap["jawOpen"] + out["mouthClose"] * gap["mouthClose"]
    return torch.stack([out[name] for name in body.labels], 1), truth.clamp_min(0)
