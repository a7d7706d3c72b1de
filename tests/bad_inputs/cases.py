"""The hostile command lines, and how each has to end.

``FILES`` stands for the folder of files.py; the working folder is empty and writable. An end is
``refused`` (exit status 2, one line, nothing left), ``warned`` (carried out, with a warning) or
``accepted``. No case may end in a traceback, a hang, or success with numbers that are not finite.
"""

from collections.abc import Iterator

from bad_inputs.at_once import at_once
from bad_inputs.case import ACCEPTED, REFUSED, WARNED, Case
from bad_inputs.consents import consents, hidden_names, refused_before_folders
from bad_inputs.files import PARTS, WRONG
from bad_inputs.later import adapters, judged_pairs, plans
from bad_inputs.pointer_files import pointers
from bad_inputs.slim_files import slims
from bad_inputs.stranger_files import strangers
from bad_inputs.trainings import checkpoints, joined_weights, trainings
from bad_inputs.wan_files import wans


def all_cases() -> list[Case]:
    """Every case; their names differ."""
    groups = (
        _references, _sounds, _pictures, _outputs, _weights, _numbers, _other_options, _app, _demo,
        _world, _import, _shards, trainings, checkpoints, joined_weights, _benchmark, _studies,
        adapters, plans, judged_pairs, pointers, wans, strangers, at_once,
        consents, hidden_names, refused_before_folders, slims,
    )  # fmt: skip
    return [case for group in groups for case in group()]


REFERENCE = "--reference FILES/media/me.mkv"
AUDIO = "--audio FILES/media/talk.wav"
OUT = "--out out.mp4"
SHORT = "--weights FILES/weights/tiny --no-face-crop --steps 1 --motion none --device cpu"
WHOLE = f"avatar-v generate {REFERENCE} {AUDIO} {OUT} {SHORT}"

PLACES = {
    "missing": ("FILES/media/is_not_there.mp4", "is_not_there"),
    "folder": ("FILES/media/a_folder", "a_folder"),
    "empty name": ("''", ""),
    "empty file": ("FILES/media/empty.mp4", "empty.mp4"),
    "text": ("FILES/media/text.mp4", "text.mp4"),
    "noise": ("FILES/media/noise.mp4", "noise.mp4"),
    "html": ("FILES/media/page.html", "page.html"),
    "zip": ("FILES/media/zip.mp4", "zip.mp4"),
    "svg": ("FILES/media/drawing.svg", "drawing.svg"),
    "links in a circle": ("FILES/media/circle_a.mp4", "circle_a"),
    "link to nowhere": ("FILES/media/nowhere.mp4", "nowhere"),
    "pipe": ("FILES/media/fifo.mp4", "fifo.mp4"),
    "device": ("/dev/zero", "/dev/zero"),
    "empty device": ("/dev/null", "/dev/null"),
    "memory": ("/proc/self/mem", "/proc/self/mem"),
    "nul": ("'a<NUL>b.mp4'", ""),
    "long name": ("'<LONG>.mp4'", ""),
    "url": ("http://127.0.0.1:9/a.mp4", ""),
    "file url": ("file://FILES/media/me.mkv", ""),
    "pattern": ("FILES/media/me%03d.png", ""),
    "data url": ("data:video/mp4;base64,AAAA", ""),
    "concat": ("'concat:FILES/media/me.mkv|FILES/media/me.mkv'", ""),
    "lavfi": ("'lavfi:testsrc'", ""),
    "hls": ("FILES/media/list.m3u8", "list.m3u8"),
    "hls called wav": ("FILES/media/list.wav", "list.wav"),
    "ffconcat": ("FILES/media/list.ffconcat", "list.ffconcat"),
    "dash": ("FILES/media/list.mpd", "list.mpd"),
    "sdp": ("FILES/media/list.sdp", "list.sdp"),
    "text list": ("FILES/media/list.txt", "list.txt"),
}
"""Names that no media file has behind them, and words of the error."""


def _references() -> Iterator[Case]:
    whole = f"avatar-v generate {AUDIO} {OUT} {SHORT} --reference"
    for name, (path, says) in PLACES.items():
        yield Case(f"reference: {name}", f"{whole} {path}", says=says)
        if name in ("missing", "links in a circle", "hls", "device", "pipe", "noise"):
            command = f"avatar-v generate {REFERENCE} {AUDIO} {OUT} {SHORT} --also {path}"
            yield Case(f"also: {name}", command)
    ends = {
        "talk.wav": REFUSED,
        "truncated.mp4": REFUSED,  # its index is at the end, so nothing can be read
        "truncated.mkv": WARNED,
        "truncated.png": REFUSED,
        "bomb.png": REFUSED,
        "no_decoder.mp4": REFUSED,
        "changing.mjpeg": REFUSED,
        "two_pixels.mp4": REFUSED,
        "one.png": REFUSED,
        "two.png": REFUSED,
        "thin.png": REFUSED,
        "black.mp4": WARNED,
        "black.png": WARNED,
        "me.png": ACCEPTED,
        "me.mp4": ACCEPTED,
        "link.mkv": ACCEPTED,
        "'ümläut 口 '\"'\"'; rm -rf.mkv'": ACCEPTED,
    }
    for path, end in ends.items():
        quoted = f"FILES/media/{path}" if path[0] != "'" else f"'FILES/media/{path[1:]}"
        yield Case(f"reference: {path}", f"{whole} {quoted}", end)


def _sounds() -> Iterator[Case]:
    whole = f"avatar-v generate {REFERENCE} {OUT} {SHORT} --audio"
    for name, (path, says) in PLACES.items():
        yield Case(f"audio: {name}", f"{whole} {path}", says=says)
    ends = {
        "me.mp4": REFUSED,  # without sound
        "me.png": REFUSED,
        "no_samples.wav": REFUSED,
        "header_only.wav": REFUSED,
        "half_header.wav": REFUSED,
        "nan.wav": REFUSED,
        "inf.wav": REFUSED,
        "zero_rate.wav": REFUSED,
        "zero_channels.wav": REFUSED,
        "one_hz.wav": REFUSED,
        "slow.wav": REFUSED,
        "truncated.wav": WARNED,
        "silent.wav": WARNED,
        "one_sample.wav": REFUSED,
        "me.mkv": ACCEPTED,
        "talk.mp3": ACCEPTED,
        "wide.wav": ACCEPTED,  # 16 channels
        "no_size.wav": ACCEPTED,  # as a program writes to a pipe
        "faint.wav": WARNED,
    }
    for path, end in ends.items():
        yield Case(f"audio: {path}", f"{whole} FILES/media/{path}", end)
    yield Case("audio: stdin is empty", f"{whole} -")
    yield Case("audio: no such track", f"{whole} FILES/media/talk.wav --audio-track 2",
               says="no sound track 2; it has 1")  # fmt: skip
    yield Case("audio: a track of stdin", f"{whole} - --audio-track 1", says="--audio-track")
    yield Case("audio: stdin cannot be resumed", f"{whole} - --resume", says="--resume")


def _pictures() -> Iterator[Case]:
    for name in ("missing", "folder", "noise", "svg", "links in a circle", "hls", "device", "pipe"):
        yield Case(f"image: {name}", f"{WHOLE} --image {PLACES[name][0]}", says=PLACES[name][1])
    ends = {"truncated.png": REFUSED, "bomb.png": REFUSED, "one.png": REFUSED,
            "talk.wav": REFUSED, "black.png": WARNED, "me.jpg": ACCEPTED}  # fmt: skip
    for path, end in ends.items():
        yield Case(f"image: {path}", f"{WHOLE} --image FILES/media/{path}", end)
    both = f"{WHOLE} --image FILES/media/me.png --from-prompt"
    yield Case("image: with --from-prompt", both, says="--from-prompt")


def _outputs() -> Iterator[Case]:
    whole = f"avatar-v generate {REFERENCE} {AUDIO} {SHORT} --out"
    ends = {
        "": "''",
        "a folder": "FILES/media/a_folder",
        "a folder with a suffix": "FILES/media/a_folder/",
        "in a folder that is not there": "no/where/out.mp4",
        "below a file": "FILES/media/me.mkv/out.mp4",
        "other container": "out.avi",
        "no suffix": "out",
        "there already": "FILES/media/locked/old.mp4",
        "the reference": "FILES/media/me.mkv",
        "links in a circle": "FILES/media/circle_a.mp4",
        "link to nowhere in a folder that is not there": "FILES/media/nowhere.mp4/out.mp4",
        "device": "/dev/null",
        "full device": "/dev/full",
        "root": "/",
        "proc": "/proc/out.mp4",
        "nul": "'a<NUL>.mp4'",
        "long name": "'<LONG>.mp4'",
        "unknown protocol": "ftp://127.0.0.1/out.mp4",
        "no server": "rtmp://127.0.0.1:1/live/key",
    }
    for name, path in ends.items():
        yield Case(f"out: {name}", f"{whole} {path}")
    replace = f"avatar-v generate --reference FILES/media/me.mkv {AUDIO} {SHORT} --overwrite"
    yield Case("out: replaces the reference", f"{replace} --out FILES/media/me.mkv")
    yield Case("out: replaces the sound", f"{replace} --out FILES/media/talk.wav")
    yield Case("out: resumes what is not there", f"{WHOLE} --resume", WARNED, "--resume")
    yield Case("out: a playlist", f"{whole} out.m3u8", ACCEPTED)


def _weights() -> Iterator[Case]:
    whole = f"avatar-v generate {REFERENCE} {AUDIO} {OUT} --no-face-crop --steps 1 --motion none"
    names = {
        "is_not_there", "a_file", "truncated", "pickle", "text", "empty", "huge_header", "index",
        "card_list", "card_text", "card_latin", "card_version", "card_unknown", "card_lacks",
        "card_preset", "card_deep", "card_none",
    }  # fmt: skip
    for name in sorted(names):
        yield Case(f"weights: {name}", f"{whole} --weights FILES/weights/{name}")
    for part in PARTS:
        for fault in ("nan", "inf", "int32", "lacks", "more", "shape", "no"):
            name = f"{fault}_{part}"
            yield Case(f"weights: {name}", f"{whole} --weights FILES/weights/{name}", says=part)
        for kind in WRONG:
            name = f"config_{part}_{kind}"
            yield Case(f"weights: {name}", f"{whole} --weights FILES/weights/{name}")
    for kind in WRONG:
        if kind != "string":
            name = f"card_preset_{kind}"
            yield Case(f"weights: {name}", f"{whole} --weights FILES/weights/{name}")
        if kind not in ("fraction", "negative", "bool"):
            name = f"card_guidance_{kind}"
            yield Case(f"weights: {name}", f"{whole} --weights FILES/weights/{name}")
    for value in ("''", "/dev/zero", "../../../etc", "'small<NUL>'", "<LONG>"):
        yield Case(f"weights: {value}", f"{whole} --weights {value}")
    yield Case("weights: refiner is no refiner", f"{WHOLE} --refiner FILES/weights/tiny")
    yield Case("weights: refiner as generator", f"{whole} --weights small_refiner")


NUMBERS = {
    "--steps": ("0", "-1", "1000000000", "nan", "1.5", "'1e3'", "''", "0x10", "999999999999999999"),
    "--seed": ("-1", "9223372036854775808", "1.5", "nan", "''", "99999999999999999999999999"),
    "--guidance-audio": ("nan", "inf", "-inf", "1e30", "abc", "''"),
    "--guidance-text": ("nan", "1e300", "x"),
    "--guidance-reference": ("nan", "inf", "1e30"),
    "--guidance-motion": ("nan", "-inf", "1e30"),
    "--overshoot": ("nan", "-1", "7", "inf"),
    "--reference-seconds": ("nan", "-1", "inf", "1e9"),
    "--gain": ("nan", "inf", "100", "-1000"),
    "--audio-rate": ("0", "-1", "1000000000"),
    "--audio-channels": ("0", "99"),
    "--audio-patience": ("nan", "-1", "0"),
    "--device": ("meta", "gpu", "cuda:99", "''", "cpu:7", "'cpu<NUL>'", "xla", "privateuseone"),
    "--precision": ("fp8", "''"),
    "--motion": ("''", "nothing", "os:system", "is.not.there:f",
                 "avatar_v.request.request:Request", "a:b:c"),
}  # fmt: skip


def _numbers() -> Iterator[Case]:
    for option, values in NUMBERS.items():
        for value in values:
            yield Case(f"generate {option} {value}", f"{WHOLE} {option}={value}", says=option)
    for option, value in {"--seed": "9223372036854775807", "--steps": "2", "--gain": "-60"}.items():
        yield Case(f"generate {option} {value}", f"{WHOLE} {option}={value}", ACCEPTED)


def _other_options() -> Iterator[Case]:
    yield Case("no command", "avatar-v")
    yield Case("unknown command", "avatar-v paint")
    yield Case("unknown option", f"{WHOLE} --surprise")
    yield Case("abbreviated option", f"{WHOLE} --overw")
    yield Case("option without value", f"{WHOLE} --prompt")
    yield Case("generate without anything", "avatar-v generate")
    yield Case("prompt: very long", f"{WHOLE} --prompt '<LONG>'")
    yield Case("prompt: other scripts", f"{WHOLE} --prompt '口 🙂 \u202e'", ACCEPTED)
    yield Case("prompt: nul", f"{WHOLE} --prompt 'a<NUL>b'")
    yield Case("offload without a GPU", f"{WHOLE} --offload", says="offload")
    yield Case("shard on one device", f"{WHOLE} --shard", says="--devices")
    yield Case("anchor without a reference", f"{WHOLE} --anchor", says="--anchor")
    yield Case(
        "from the prompt without a reference", f"{WHOLE} --from-prompt", says="--from-prompt"
    )


def _app() -> Iterator[Case]:
    values = {
        "--port": ("-1", "70000", "abc"),
        "--host": ("300.1.1.1", "''", "is.not.there.invalid"),
        "--max-upload": ("0", "nan", "-1", "inf"),
        "--max-speech": ("0", "nan"),
        "--max-reference": ("-1",),
        "--keep": ("0", "nan"),
        "--device": ("meta",),
        "--weights": ("FILES/weights/nan_dit", "FILES/weights/is_not_there"),
    }
    for option, faults in values.items():
        for value in faults:
            yield Case(f"app {option} {value}", f"avatar-v app --port 0 {option}={value}")


def _demo() -> Iterator[Case]:
    values = {
        "--person": ("-1", "1000000000"),
        "--scene": ("-1", "1000000000"),
        "--speech": ("-1",),
        "--frames": ("0", "-5", "1000000000", "nan"),
        "--steps": ("0", "1000000000"),
        "--seed": ("-1", "9223372036854775808"),
        "--weights": ("FILES/weights/nan_vae", "FILES/weights/text"),
        "--out": ("FILES/media/me.mkv", "''", "/proc/x"),
    }
    for option, faults in values.items():
        for value in faults:
            yield Case(f"demo {option} {value}", f"avatar-v demo {option}={value}")


def _world() -> Iterator[Case]:
    whole = "avatar-v-data world --out made --clips 1 --frames 5 --size 32"
    values = {
        "--clips": ("0", "-1", "nan", "1e9"),
        "--frames": ("0", "-3", "4", "nan", "1000000001"),
        "--size": ("0", "-1", "7", "1000000", "80000"),
        "--clips-per-person": ("0", "-1", "1000000"),
        "--clips-per-shard": ("0", "-1"),
        "--seed": ("-1", "nan"),
        "--split": ("reserved", "''"),
        "--out": ("FILES/media/me.mkv", "''", "/proc/x"),
    }
    for option, faults in values.items():
        for value in faults:
            yield Case(f"world {option} {value}", f"{whole} {option}={value}")


def _import() -> Iterator[Case]:
    whole = "avatar-v-data import FILES/media --out made --frames 5 --size 32 --no-face-crop"
    yield Case("import: broken files are rows", whole, ACCEPTED)
    values = {
        "--frames": ("0", "4", "nan"),
        "--size": ("0", "-1", "1000000"),
        "--person": ("nobody",),
        "--clips-per-shard": ("0",),
        "--validation": ("nan", "-1", "2"),
        "--manifest": ("is_not_there.csv", "FILES/media/me.mkv"),
        "--out": ("FILES/media/me.mkv", "''", "/proc/x"),
    }
    for option, faults in values.items():
        for value in faults:
            yield Case(f"import {option} {value}", f"{whole} {option}={value}")
    for name in ("is_not_there", "a_folder", "me.mkv"):
        yield Case(f"import: {name}", f"avatar-v-data import FILES/media/{name} --out made")


def _shards() -> Iterator[Case]:
    vae = "FILES/weights/tiny/vae"
    bad = ("truncated", "text", "no_index", "index_text", "index_list", "index_outside",
           "nothing", "a_file", "is_not_there")  # fmt: skip
    for name in bad:
        folder = f"FILES/shards/bad/{name}"
        yield Case(f"shards show: {name}", f"avatar-v shards show {folder}")
        yield Case(
            f"shards encode: {name}",
            f"avatar-v shards encode --shards {folder} --out l --vae {vae}",
        )
    good = "FILES/shards/tiny/train"
    encode = f"avatar-v shards encode --shards {good} --out latents"
    for name in ("nan_vae/vae", "int32_vae/vae", "tiny/dit", "is_not_there", "config_vae_huge/vae"):
        yield Case(f"shards encode --vae {name}", f"{encode} --vae FILES/weights/{name}")
    for option in ("--batch-size=0", "--device=meta", "--batch-size=nan"):
        yield Case(f"shards encode {option}", f"{encode} --vae {vae} {option}")
    yield Case("shards encode into itself",
               f"avatar-v shards encode --shards {good} --out {good} --vae {vae}")  # fmt: skip
    yield Case("shards show -n 0", f"avatar-v shards show {good} -n 0")
    yield Case("shards show --out", f"avatar-v shards show {good} --out sheet.exe")
    yield Case("shards stills: no latents", f"avatar-v shards stills --shards {good} --vae {vae}")


def _benchmark() -> Iterator[Case]:
    for name in ("text", "list", "object", "nan", "deep", "is_not_there"):
        manifest = f"FILES/manifests/{name}"
        yield Case(f"cases check {name}", f"avatar-v-eval cases check {manifest}")
        system = "--system a=FILES/media/a_folder"
        yield Case(f"eval run {name}", f"avatar-v-eval run {manifest} {system} --out made")
    yield Case("cases build: nothing", "avatar-v-eval cases build FILES/media/a_folder --out made")
    yield Case("cases world70 --cases 0", "avatar-v-eval cases world70 made --cases 0")
    yield Case("cases world70 --cases -1", "avatar-v-eval cases world70 made --cases -1")
    yield Case(
        "cases world70 over a file", "avatar-v-eval cases world70 FILES/secret.wav --cases 1"
    )
    yield Case("eval report: no run", "avatar-v-eval report FILES/media --out made")
    yield Case("eval report: nothing", "avatar-v-eval report --out made")
    yield Case("eval merge: no run", "avatar-v-eval merge FILES/media --out made")
    yield Case("eval: unknown command", "avatar-v-eval paint")
    yield Case("eval: nothing", "avatar-v-eval")


def _studies() -> Iterator[Case]:
    for name in ("text", "list", "empty", "broken", "object", "tag", "is_not_there"):
        study = f"FILES/studies/{name}"
        yield Case(f"rate {name}", f"avatar-v-eval rate {study} --check")
        yield Case(f"votes {name}", f"avatar-v-eval votes tables {study} made.md")
