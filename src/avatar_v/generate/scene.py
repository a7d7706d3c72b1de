"""The first picture of a person in a scene that words describe: the best of several candidates.

The video model makes each candidate as it makes the first frame of ``--from-prompt``: from the
words and the reference, with silence for a sound. engines/scene.py orders them. The best one begins
the video like a picture of ``--image``.
"""

import collections
import dataclasses
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from avatar_v.base.paths import whole_file
from avatar_v.base.seeds import derive
from avatar_v.engines.scene import (
    Likeness,
    Pictures,
    SceneCandidate,
    drawn_likeness,
    filmed_likeness,
    ranked,
)
from avatar_v.faces.face import FaceCritic
from avatar_v.generate.loaded import LoadedPipeline
from avatar_v.generate.stored_pipeline import StoredPipeline
from avatar_v.inputs.inputs import Inputs, read_inputs, with_first_picture
from avatar_v.inputs.live import LiveSound
from avatar_v.request.checks import check_request
from avatar_v.request.request import Request, Weights
from avatar_v.request.resolve import resolve_chunk_latents, resolved
from avatar_v.types import SAMPLES_PER_FRAME, num_frames
from avatar_v.weights.card import DRAWN_PEOPLE, Card
from avatar_v.weights.weights import check_parts


@dataclass(frozen=True)
class RankedScenes:
    """The candidates, the best first, and their pictures."""

    candidates: tuple[SceneCandidate, ...]
    pictures: Pictures


def check_scene(inputs: Inputs, card: Card) -> None:
    """ValueError where nothing can tell whether a picture shows the person."""
    drawn = card.can.people == DRAWN_PEOPLE
    if inputs.clips and not drawn and inputs.clips[0].who is None:
        raise ValueError(
            "--scene: filmed people are compared by the faces that are followed in the reference, "
            "and none was; leave --no-face-crop out, or pass --from-prompt"
        )


class SceneMaker:
    """The candidates of requests whose sound is not read (``audio`` LIVE), by weights that the
    first of them loads."""

    def __init__(self, weights: Weights) -> None:
        self.source = StoredPipeline(weights)

    def __call__(self, request: Request) -> RankedScenes:
        """ValueError for bad input, before the weights are loaded."""
        source = self.source
        check_request(request)
        check_parts(source.folder, prompt=request.person.scene or "")
        inputs = read_inputs(request, source.input_spec(request), LiveSound(()))
        check_scene(inputs, source.card)
        request = resolved(request, source.card, has_clips=bool(inputs.clips))
        return make_scene(self._pipeline, inputs, request)

    @cached_property
    def _pipeline(self) -> LoadedPipeline:
        return self.source.load()

    def close(self) -> None:
        if "_pipeline" in vars(self):
            self._pipeline.close()


def make_scene(pipeline: LoadedPipeline, inputs: Inputs, request: Request) -> RankedScenes:
    """``request.person.num_candidates`` first pictures in the scene of the request, ordered: of
    each the first frame of a chunk, as the weights know chunks."""
    person, seed = request.person, request.sampling.seed
    length = num_frames(resolve_chunk_latents(request, pipeline.card))
    silence = torch.zeros(length * SAMPLES_PER_FRAME)
    silent = dataclasses.replace(inputs, audio=silence, num_frames=length)
    seeds = [derive("scene", seed, i) for i in range(person.num_candidates)]
    pictures = []
    for own in seeds:
        asked = request.changed(prompt=person.scene, seed=own, from_prompt=True)
        with closing(pipeline.clips(silent, asked)) as clips:
            pictures.append(next(clips).frames[0])
            if pipeline.ranks is not None:  # others decode the rest, too; one process leaves it out
                collections.deque(clips, maxlen=0)
    stacked = torch.stack(pictures)
    order, values = ranked(stacked, _likeness(inputs, pipeline.card))
    candidates = [SceneCandidate(seeds[i], round(float(values[i]), 4)) for i in order]
    return RankedScenes(tuple(candidates), stacked[order])


def stage_scene(
    pipeline: LoadedPipeline, inputs: Inputs, request: Request
) -> tuple[Inputs, Request, RankedScenes]:
    """Inputs that begin with the best picture of `make_scene`, and the request with the scene's
    words as the prompt where it has none."""
    scene = make_scene(pipeline, inputs, request)
    prompt = request.person.prompt or request.person.scene
    first = with_first_picture(
        inputs, scene.pictures[0], request.person, pipeline.input_spec(request)
    )
    return first, request.changed(prompt=prompt), scene


def side_by_side(pictures: UInt8[Tensor, "n 3 h _w"]) -> UInt8[Tensor, "3 h _all"]:
    """One picture of all, the first on the left."""
    return torch.cat(list(pictures), dim=2)


def save_picture(path: Path, picture: UInt8[Tensor, "3 h w"]) -> None:
    """Write a PNG, whole or not at all."""
    with whole_file(path) as partial:
        Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(partial, "PNG")


def _likeness(inputs: Inputs, card: Card) -> Likeness:
    clip = inputs.clips[0]
    if card.can.people == DRAWN_PEOPLE:
        return drawn_likeness(clip.video[clip.valid], FaceCritic.from_pretrained())
    assert clip.who is not None, "check_scene refuses such inputs"
    return filmed_likeness(clip.who)
