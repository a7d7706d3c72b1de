"""Where the person is in a clip: a face that is followed, or the picture as it is.

One way for all people. Weights of drawn people differ in one thing: they know pictures that are
framed on the head, and dlib misses a drawn face now and then, so a picture of their own aspect is
taken whole for them unless a face is found elsewhere in it.
"""

import warnings
from pathlib import Path

from avatar_v.faces import face_track
from avatar_v.faces.face_track import DETECT_EVERY, INSTALL_FACES, TAKE_CENTRE, FaceTrack, Frames
from avatar_v.motion.extractors import Extractor, needs_track

DRAWN_OFF = 0.3
"""As `face_track.FRAMED_OFF`: in one picture of 64 pixels a drawn face is found up to 0.2 off."""
NOT_LOOKED_FOR = (
    "faces were not looked for, and pictures of the weights' aspect are taken whole: "
    f"{INSTALL_FACES} finds them"
)


def find_person(
    path: str | Path,
    frames: Frames,
    *,
    drawn: bool,
    extractor: Extractor | None,
    looked: str,
    aspect: float = 1.0,
    detect_every: int = DETECT_EVERY,
) -> tuple[FaceTrack | None, tuple[str, ...]]:
    """Follows the largest face in the frames of ``path``. Gives its track and warnings; no track
    means that the pictures have the ``aspect`` of the weights' and shall be taken whole.

    Args:
        drawn: for weights of drawn people.
        extractor: what will read the motion; some need a track.
        looked: which frames these are, in words for an error.

    ValueError: no face, or the [faces] extra is missing.
    """
    height, width = frames.shape[2:]
    may_be_whole = face_track.has_aspect(height, width, aspect) and not needs_track(extractor)
    if may_be_whole and not face_track.is_available():
        return None, (NOT_LOOKED_FOR,)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            track = face_track.track_faces(frames, detect_every=detect_every)
        except ImportError as error:
            raise ValueError(str(error)) from error
    found = bool(track.found.any())
    if drawn and may_be_whole and not found:
        return None, (f"{path}: no face is found in it, so the picture is taken whole",)
    if drawn and may_be_whole and face_track.is_framed(track, height, width, DRAWN_OFF, aspect):
        return None, ()
    if not found:
        raise ValueError(face_track.why_no_face(path, f"{looked}; {TAKE_CENTRE}"))
    return track, tuple(f"{path}: {warning.message}" for warning in caught)
