"""Makes the body asset once, from the registry package ``anny`` (which no user needs).

    ANNY_CACHE_DIR=DIR python -m people3d.make_asset OUT.npz [PERSONS]

The asset holds head, neck and shoulders: neutral shapes of many sampled persons, the 52 ARKit
actions (offsets in metres, measured on the first persons), triangles with UV corners, what each
triangle is made of, and masks over the UV (lips, lids, inside of the mouth, ears).
Axes of the asset: x to the person's left, y backwards, z up; metres.
"""

import os
import sys
import time

import numpy as np
import torch

MATERIALS = (
    "skin", "eye", "teeth_upper", "teeth_lower", "tongue", "lash", "hair",
)  # fmt: skip
_GROUPS = {
    "body": 0,
    "helper-l-eye": 1,
    "helper-r-eye": 1,
    "helper-upper-teeth": 2,
    "helper-lower-teeth": 3,
    "helper-tongue": 4,
    "helper-l-eyelashes-1": 5,
    "helper-l-eyelashes-2": 5,
    "helper-r-eyelashes-1": 5,
    "helper-r-eyelashes-2": 5,
    "helper-hair": 6,
}
_FACE_PARTS = ("eye", "nose", "mouth", "chin", "ear", "head", "cheek", "forehead", "neck")
_BELOW_EYES_M = 0.30  # what lies lower is left out
_BATCH = 8


def main() -> None:
    """Write the asset."""
    import anny

    out, num = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 384
    torch.set_num_threads(1)
    start = time.time()
    model = anny.Anny(
        topology="makehuman-full",
        local_changes="default",
        facial_actions="all",
        phenotypes="all",
    ).float()
    print("loaded", time.time() - start, model.phenotype_labels, flush=True)
    labels = list(model.facial_action_labels)
    looks, changes = _sample(model, num)
    neutral = []
    for first in range(0, num, _BATCH):
        part = slice(first, min(num, first + _BATCH))
        neutral.append(_vertices(model, looks, changes, part, {}))
        if first % 64 == 0:
            print(first, time.time() - start, flush=True)
    neutral = np.concatenate(neutral)
    offsets = []
    for person in range(3):
        rows = []
        for label in labels:
            one = _vertices(
                model, looks, changes, slice(person, person + 1), {label: torch.ones(1)}
            )
            rows.append(one[0] - neutral[person])
        offsets.append(np.stack(rows))
    spread = [float(np.abs(o - offsets[0]).max()) for o in offsets]
    print("offsets differ between persons by at most (m)", spread)
    corners, material, uv = _mesh(os.path.dirname(anny.__file__))
    vertex, triangle, corner_uv, kind = _cut(neutral[0], corners, material)
    np.savez(
        out,
        neutral=neutral[:, vertex].astype(np.float32),
        actions=offsets[0][:, vertex].astype(np.float16),
        labels=np.array(labels),
        triangles=triangle.astype(np.int32),
        uv=uv[corner_uv].astype(np.float32),
        material=kind.astype(np.uint8),
        masks=_masks(os.path.dirname(anny.__file__)),
        looks=np.stack([looks[k].numpy() for k in looks], 1),
        look_names=np.array(list(looks)),
    )
    print(len(vertex), "vertices", len(triangle), "triangles", time.time() - start)


def _sample(model, num: int) -> tuple[dict, dict]:
    """Phenotypes and local changes of each person; those of left and right agree mostly."""
    g = torch.Generator().manual_seed(11)
    u = torch.rand(num, 8, generator=g)
    looks = {k: torch.full((num,), 0.5) for k in model.phenotype_labels}
    looks["gender"] = (torch.arange(num) % 2) * 0.8 + 0.02 + 0.16 * u[:, 0]
    looks["age"] = 0.63 + 0.36 * u[:, 1] ** 1.2
    looks["weight"] = 0.25 + 0.55 * u[:, 2]
    looks["muscle"] = 0.35 + 0.35 * u[:, 3]
    looks["proportions"] = 0.35 + 0.5 * u[:, 4]
    heritage = torch._sample_dirichlet(torch.full((num, 3), 0.5), generator=g)
    for i, name in enumerate(("african", "asian", "caucasian")):
        looks[name] = heritage[:, i]
    changes, shared = {}, {}
    for label in model.local_change_labels:
        key = label[2:] if label[:2] in ("l-", "r-") else label
        if not key.startswith(_FACE_PARTS):
            continue
        if key not in shared:
            shared[key] = 0.3 * torch.randn(num, generator=g).clamp(-2, 2)
        changes[label] = shared[key] + 0.04 * torch.randn(num, generator=g)
    return looks, changes


def _vertices(model, looks, changes, part: slice, actions: dict) -> np.ndarray:
    n = part.stop - part.start
    with torch.no_grad():
        out = model(
            pose_parameters=torch.eye(4).repeat(n, model.bone_count, 1, 1),
            phenotype_kwargs={k: v[part] for k, v in looks.items()},
            local_changes_kwargs={k: v[part] for k, v in changes.items()},
            facial_actions=actions,
        )
    return out["vertices"].numpy()


def _mesh(root: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Triangles "t 3 2" of vertex and UV indices, their material, and the UVs."""
    uv, corners, material, group = [], [], [], None
    with open(f"{root}/data/mpfb2/3dobjs/base.obj") as lines:
        for line in lines:
            word = line.split()
            if not word:
                continue
            if word[0] == "vt":
                uv.append([float(word[1]), float(word[2])])
            elif word[0] == "g":
                group = word[1]
            elif word[0] == "f" and group in _GROUPS:
                face = [tuple(int(x) - 1 for x in w.split("/")[:2]) for w in word[1:]]
                for k in range(1, len(face) - 1):
                    corners.append((face[0], face[k], face[k + 1]))
                    material.append(_GROUPS[group])
    return np.array(corners), np.array(material), np.array(uv, np.float32)


def _cut(neutral: np.ndarray, corners: np.ndarray, material: np.ndarray) -> tuple:
    """Only the triangles above the chest, with vertices numbered anew."""
    eyes = neutral[corners[material == 1][:, :, 0].reshape(-1)].mean(0)
    height = neutral[corners[:, :, 0], 2].min(1)
    keep = height > eyes[2] - _BELOW_EYES_M
    corners, material = corners[keep], material[keep]
    vertex, triangle = np.unique(corners[:, :, 0], return_inverse=True)
    return vertex, triangle.reshape(-1, 3), corners[:, :, 1], material


def _masks(root: str) -> np.ndarray:
    from PIL import Image

    names = ("lips", "eyelids", "inside-mouth", "ears", "face")
    planes = []
    for name in names:
        picture = Image.open(f"{root}/data/mpfb2/textures/mpfb_{name}.jpg").convert("L")
        picture = picture.resize((1024, 1024), Image.Resampling.BOX)
        planes.append(np.asarray(picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM)))
    return np.stack(planes)


if __name__ == "__main__":
    main()
