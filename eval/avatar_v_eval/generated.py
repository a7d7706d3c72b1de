"""The video of a case: generated from tensors, generated through files, or the truth itself.

`generate` gives the pipeline the frames and the motion of the renderer; `generate_from_files` gives
it an H.264 clip and a WAV, as a user of ``avatar-v generate`` does.
"""

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.faces.face_track import spread_frames
from avatar_v.inputs.inputs import Inputs, read_inputs
from avatar_v.inputs.reference_clip import ReferenceClip
from avatar_v.media.pixels import to_uint8
from avatar_v.media.sound import normalise_loudness
from avatar_v.models.reference import NUM_FACES
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.extractors import METER_HABITS, from_meter
from avatar_v.request.request import Request
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v.world.redrawn import close_ups
from avatar_v_eval.cases import Case, Video, prepared_sound, rendered_video, signed
from avatar_v_eval.files import write_png
from avatar_v_eval.rollout import Rollout

MOTIONS = ("truth", "meter", "target", "none")
"""Of the reference and the first frame: of the renderer, read from pixels, of the renderer for the
first frame alone, unknown."""


@dataclass(frozen=True)
class GeneratedClip:
    """A video of a case, and the motion that belongs to it."""

    video: Video
    motion: Float[Tensor, "f m"] | None = None
    """Of a true video its own motion, of a generated one the output of the motion stream."""


def through_vae(vae: VideoVAE, video: Video) -> Video:
    """A video encoded and decoded."""
    with torch.inference_mode():
        return to_uint8(vae.decode(vae.encode(signed(video)[None]))[0])


def generate(
    rollout: Rollout,
    case: Case,
    num_frames: int,
    motion: str = "truth",
    *,
    person: Case | None = None,
) -> GeneratedClip:
    """The speech of the case, after the first ``num_frames`` frames of its reference clip. First
    frame and reference are those of another case where ``person`` is given."""
    inputs = build_inputs(rollout, person or case, num_frames, motion)
    inputs = dataclasses.replace(inputs, audio=case.audio, num_frames=case.num_frames)
    made = list(rollout.pipeline.clips(inputs, rollout.request_for(case.person_id, case.prompt)))
    motions = [clip.motion for clip in made if clip.motion is not None]
    video = torch.cat([clip.frames for clip in made])
    return GeneratedClip(video, torch.cat(motions) if motions else None)


def build_inputs(rollout: Rollout, case: Case, num_frames: int, motion: str = "truth") -> Inputs:
    """The inputs of the pipeline; ``num_frames`` 0 leaves the reference clip out."""
    can, clips, first_motion = rollout.pipeline.card.can, (), None
    if can.reference and num_frames:
        clip = reference_clip(case, num_frames, motion if can.motion else "none")
        clips = (with_close_ups(clip, case) if can.faces else clip,)
    if can.motion and motion != "none":
        is_read = motion == "meter"
        first_motion = from_meter(case.image[None], None)[0] if is_read else case.motion[0]
    return Inputs(
        image=case.image,
        audio=case.audio,
        num_frames=case.num_frames,
        reference_frame=None,
        warnings=(),
        clips=clips,
        motion=first_motion,
    )


def reference_clip(case: Case, num_frames: int, motion: str = "truth") -> ReferenceClip:
    """The beginning of the reference, with its motion in one of the `MOTIONS`."""
    clip = case.reference
    assert clip.valid is not None
    video, track = rendered_video(clip)[:num_frames], None
    if motion == "truth":
        track = clip.motion[:num_frames]
    elif motion == "meter":
        track = from_meter(video, None)
    told = METER_HABITS if motion == "meter" else MOTION_NAMES
    sound = prepared_sound(clip)[: num_frames * SAMPLES_PER_FRAME]
    return ReferenceClip(video, clip.valid[:num_frames], sound, track, habits_known=told)


def with_close_ups(clip: ReferenceClip, case: Case) -> ReferenceClip:
    """A beginning of the reference of ``case`` with close-ups of the face, drawn anew."""
    frames = spread_frames(clip.valid, NUM_FACES)
    if len(frames) == 0:
        return clip
    ids, size = case.ids, (clip.video.shape[2], clip.video.shape[3])
    moment = case.reference.motion[frames]
    faces = close_ups(ids.person, ids.reference_scene, ids.reference_sentence, moment, size=size)
    return dataclasses.replace(clip, faces=faces)


def generate_from_files(rollout: Rollout, case: Case, num_frames: int) -> GeneratedClip:
    """The speech of the case, after ``num_frames`` frames of its reference clip; of one frame, the
    still that `generate` picks of the clip (``--reference-seconds 0``)."""
    from avatar_v.media import reading
    from avatar_v.media.writer import Mp4Writer

    with tempfile.TemporaryDirectory() as folder:
        request = _request(rollout, case, num_frames, Path(folder))
        inputs, out = (
            read_inputs(request, rollout.pipeline.input_spec(request)),
            Path(folder) / "out.mp4",
        )
        with Mp4Writer(out, case.audio) as writer:
            for frames in rollout.pipeline.stream(inputs, request):
                writer.write(frames)
        return GeneratedClip(reading.read_video(out))


def _request(rollout: Rollout, case: Case, num_frames: int, folder: Path) -> Request:
    """Writes the files of a request, and gives the request."""
    from avatar_v.media.writer import Mp4Writer, write_wav

    with Mp4Writer(folder / "reference.mp4", normalise_loudness(case.reference.audio)) as writer:
        writer.write(rendered_video(case.reference))
    write_wav(folder / "speech.wav", case.audio)
    request, image = rollout.request_for(case.person_id, case.prompt), None
    if not request.person.from_prompt:
        image = str(folder / "first.png")
        write_png(Path(image), case.image)
    return request.changed(
        reference=str(folder / "reference.mp4"),
        audio=str(folder / "speech.wav"),
        image=image,
        reference_s=0.0 if num_frames == 1 else num_frames / FRAME_RATE_HZ,
    )
