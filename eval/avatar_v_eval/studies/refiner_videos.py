"""The videos of the study `refiner`: one case made small and large again in every way."""

import time
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.generate.generator import LatentChunk
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.refine import Refiner, refine_chunks
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.person import Person
from avatar_v.models.refiner import enlarge, reduce
from avatar_v.request.request import Request
from avatar_v_eval.cases import Case, heard, signed, video_of
from avatar_v_eval.generated import reference_clip

SignedVideo = Float[Tensor, "f 3 h w"]
Costs = dict[str, list[float]]
"""CPU seconds a frame of each step."""


@torch.inference_mode()
def reconstructed(case: Case, refiners: dict[str, Refiner], costs: Costs) -> dict[str, SignedVideo]:
    """The true clip made small and large again in every way; and CPU seconds a frame."""
    refiner, true = refiners["refined"], signed(case.video)
    vae, motion = refiner.conditioner.vae, refiner.conditioner.pack_motion(case.motion[None])
    latents = vae.encode(reduce(true[None]))
    small = _timed(costs, "decode", len(true), lambda: refiner.low_vae.decode(latents))
    large = enlarge(small)
    videos = {"bicubic": large[0], "bicubic_vae": vae.decode(vae.encode(large))[0]}
    for name, own in (*refiners.items(), ("no_reference", refiner)):
        audio = own.conditioner.encode_audio(heard(case.target)[None])
        person = Person(true[0], None if name == "no_reference" else _reference(case, own))
        part = LatentChunk(latents, case.audio, len(true), 0, audio, motion)

        def refine(own: Refiner = own, person: Person = person, part: LatentChunk = part) -> Tensor:
            bf16 = own.dit.patch_embed.weight.dtype == torch.bfloat16
            made = refine_chunks(own, person, case.prompt, iter([part]), seed=0, bf16=bf16)
            return torch.cat([piece.latents for piece in made], dim=1).float()

        z, decode = _timed(costs, name, len(true), refine), own.conditioner.vae.decode
        videos[name] = _timed(costs, "decode_large", len(true), lambda z=z, d=decode: d(z))[0]
        if name == "refined" and own.conditioner.vae.hash() != own.low_vae.hash():
            videos["low_decoder"] = own.low_vae.decode(z)[0]
    videos["vae"] = vae.decode(vae.encode(true[None]))[0]
    return videos


def generated(
    case: Case, pipeline: AvatarPipeline, refiners: dict[str, Refiner]
) -> dict[str, SignedVideo]:
    """The person of the reference, generated with the speech of the case, and its latents enlarged
    and refined."""
    clip, said = reference_clip(case, len(case.reference.motion)), case.audio
    assert clip.motion is not None
    inputs = Inputs(clip.video[0], said, len(said) // 640, 0, (), (clip,), clip.motion[0])
    request = Request.of(reference="", audio="", prompt=case.reference.text)
    frames = {}
    for name, refiner in {"bicubic": None, **refiners}.items():
        pipeline.refiner = refiner
        frames[name] = torch.cat(list(pipeline.stream(inputs, request)))
    small = signed(frames.pop("bicubic"))
    refined = {name: signed(large) for name, large in frames.items()}
    return {"bicubic": enlarge(small[None])[0], **refined}


def _reference(case: Case, refiner: Refiner):
    clip = case.reference
    assert clip.valid is not None
    video = signed(video_of(clip))
    return refiner.conditioner.encode_clip(video, clip.valid, heard(clip), clip.motion)


def _timed(costs: Costs, name: str, num_frames: int, work: Callable[[], Tensor]) -> Tensor:
    begin = time.process_time()
    made = work()
    costs.setdefault(name, []).append((time.process_time() - begin) / num_frames)
    return made
