"""A request's words and pictures beside the policy that it names."""

from avatar_v.engines.script import read_script
from avatar_v.inputs.inputs import Inputs
from avatar_v.request.request import Request
from avatar_v.safety.moderation import Moderator
from avatar_v.types import FRAME_RATE_HZ


def build_moderator(request: Request) -> Moderator | None:
    """What judges pictures by the policy of a request, whose words it allows; None where it has no
    policy. ValueError for models that do not load, RefusedError for words that are refused."""
    if request.output.policy is None:
        return None
    moderator, person = Moderator(request.output.policy), request.person
    texts = {
        "--prompt": person.prompt,
        "--scene": person.scene or "",
        "--script": "" if person.script is None else read_script(person.script),
    }
    moderator.check_texts(texts)
    return moderator


def check_inputs(moderator: Moderator, request: Request, inputs: Inputs) -> None:
    """RefusedError for the picture that begins the video, and for frames of the clips, one a
    second."""
    person = request.person
    moderator.check_pictures(person.image or person.reference, inputs.image[None])
    for path, clip in zip((person.reference, *person.also), inputs.clips, strict=False):
        moderator.check_pictures(path, clip.video[::FRAME_RATE_HZ])
