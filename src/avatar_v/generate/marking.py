"""What a generated video says of itself: the id in its frames, and the manifest in its mp4.

The id is a hash of all that the frames depend on: settings, seed, contents of the files, weights
and versions. So the same command gives the same video, with the same id, and another one another
id. A live sound cannot be had again; its id is drawn at random.
"""

import secrets

from avatar_v.generate.resume import asked_for
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.request.record import Record
from avatar_v.request.request import Request
from avatar_v.safety.key import own_key
from avatar_v.safety.provenance import Origin, sign
from avatar_v.safety.watermark import NUM_BYTES, Mark, id_of


def build_mark(request: Request, inputs: Inputs, **made_with: str) -> Mark:
    """The mark of the request's video. ``made_with`` is what the frames depend on besides the
    request. ValueError for a key that is none."""
    if isinstance(inputs.audio, LiveSound):
        return Mark(secrets.token_hex(NUM_BYTES), own_key())
    return Mark(id_of({**asked_for(request, inputs), **made_with}), own_key())


def sign_video(record: Record) -> None:
    """Sign the video of a record, where its request asks for it. OSError where that fails."""
    output = record.request.output
    if output.sign is None:
        return
    assert output.out is not None
    assert output.sign_key is not None
    origin = Origin(
        weights=record.weights,
        weights_hash=record.weights_hash,
        seed=record.request.sampling.seed,
        watermark=record.watermark,
    )
    sign(output.out, output.sign, output.sign_key, origin)
