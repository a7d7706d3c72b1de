"""The files that hostile command lines name: a few good ones, and the same ones broken."""

import json
import os
import pickle
import shutil
import struct
import wave
from pathlib import Path

import av
import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.weights.card import Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.wan import import_wan
from avatar_v.weights.weights import save_pipeline
from bad_inputs.adapter_files import SAID, make_adapters
from bad_inputs.consents import make_statements
from bad_inputs.pointer_files import make_pointers
from bad_inputs.slim_files import make_slims
from bad_inputs.stranger_files import make_strangers
from bad_inputs.vote_files import make_rated_studies, make_raters
from bad_inputs.wan_files import make_wans
from clip_files import clip_file
from tiny_run import make_shards

STATE = "model.safetensors"
PARTS = ("dit", "vae", "text", "audio")


def make_files(folder: Path) -> None:
    """Fill ``folder`` with media, weights, shards and recipes; some seconds."""
    media = folder / "media"
    media.mkdir(parents=True)
    _videos(media)
    _pictures(media)
    _sounds(media)
    _playlists(media, secret=folder / "secret.wav")
    _places(media)
    _weights(folder / "weights")
    make_shards(folder)
    _shards(folder / "shards" / "tiny" / "train", folder / "shards" / "bad")
    _recipes(folder / "recipes")
    _studies(folder)
    make_adapters(folder / "weights" / "tiny", folder / "adapters")
    make_slims(folder / "weights" / "tiny", folder / "slims")
    make_wans(folder / "wans")
    import_wan(folder / "wans" / "good", folder / "wan_dit", audio_dim=32, audio_every=1)
    make_rated_studies(folder / "rated")
    make_raters(folder / "raters")
    make_pointers(folder / "weights" / "tiny", folder / "pointers")
    make_strangers(folder / "strangers")
    make_statements(folder / "statements")


def frames(num: int, size: int = 40) -> Tensor:
    """Moving stripes, "f 3 size size"."""
    x = torch.arange(size)
    rows = [((x[:, None] + 2 * x[None] + 5 * i) % 64) * 3 for i in range(num)]
    return torch.stack(rows)[:, None].repeat(1, 3, 1, 1).to(torch.uint8)


def tone(seconds: float) -> Tensor:
    """A hum at 16 kHz."""
    return 0.3 * torch.sin(torch.arange(int(seconds * 16_000)) * 0.2)


def write_wav(path: Path, samples: np.ndarray, rate_hz: int = 16_000) -> None:
    """16-bit mono; ``samples`` are integers."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.astype("<i2").tobytes())


def _videos(folder: Path) -> None:
    clip_file(folder / "me.mkv", frames(21), tone(0.84))
    clip_file(folder / "me.mp4", frames(21))
    clip_file(folder / "other.mp4", frames(13))
    clip_file(folder / "black.mp4", torch.zeros(21, 3, 40, 40, dtype=torch.uint8))
    clip_file(folder / "two_pixels.mp4", frames(9, 2))
    whole = (folder / "me.mp4").read_bytes()
    (folder / "truncated.mp4").write_bytes(whole[: len(whole) // 2])
    mkv = (folder / "me.mkv").read_bytes()
    (folder / "truncated.mkv").write_bytes(mkv[: len(mkv) // 2])
    damaged = bytearray(mkv)
    damaged[len(mkv) // 3 : len(mkv) // 2] = bytes(len(mkv) // 2 - len(mkv) // 3)
    (folder / "damaged.mkv").write_bytes(bytes(damaged))
    (folder / "no_decoder.mp4").write_bytes(whole.replace(b"avc1", b"zzz1"))
    (folder / "drefs.mp4").write_bytes(whole.replace(b"url ", b"alis"))
    sizes = [frames(5), frames(5, 64)]
    _changing_size(folder / "changing.mjpeg", sizes)


def _changing_size(path: Path, parts: list[Tensor]) -> None:
    data = []
    for part in parts:
        for picture in part:
            Image.fromarray(picture.movedim(0, -1).numpy()).save(path.with_suffix(".one.jpg"))
            data.append(path.with_suffix(".one.jpg").read_bytes())
    path.with_suffix(".one.jpg").unlink()
    path.write_bytes(b"".join(data))


def _pictures(folder: Path) -> None:
    picture = frames(1)[0].movedim(0, -1).numpy()
    Image.fromarray(picture).save(folder / "me.png")
    Image.fromarray(picture).save(folder / "me.jpg")
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(folder / "black.png")
    Image.fromarray(picture[:2, :2]).save(folder / "two.png")
    Image.fromarray(picture[:1, :1]).save(folder / "one.png")
    Image.fromarray(picture[:1].repeat(40, 1).repeat(100, 0)[:3]).save(folder / "thin.png")
    png = (folder / "me.png").read_bytes()
    (folder / "truncated.png").write_bytes(png[: len(png) // 2])
    # the header alone promises 100,000 x 100,000 pixels
    (folder / "bomb.png").write_bytes(png[:16] + struct.pack(">II", 100_000, 100_000) + png[24:])
    (folder / "drawing.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9"/></svg>'
    )


def _sounds(folder: Path) -> None:
    hum = (tone(0.4).numpy() * 32767).astype(np.int16)
    write_wav(folder / "talk.wav", hum)
    write_wav(folder / "silent.wav", np.zeros(6400, np.int16))
    write_wav(folder / "no_samples.wav", np.zeros(0, np.int16))
    write_wav(folder / "one_sample.wav", hum[:1])
    write_wav(folder / "one_hz.wav", np.tile(hum, 4), 1)
    write_wav(folder / "slow.wav", hum, 1000)
    whole = (folder / "talk.wav").read_bytes()
    wide = np.repeat(hum, 16)
    write_wav(folder / "wide.wav", wide)
    mono = (folder / "wide.wav").read_bytes()
    form = struct.pack("<HIIH", 16, 16_000, 16 * 32_000, 32)
    (folder / "wide.wav").write_bytes(mono[:22] + form + mono[34:])
    (folder / "no_size.wav").write_bytes(whole[:40] + b"\xff\xff\xff\x7f" + whole[44:])
    write_wav(folder / "faint.wav", hum // 400)
    (folder / "header_only.wav").write_bytes(whole[:44])
    (folder / "half_header.wav").write_bytes(whole[:30])
    (folder / "truncated.wav").write_bytes(whole[: len(whole) // 2])
    # 32-bit floats, of which one is not a number
    floats = tone(0.4).numpy().astype("<f4")
    floats[100] = np.nan
    _float_wav(folder / "nan.wav", floats)
    floats[100] = np.inf
    _float_wav(folder / "inf.wav", floats)
    (folder / "zero_rate.wav").write_bytes(whole[:24] + bytes(8) + whole[32:])
    (folder / "zero_channels.wav").write_bytes(whole[:22] + bytes(2) + whole[24:])
    with av.open(str(folder / "talk.mp3"), "w") as container:
        stream = container.add_stream("mp3", rate=16_000, layout="mono")
        block = av.AudioFrame.from_ndarray(hum[None], format="s16p", layout="mono")
        block.sample_rate = 16_000
        container.mux(stream.encode(block))
        container.mux(stream.encode(None))


def _float_wav(path: Path, samples: np.ndarray) -> None:
    data = samples.tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 3, 1,
                       16_000, 64_000, 4, 32)  # fmt: skip
    path.write_bytes(head + struct.pack("<4sI", b"data", len(data)) + data)


def _playlists(folder: Path, *, secret: Path) -> None:
    """Containers that name other files, here a private sound."""
    write_wav(secret, (tone(0.4).numpy() * 32767).astype(np.int16))
    url = f"file://{secret}"
    (folder / "list.m3u8").write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n"
    )
    (folder / "list.wav").write_bytes((folder / "list.m3u8").read_bytes())
    (folder / "list.ffconcat").write_text(f"ffconcat version 1.0\nfile '{secret}'\n")
    (folder / "list.mpd").write_text(
        '<?xml version="1.0"?><MPD type="static" mediaPresentationDuration="PT1S"><Period>'
        '<AdaptationSet contentType="audio"><Representation id="1" bandwidth="1">'
        f"<BaseURL>{url}</BaseURL></Representation></AdaptationSet></Period></MPD>"
    )
    (folder / "list.sdp").write_text(
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n"
    )
    (folder / "list.txt").write_text(url + "\n")


def _places(folder: Path) -> None:
    """Things that are no files of media."""
    (folder / "empty.mp4").touch()
    (folder / "text.mp4").write_text("no film\n" * 100)
    (folder / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    (folder / "page.html").write_text("<html><script>alert(1)</script></html>")
    (folder / "zip.mp4").write_bytes(b"PK\x03\x04" + bytes(100))
    (folder / "a_folder").mkdir()
    (folder / "circle_a.mp4").symlink_to("circle_b.mp4")
    (folder / "circle_b.mp4").symlink_to("circle_a.mp4")
    (folder / "nowhere.mp4").symlink_to("is_not_there.mp4")
    (folder / "link.mkv").symlink_to("me.mkv")
    os.mkfifo(folder / "fifo.mp4")
    shutil.copy(folder / "me.mkv", folder / "ümläut 口 '; rm -rf.mkv")
    locked = folder / "locked"
    locked.mkdir()
    (locked / "old.mp4").write_text("kept")


def _weights(folder: Path) -> None:
    """`tiny` with random weights, and copies of it with one thing wrong each."""
    good = folder / "tiny"
    dit, conditioner = build("tiny", seed=1, motion_stats=motion_stats())
    for block in dit.blocks:  # weights that hear nothing are warned of
        torch.nn.init.constant_(block.get_parameter("audio_attention.out.weight"), 0.1)
    save_pipeline(good, dit, conditioner, Card(preset="tiny", recipe="none", can=SAID))
    for part in PARTS:
        state = load_file(good / part / STATE)
        key = next(k for k, v in state.items() if v.is_floating_point() and v.numel() > 1)
        _changed(good, folder / f"nan_{part}", part, _with(state, key, float("nan")))
        _changed(good, folder / f"inf_{part}", part, _with(state, key, float("inf")))
        ints = {k: v.to(torch.int32) for k, v in state.items()}
        _changed(good, folder / f"int32_{part}", part, ints)
        _changed(good, folder / f"lacks_{part}", part, {k: v for k, v in state.items() if k != key})
        _changed(good, folder / f"more_{part}", part, {**state, "more": torch.zeros(2)})
        _changed(good, folder / f"shape_{part}", part, {**state, key: torch.zeros(3, 5)})
        shutil.copytree(good, folder / f"no_{part}")
        shutil.rmtree(folder / f"no_{part}" / part)
        _config(good, folder / f"config_{part}", part)
    _files_of_weights(good, folder)
    _cards(good, folder)


def _with(state: dict[str, Tensor], key: str, value: float) -> dict[str, Tensor]:
    changed = {k: v.clone() for k, v in state.items()}
    changed[key].view(-1)[0] = value
    return changed


def _changed(good: Path, folder: Path, part: str, state: dict[str, Tensor]) -> None:
    shutil.copytree(good, folder)
    save_file({k: v.contiguous() for k, v in state.items()}, folder / part / STATE)


def _files_of_weights(good: Path, folder: Path) -> None:
    for name in ("truncated", "pickle", "text", "empty", "huge_header", "index"):
        shutil.copytree(good, folder / name)
    file = folder / "truncated" / "dit" / STATE
    file.write_bytes(file.read_bytes()[:2000])
    (folder / "pickle" / "dit" / STATE).write_bytes(pickle.dumps(_Runs()))
    (folder / "text" / "dit" / STATE).write_text("weights")
    (folder / "empty" / "dit" / STATE).write_bytes(b"")
    (folder / "huge_header" / "dit" / STATE).write_bytes(struct.pack("<Q", 2**60) + b"{}")
    (folder / "index" / "dit" / f"{STATE}.index.json").write_text(
        json.dumps({"weight_map": {"a": f"../../tiny/dit/{STATE}"}})
    )
    (folder / "a_file").write_text("weights")


class _Runs:
    """Unpickled, it makes the file ``pickle_ran`` in the working folder."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch pickle_ran",)


WRONG = {"string": "many", "list": [1], "null": None, "nan": float("nan"), "negative": -3,
         "huge": 10**12, "bool": True, "fraction": 1.5, "object": {"a": 1}}  # fmt: skip


def _config(good: Path, folder: Path, part: str) -> None:
    """``folder``_KIND with the first number of a config replaced by each of `WRONG`."""
    values = json.loads((good / part / "config.json").read_text())
    key = next(k for k, v in values.items() if isinstance(v, int) and not isinstance(v, bool))
    for kind, wrong in WRONG.items():
        copy = folder.with_name(f"{folder.name}_{kind}")
        shutil.copytree(good, copy)
        (copy / part / "config.json").write_text(json.dumps({**values, key: wrong}))


def _cards(good: Path, folder: Path) -> None:
    values = json.loads((good / "card.json").read_text())
    cards = {
        "card_list": "[]",
        "card_text": "no json",
        "card_latin": None,
        "card_version": json.dumps({**values, "schema_version": 99}),
        "card_unknown": json.dumps({**values, "surprise": 1}),
        "card_lacks": json.dumps({k: v for k, v in values.items() if k != "preset"}),
        "card_preset": json.dumps({**values, "preset": "gigantic"}),
        "card_deep": "[" * 100_000,
        **{f"card_preset_{k}": json.dumps({**values, "preset": v}) for k, v in WRONG.items()
           if k not in ("string",)},
        **{f"card_guidance_{k}": json.dumps({**values, "guidance_audio": v})
           for k, v in WRONG.items() if k not in ("fraction", "negative", "bool")},
    }  # fmt: skip
    for name, text in cards.items():
        shutil.copytree(good, folder / name)
        data = b"\xff\xfe\x00" if text is None else text.encode()
        (folder / name / "card.json").write_bytes(data)
    shutil.copytree(good, folder / "card_none")
    (folder / "card_none" / "card.json").unlink()


def _shards(good: Path, folder: Path) -> None:
    """Copies of the tiny training shards with one thing wrong each."""
    tar = next(good.glob("*.tar"))
    for name in ("truncated", "text", "no_index", "index_text", "index_list", "index_outside"):
        shutil.copytree(good, folder / name)
    (folder / "truncated" / tar.name).write_bytes(tar.read_bytes()[:5000])
    (folder / "text" / tar.name).write_text("no tar")
    for name in ("no_index", "index_text", "index_list", "index_outside"):
        for index in (folder / name).glob("*.json"):
            if name == "no_index":
                index.unlink()
            elif name == "index_text":
                index.write_text("no json")
            elif name == "index_list":
                index.write_text("[1, 2]")
            else:
                text = index.read_text().replace(tar.name, f"../../tiny/train/{tar.name}")
                index.write_text(text)
    (folder / "nothing").mkdir()
    (folder / "a_file").write_text("shards")


def _recipes(folder: Path) -> None:
    folder.mkdir()
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    texts = {
        "bomb": bomb,
        "list": "- 1\n- 2\n",
        "number": "7\n",
        "empty": "",
        "broken": "model: [1, 2\n",
        "python_tag": "model: !!python/object/apply:os.system ['touch tag_ran']\n",
        "unknown_key": "surprise: 1\n",
        "unknown_class": "model: {class_path: avatar_v.stages.a2v.Nothing}\n",
        "foreign_class": "model: {class_path: os.system, init_args: {command: touch class_ran}}\n",
        "trainer_list": "trainer: [1, 2]\n",
        "binary": "\x00\x01",
        "deep": "[" * 5000,
        "self": "a: &a {b: *a}\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "latin.yaml").write_bytes("seed_everything: 0 # Grüße\n".encode("latin-1"))
    (folder / "checkpoint_pickle.ckpt").write_bytes(pickle.dumps(_Runs()))
    torch.save({"model": torch.zeros(1)}, folder / "checkpoint_foreign.ckpt")
    (folder / "checkpoint_text.ckpt").write_text("no checkpoint")


def _studies(folder: Path) -> None:
    """Benchmarks and rating studies that are none."""
    for name, text in {"text": "no json", "list": "[]", "object": "{}", "nan": '{"name": NaN}',
                       "deep": "[" * 100_000}.items():  # fmt: skip
        (folder / "manifests" / name).mkdir(parents=True)
        (folder / "manifests" / name / "manifest.json").write_text(text)
    for name, text in {"text": "name", "list": "- 1", "empty": "", "broken": "a: [",
                       "object": yaml.safe_dump({"name": "x", "surprise": 1}),
                       "tag": "!!python/object/apply:os.system ['touch tag_ran']",
                       }.items():  # fmt: skip
        (folder / "studies" / name).mkdir(parents=True)
        (folder / "studies" / name / "study.yaml").write_text(text)
