"""Pipelines made of others: a mean of several, and one with the decoder of another VAE.

The mean is of weights of one ancestor (model soups: arXiv 2203.05482).
What a later stage gains and what it forgets lie apart in weight space: the mean of a model before
and after further training often keeps the gain and regains what was lost.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from avatar_v.base.states import common_dtype
from avatar_v.models.base import hash_folder, part_folder
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import stats_path
from avatar_v.weights.card import read_card
from avatar_v.weights.weights import (
    BACKBONE,
    MOTION,
    has_motion_net,
    load_pipeline,
    own_state,
    read_dit_state,
    read_json,
    read_state,
    save_pipeline,
)

AVERAGED = ("dit", "text", "audio", MOTION)


def average_pipelines(
    folders: Sequence[str | Path], out: str | Path, *, dtype: torch.dtype = torch.float32
) -> None:
    """Write the mean of the DiTs, encoders and motion networks to ``out``; VAE and card are those
    of the last. Frozen backbones of encoders are the same in all.

    ValueError for fewer than two folders, networks of other shapes, a part or tensor that one of
    them lacks, other motion statistics, another VAE or backbone, or an ``out`` that exists.
    """
    if len(folders) < 2:
        raise ValueError(f"a mean needs two folders of weights or more, got {len(folders)}")
    paths = [Path(folder) for folder in folders]
    card = read_card(paths[-1])
    for path in paths[:-1]:
        read_card(path, preset=card.preset)
        _check_alike(path, paths[-1])
    dit, conditioner = load_pipeline(paths[-1])
    modules = {
        "dit": dit, "text": conditioner.text_encoder, "audio": conditioner.audio_encoder,
        MOTION: conditioner.motion_net,
    }  # fmt: skip
    for part, module in modules.items():
        if module is None or not own_state(module):
            continue
        read = read_dit_state if part == "dit" else read_state
        mean = _mean([read(path / part) for path in paths])
        module.load_state_dict({**module.state_dict(), **mean})
    names = json.dumps([str(path) for path in paths])
    save_pipeline(
        out, dit, conditioner, dataclasses.replace(card, recipe=f"mean of {names}"), dtype=dtype
    )


def replace_decoder(folder: str | Path, vae: str | Path, out: str | Path) -> None:
    """Write the pipeline of ``folder`` to ``out``, in the precision of its DiT, with the decoder of
    the VAE in ``vae``.

    ValueError if their encoders differ, so that one cannot decode what the other encodes, or for
    an ``out`` that exists.
    """
    card = read_card(folder)
    dit, conditioner = load_pipeline(folder, vae=vae)
    before = VideoVAE.from_pretrained(Path(folder) / "vae")
    if conditioner.vae.encoder_hash() != before.encoder_hash():
        raise ValueError(f"{vae} has another encoder than {folder}: latents do not agree")
    dtype = common_dtype(read_state(Path(folder) / "dit"))
    save_pipeline(out, dit, conditioner, card, dtype=dtype)


def _check_alike(path: Path, other: Path) -> None:
    """ValueError for pipelines that have no mean."""
    has_motion = has_motion_net(path)
    if has_motion != has_motion_net(other):
        one, without = (path, other) if has_motion else (other, path)
        raise ValueError(f"{one} has a motion network and {without} has none")
    for part in (*AVERAGED, "vae"):
        if part == MOTION and not has_motion:
            continue
        places = [part_folder(each / part) for each in (path, other)]
        configs = [read_json(place / "config.json") for place in places]
        if configs[0] != configs[1]:
            raise ValueError(f"{path} and {other} differ in {part}/config.json")
        if len({hash_folder(place / BACKBONE) for place in places}) > 1:
            raise ValueError(f"{path} and {other} differ in {part}/{BACKBONE}, which is frozen")
    if not _same_stats(path, other):
        raise ValueError(f"{path} and {other} have different motion statistics")
    if not _same(read_state(path / "vae"), read_state(other / "vae")):
        raise ValueError(f"{path} and {other} have different VAEs: latents do not agree")


def _mean(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Key → mean over the states, in fp32. ValueError for a key that some lack."""
    mean = {}
    for key in dict.fromkeys(key for state in states for key in state):
        found = [state[key].float() for state in states if key in state]
        if len(found) < len(states):
            raise ValueError(f"{key} is in {len(found)} of {len(states)} folders")
        mean[key] = torch.stack(found).mean(0)
    return mean


def _same_stats(*folders: Path) -> bool:
    files = [stats_path(folder) for folder in folders]
    one, other = (file.read_bytes() if file.is_file() else None for file in files)
    return one == other


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
