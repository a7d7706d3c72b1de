"""A drawn person to try the page with: a clip and other words in the same voice, from the world."""

from pathlib import Path

from avatar_v.media.outputs import build_output
from avatar_v.media.writer import Writer, write_wav
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import persons, scenes, sentences

CLIP_FRAMES = 101
SPEECH_FRAMES = 150
SIDE = 128  # the world draws at any size; this one is good to look at


def draw_person(folder: Path, number: int) -> tuple[Path, Path]:
    """Write clip.mp4 and speech.wav of the ``number``-th test person, from 0, into ``folder``."""
    (person,) = persons("test", 1, number)
    (scene,) = scenes("test", 1, number)
    said, to_say = sentences("test", 2, 2 * number)
    seen = make_clip(person, scene, said, num_frames=CLIP_FRAMES, size=SIDE)
    heard = make_clip(
        person, scene, to_say, num_frames=SPEECH_FRAMES, size=SIDE, render_video=False
    )
    assert seen.video is not None
    folder.mkdir(parents=True, exist_ok=True)
    clip, speech = folder / "clip.mp4", folder / "speech.wav"
    with Writer(build_output(str(clip))) as writer:
        writer.write(seen.video, seen.audio)
    write_wav(speech, heard.audio)
    return clip, speech
