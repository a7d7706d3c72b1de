"""`avatar-v generate`: a reference clip and speech in, a video of that person speaking out.

The options are the fields of a request (request/request.py).
"""

import argparse
import dataclasses
import time

from avatar_v.base.interrupts import first_interrupt
from avatar_v.base.options import add_help_all, add_options, parsed
from avatar_v.base.words import counted, notice
from avatar_v.media.kinds import STDOUT
from avatar_v.request.request import (
    OutputOptions,
    PersonOptions,
    Request,
    SamplingOptions,
    Weights,
)
from avatar_v.weights.card import AdapterSpec, read_card, weights_folder


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `generate`."""
    parser = subparsers.add_parser(
        "generate",
        help="a reference video and speech in, a speaking avatar out",
        description="Writes OUT (H.264 + AAC, as long as the audio) and its .json. OUT is "
        "an .mp4 file, an .m3u8 playlist that plays while it grows (HLS), rtmp://server/app/key, "
        "or - for a fragmented mp4 on stdout. --help-all shows the options that few need.",
        allow_abbrev=False,
    )
    left_out = {
        **add_options(parser, PersonOptions, "person and speech"),
        **add_options(parser, OutputOptions, "video"),
        **add_options(parser, SamplingOptions, "sampling"),
        **add_options(parser, Weights, "weights"),
    }
    add_help_all(parser, left_out)


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    started = time.perf_counter()
    from avatar_v.request.checks import check_request

    weights = parsed(args, Weights)
    from avatar_v.engines.script import read_words

    person = parsed(args, PersonOptions)
    scene = None if person.scene is None else read_words(person.scene)
    person = dataclasses.replace(person, prompt=read_words(person.prompt), scene=scene)
    request = Request(person, parsed(args, SamplingOptions), parsed(args, OutputOptions))
    if request.output.watermark is None:
        request = request.changed(watermark=True)
    check_request(request)
    for name in (weights.name, weights.refiner):
        if name is not None:
            read_card(weights_folder(name))
    for word in weights.lora:
        AdapterSpec.of(word)
    from avatar_v.generate.launching import follow_launched, launched_as

    if launched_as()[0] > 0:
        from avatar_v.generate.stored_pipeline import follow

        follow_launched(weights, follow)
        return 0
    from avatar_v.generate.progress import FrameProgress
    from avatar_v.generate.run import run as run_request
    from avatar_v.inputs.live import LiveSound

    with FrameProgress() as progress:
        making = run_request(
            request,
            weights,
            on_warnings=progress.warn,
            on_kept=progress.kept,
            started=started,
        )
        progress.ready(making.inputs)
        sound = making.inputs.audio
        if making.enhanced is not None:
            for name, text in making.enhanced.texts.items():
                progress.say(f"--{name}, rewritten: {text}")
        if making.delay is not None:
            progress.say(making.delay.described())

        def ends_sound() -> bool:
            if not (isinstance(sound, LiveSound) and sound.end("interrupted")):
                return False
            progress.say("the speech ends here and its video is finished; Ctrl-C again breaks off")
            return True

        with first_interrupt(ends_sound):
            record = making.finish(progress.frames)
    timing = record.timing
    for warning in record.warnings[len(progress.warnings) :]:
        notice(f"warning: {warning}")
    if (behind_s := record.fell_behind_s) > 1:
        notice(
            f"warning: the video fell {behind_s:.1f} s behind the voice; to follow one live, "
            f"{record.video.frame_rate_hz} frames a second have to be made"
        )
    if record.compile:
        from avatar_v.parallel.compiling import compiled_s

        notice(f"compiling took {compiled_s():.1f} s of it")
    say = notice if request.output.out == STDOUT else print
    say(
        f"{request.output.out}: {counted(record.num_frames, 'frame')} "
        f"({record.length_s:.1f} s) in {timing.total_s:.1f} s, "
        f"{timing.frames_per_s:.1f} frames/s, first frame after {timing.first_frame_s:.1f} s; "
        f"{timing.wall_s:.1f} s in all, of them "
        f"{timing.read_s:.1f} s reading files and {timing.load_s:.1f} s loading weights"
    )
    return 0
