"""`avatar-v generate`: a reference clip and speech in, a video of that person speaking out."""

import argparse
import sys


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `generate`."""
    parser = subparsers.add_parser(
        "generate",
        help="a reference video and speech in, a speaking avatar out",
        description="Writes OUT (25 fps, H.264 + AAC, as long as the audio) and its .json. OUT is "
        "an .mp4 file, an .m3u8 playlist that plays while it grows (HLS), rtmp://server/app/key, "
        "or - for a fragmented mp4 on stdout.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--reference", required=True, metavar="FILE", help="video or picture of the person")
    add("--audio", required=True, metavar="FILE|-", help="speech: any file; -: PCM on stdin, live")
    add("--out", required=True, metavar="OUT", help=".mp4, .m3u8, rtmp://… or - (stdout)")
    add("--also", action="append", default=[], metavar="FILE", help="more clips of the person")
    add("--reference-seconds", type=float, default=16.0, metavar="S",
        help="read of each clip (%(default)s); 0: one picture")  # fmt: skip
    add("--motion", default="auto", metavar="NAME", help="auto, meter, landmarks, none, a.b:c")
    add("--prompt", default="", help="the scene in words")
    add("--image", metavar="FILE", help="first frame, instead of the reference's best one")
    add("--from-prompt", action="store_true",
        help="no first frame is given: it is made from --prompt and reference")  # fmt: skip
    add("--seed", type=int, default=0, help="of the noise (%(default)s)")
    add("--steps", type=int, default=24, help="denoising steps a chunk (%(default)s)")
    add("--guidance-audio", type=float, help="1 is none (default: what the weights' card says)")
    add("--guidance-text", type=float, default=1.0, help="1 is none (%(default)s)")
    add("--guidance-reference", type=float, default=1.0, help="1 is none (%(default)s)")
    add("--guidance-motion", type=float,
        help="of the reference's habits (default: what the weights' card says)")  # fmt: skip
    add("--overshoot", type=float, default=0.0, help="fresh noise a step; 0: none (%(default)s)")
    add("--anchor", action=argparse.BooleanOptionalAction,
        help="later chunks also read the first frame as reference (as trained)")  # fmt: skip
    add("--no-ease", action="store_true", help="chunks begin as they are sampled")
    add("--interpolate", action="store_true",
        help="makes the beginning of each chunk anew between its neighbours")  # fmt: skip
    add("--gain", type=float, metavar="DB", help="of the speech, instead of levelling it")
    add("--audio-rate", type=int, default=16_000, metavar="HZ", help="of stdin (%(default)s)")
    add("--audio-channels", type=int, default=1, help="of stdin, interleaved (%(default)s)")
    add("--audio-patience", type=float, default=30.0, metavar="S", help="stall = end (%(default)s)")
    add("--weights", default="small", metavar="NAME|DIR", help="shipped or own (%(default)s)")
    add("--refiner", metavar="NAME|DIR", help="small_refiner or own: pictures twice as large")
    add("--device", default="auto", help="cpu, cuda, … (%(default)s)")
    add("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="(%(default)s)")
    add("--offload", action="store_true", help="weights in main memory, a few at a time on the GPU")
    add("--no-face-crop", action="store_true", help="take the picture's centre square as it is")
    add("--overwrite", action="store_true", help="replace OUT.mp4 and OUT.json")
    add("--resume", action="store_true", help="go on with an interrupted run of this command")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    from avatar_v.generate.outputs import STDOUT
    from avatar_v.generate.pipeline import carry_out
    from avatar_v.generate.progress import FrameProgress
    from avatar_v.types import Request

    request = Request(
        reference=args.reference,
        audio=args.audio,
        out=args.out,
        prompt=args.prompt,
        image=args.image,
        from_prompt=args.from_prompt,
        seed=args.seed,
        num_steps=args.steps,
        guidance_text=args.guidance_text,
        guidance_audio=args.guidance_audio,
        guidance_reference=args.guidance_reference,
        guidance_motion=args.guidance_motion,
        reference_s=args.reference_seconds,
        also=tuple(args.also),
        motion=args.motion,
        overshoot=args.overshoot,
        anchor=args.anchor,
        ease=not args.no_ease,
        interpolate=args.interpolate,
        face_crop=not args.no_face_crop,
        overwrite=args.overwrite,
        resume=args.resume,
        gain_db=args.gain,
        audio_rate_hz=args.audio_rate,
        audio_channels=args.audio_channels,
        audio_patience_s=args.audio_patience,
    )
    with FrameProgress() as progress:
        record = carry_out(
            request,
            weights=args.weights,
            refiner=args.refiner,
            device=args.device,
            precision=args.precision,
            offload=args.offload,
            on_ready=progress.ready,
            on_frames=progress.frames,
            on_kept=progress.kept,
        )
    timing = record.timing
    for warning in record.warnings[len(progress.warnings) :]:
        print(f"warning: {warning}", file=sys.stderr)
    print(
        f"{request.out}: {record.num_frames} frames ({record.num_frames / 25:.1f} s) in "
        f"{timing.total_s:.1f} s, {timing.frames_per_s:.1f} frames/s, "
        f"first frame after {timing.first_frame_s:.1f} s",
        file=sys.stderr if request.out == STDOUT else sys.stdout,
    )
    return 0
