"""A request's words, speech and pictures beside the policy that it names."""

from avatar_v.engines.script import read_script
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.request.request import LIVE, Request
from avatar_v.safety.moderation import Moderator
from avatar_v.types import SAMPLES_PER_FRAME


def build_moderator(request: Request) -> Moderator | None:
    """What judges pictures by the policy of a request, whose words it allows; None where it has no
    policy. ValueError for models that do not load, and for a live sound where speech is to be read;
    RefusedError for words that are refused."""
    if request.output.policy is None:
        return None
    moderator, person = Moderator(request.output.policy), request.person
    if moderator.policy.speech is not None and person.audio == LIVE:
        raise ValueError(
            "--policy reads speech before it is spoken, and a live one cannot be: pass a file, or "
            "leave speech out of the policy"
        )
    texts = {
        "--prompt": person.prompt,
        "--scene": person.scene or "",
        "--script": "" if person.script is None else read_script(person.script),
    }
    moderator.check_texts(texts)
    return moderator


def check_inputs(
    moderator: Moderator, request: Request, inputs: Inputs, frame_rate_hz: int
) -> None:
    """RefusedError for the speech of a file, the picture that begins the video, and frames of the
    clips, one a second."""
    person = request.person
    if inputs.said is None and not isinstance(inputs.audio, LiveSound):
        rate_hz = frame_rate_hz * SAMPLES_PER_FRAME
        moderator.check_speech(str(person.audio), inputs.audio, rate_hz)
        whole = inputs.delivered  # the networks may take one channel, who listens hears all
        if whole is not None and (num := whole.form.num_channels) > 1:
            rate_hz = whole.form.sample_rate_hz
            moderator.check_speech(str(person.audio), whole.samples, rate_hz, num)
    moderator.check_pictures(person.image or person.reference, inputs.image[None])
    for path, clip in zip((person.reference, *person.also), inputs.clips, strict=False):
        moderator.check_pictures(path, clip.video[::frame_rate_hz])
