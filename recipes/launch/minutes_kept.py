"""What minutes.py keeps of a run: at most 8 files of at most 16 MiB, each whole at any moment.

base.tar, model.tar, student.tar, causal.tar, refiner.tar: weights of the last part of each line
that has any, a byte a weight (`packed`); those that others stand on, in base.tar, exactly.
log.jsonl: a row for each part. sheet.jpg: the last pictures of every part, one below the other.
"""

import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

import torch
from minutes_parts import refused
from PIL import Image, ImageDraw
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from avatar_v.base.paths import whole_file

MAX_BYTES = 16 * 2**20
BLOCK = 32
"""Weights that share a scale, as in llama.cpp's Q8_0: off by half a hundredth of their norm."""
TINY = torch.finfo(torch.float32).tiny
EVERY_S = 5.0
LINES = {
    "base": ("0_vae", "critic_face", "critic_motion", "critic_sync", "refiner_decoder"),
    "model": ("3_motion", "3_sft", "3_pictures", "2_a2v", "1_t2v"),
    "student": ("4b_distill_dmd", "4a_distill_cfg"),
    "causal": ("4e_self_forcing", "4d_causal_forcing"),
    "refiner": ("refiner",),
}
"""Archive → its parts; of a line of training the last alone, in base.tar all."""
LOG, SHEET, STATS = "log.jsonl", "sheet.jpg", "motion.json"
SHEET_WIDTH = 1024
SHOWN = (
    "of each clip the true frames, below them those made",
    "of each clip enlarged, refined and true frames",
)
"""Of a sheet, of the refiner's."""
SCALE, SHAPES = ".scale", "shapes"


def keep_on(work: Path, out: Path) -> None:
    """Keep what changes, until the process that started this one ends."""
    parent, said = os.getppid(), ""
    while os.getppid() == parent:
        try:
            keep(work, out)
        except FileNotFoundError:  # a part writes its weights: the next turn
            pass
        except OSError as error:
            if str(error) != said:
                said = str(error)
                print(f"minutes.py: NOT KEPT: {said}", flush=True)
        time.sleep(EVERY_S)


def keep(work: Path, out: Path) -> None:
    """Write the archives whose weights are newer than they; one that is too large is told of, and
    stays as it was."""
    for cut in out.glob(".*.tmp"):
        cut.unlink()
    if (work / LOG).exists():  # first: archives without it would say nothing of their parts
        with whole_file(out / LOG) as partial:
            shutil.copyfile(work / LOG, partial)
    for line, parts in LINES.items():
        folders = [(part, folder) for part in parts if (folder := _weights(work, part))]
        folders = folders if line == "base" else folders[:1]
        archive = out / f"{line}.tar"
        newest = max((_newest(folder) for _, folder in folders), default=0.0)
        if newest and (not archive.exists() or archive.stat().st_mtime < newest):
            data = _archive(work, folders, with_stats=line == "base")
            if len(data) > MAX_BYTES:
                print(f"{archive} would have {len(data):,} bytes, of {MAX_BYTES:,}", flush=True)
                continue
            with whole_file(archive) as partial:
                partial.write_bytes(data)
                os.utime(partial, (newest, newest))
    _write_sheet(work, out / SHEET)


def restore(source: Path, work: Path, size: str) -> list[dict]:
    """Unpack what was kept below ``work``/before; the rows of its log, which go on in this run's.

    Ends with one line for archives that are damaged, of another size or without their log."""
    before, archives = work / "before", [source / f"{line}.tar" for line in LINES]
    if not (source / LOG).exists():
        if any(archive.exists() for archive in archives):
            raise refused(f"{source} lacks {LOG}, which says what its archives hold")
        print(f"{source} holds nothing of a run: this one begins from nothing", flush=True)
        return []
    shutil.rmtree(before, ignore_errors=True)  # of a try that was cut
    text, rows = _read_log(source)
    sizes = {row.get("size", size) for row in rows if row["part"] == "begin"}
    if sizes - {size}:
        raise refused(f"{source} is a run of --size {sizes.pop()}, and this one of {size}")
    for archive in filter(Path.exists, archives):
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(before, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise refused(f"{archive} is damaged ({error}); fetch it again") from error
    for weights in before.glob("runs/*/weights"):
        for file in weights.rglob("*.safetensors"):
            save_file(unpacked(file), file)
        if not (before / "runs" / "0_vae" / "vae").exists():
            raise refused(f"{source} lacks base.tar, whose VAE its other archives need")
        shutil.copytree(before / "runs" / "0_vae" / "vae", weights / "vae")
    (work / LOG).write_text(text)
    return rows


def unpack(words: list[str]) -> int:
    """The weights of an --out as folders of their own: FOLDER/model, FOLDER/student …"""
    if len(words) != 2:
        raise refused("unpack takes two folders: the --out of a run, and one to be made")
    source, target = map(Path, words)
    if target.exists():
        raise refused(f"{target} exists: name a folder to be made")
    if not (source / LOG).exists():
        raise refused(f"{source} holds no run")
    _, rows = _read_log(source)
    size = next((row["size"] for row in rows if "size" in row), "small")
    with tempfile.TemporaryDirectory() as name:
        restore(source, Path(name), size)
        target.mkdir(parents=True)
        for line, parts in LINES.items():
            for part in parts if line != "base" else ():
                folder = Path(name) / "before" / "runs" / part / "weights"
                if folder.exists():
                    shutil.copytree(folder, target / line)
                    print(f"{target / line}: {part}", flush=True)
    return 0


def _read_log(source: Path) -> tuple[str, list[dict]]:
    try:
        text = (source / LOG).read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        return text, [row | {"part": row["part"]} for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise refused(f"{source / LOG} is damaged ({error}); fetch it again") from error


def names_there(work: Path) -> set[str]:
    """Parts whose weights were restored, and those that a later part of their line has made
    needless."""
    there: set[str] = set()
    for line, parts in LINES.items():
        found = [i for i, part in enumerate(parts) if (work / "before" / "runs" / part).exists()]
        for i in found:
            there |= {parts[i]} if line == "base" else set(parts[i:])
    return there


def _weights(work: Path, part: str) -> Path | None:
    """The weights of a part of this run, else of the one before."""
    leaves = {"0_vae": "vae", "refiner_decoder": "vae"}.get(part, "weights")
    leaves = part.removeprefix("critic_") if part.startswith("critic_") else leaves
    for root in (work, work / "before"):
        folder = root / "runs" / part / leaves
        if (folder / "config.json").exists() or (folder / "card.json").exists():
            return folder
    return None


def _newest(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.glob("*.json")))


def _archive(work: Path, folders: list[tuple[str, Path]], *, with_stats: bool) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for part, folder in folders:
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                inside = file.relative_to(folder)
                if folder.name == "weights" and inside.parts[0] == "vae":
                    continue
                is_packed = folder.name == "weights" and file.suffix == ".safetensors"
                data = packed(load_file(file)) if is_packed else file.read_bytes()
                info = tarfile.TarInfo(f"runs/{part}/{folder.name}/{inside}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        stats = next((p for p in (work / STATS, work / "before" / STATS) if p.exists()), None)
        if with_stats and stats:
            tar.add(stats, STATS)
    return whole.getvalue()


def packed(state: dict[str, Tensor]) -> bytes:
    """Matrices as bytes with an fp32 scale for every `BLOCK`, the rest as it is; for `unpacked`."""
    found, shapes = {}, {}
    for key, value in state.items():
        found[key] = value
        if value.is_floating_point() and value.ndim > 1 and value.numel() % BLOCK == 0:
            blocks = value.float().view(-1, BLOCK)
            # fp32: fp16 has no number near the scale of small weights, whose codes would pass 127
            scale = (blocks.abs().amax(1, keepdim=True) / 127).clamp(min=TINY)
            found[key] = (blocks / scale).round().clamp(-127, 127).to(torch.int8)
            found[key + SCALE] = scale
            shapes[key] = list(value.shape)
    return save(found, {SHAPES: json.dumps(shapes)})


def unpacked(file: Path) -> dict[str, Tensor]:
    """The tensors that were packed into ``file``."""
    with safe_open(file, "pt") as opened:
        shapes = json.loads(opened.metadata()[SHAPES])
    state = load_file(file)
    for key, shape in shapes.items():
        state[key] = (state[key].float() * state.pop(key + SCALE).float()).view(shape)
    return state


def _write_sheet(work: Path, path: Path) -> None:
    """The last sheet of every part, its name above it."""
    found = [
        (part, max(sheets))
        for part in (part for line in LINES.values() for part in reversed(line))
        if (sheets := list((work / "runs" / part / "samples").glob("*.png")))
    ]
    newest = max((sheet.stat().st_mtime for _, sheet in found), default=0.0)
    if not found or (path.exists() and path.stat().st_mtime >= newest):
        return
    rows = []
    for part, sheet in found:
        picture = Image.open(sheet).convert("RGB")
        picture.thumbnail((SHEET_WIDTH, SHEET_WIDTH))
        times = SHEET_WIDTH // picture.width
        picture = picture.resize((times * picture.width, times * picture.height), 0)
        row = Image.new("RGB", (SHEET_WIDTH, picture.height + 16), "white")
        row.paste(picture, (0, 16))
        words = f"{part}, {sheet.stem}: {SHOWN[part == 'refiner']}"
        ImageDraw.Draw(row).text((2, 2), words, fill="black")
        rows.append(row)
    whole = Image.new("RGB", (SHEET_WIDTH, sum(row.height for row in rows)))
    top = 0
    for row in rows:
        whole.paste(row, (0, top))
        top += row.height
    with whole_file(path) as partial:
        whole.save(partial, "JPEG", quality=80)
        os.utime(partial, (newest, newest))
