"""Shards of the embedded world: N clips, every person in several scenes, any number of processes.

The plan (person, scene and speech of each clip, and with whom the person talks) is a pure function
of the settings, and a clip is a pure function of its ids, so the shards are the same bytes with 1
worker or 16. The settings are kept beside the shards: a second run of the same settings continues
where the first stopped, one with other settings is refused.
"""

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.interrupts import interrupts_deferred
from avatar_v.base.seeds import stream
from avatar_v.faces.face_track import spread_frames
from avatar_v.shards.schema import NUM_CLOSE_UPS, Meta, Sample, to_int16
from avatar_v.shards.writer import (
    Failure,
    ShardIndex,
    index_path,
    read_index,
    write_shard,
    write_text_atomically,
)
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world import clip as world_clip
from avatar_v.world.redrawn import close_ups
from avatar_v.world.splits import RANGES
from avatar_v_data.world_settings import WorldSettings

SETTINGS_FILE = "world.json"
SCENE_STRIDE, SPEECH_STRIDE = 618_033, 414_213
"""Odd and no multiples of 5, so i · stride mod 10⁶ repeats no scene and no speech in 10⁶ clips."""


def clip_ids(settings: WorldSettings, index: int) -> tuple[int, int, int]:
    """Person, scene and speech id of clip ``index``.

    Clips go round the persons, so that a shard holds many of them and a person's clips lie apart;
    with ``num_clips // clips_per_person`` persons each has at least ``clips_per_person`` clips.
    """
    ids = RANGES[settings.split]
    num_persons = settings.num_clips // settings.clips_per_person
    start = settings.seed * 7919
    person = start + index % num_persons
    scene = start + index * SCENE_STRIDE
    speech = start + index * SPEECH_STRIDE
    return ids[person % len(ids)], ids[scene % len(ids)], ids[speech % len(ids)]


def partner_id(settings: WorldSettings, person: int, scene: int, speech: int) -> int | None:
    """Whom the person of a clip of these ids talks with: another of the split, or nobody."""
    if not settings.dialogues:
        return None
    others = RANGES[settings.split][:-1]
    drawn = others[int(stream("partner", person, scene, speech).integers(len(others)))]
    return drawn + (drawn >= person)


def make_sample(settings: WorldSettings, index: int) -> Sample:
    """Render clip ``index`` of the set."""
    person, scene, speech = clip_ids(settings, index)
    clip = world_clip.make_clip(
        person,
        scene,
        speech,
        num_frames=settings.num_frames,
        size=settings.size,
        frame_rate_hz=settings.frame_rate_hz,
        render_video=settings.pictures,
        listens_to=partner_id(settings, person, scene, speech),
    )
    height, width = settings.sides if settings.pictures else (0, 0)
    meta = Meta(
        person=f"world-{person}",
        scene=f"world-{scene}",
        sentence=f"world-{clip.sentence_id}",
        text=clip.text,
        num_frames=settings.num_frames,
        height=height,
        width=width,
        frame_rate_hz=settings.frame_rate_hz,
        sample_rate_hz=SAMPLES_PER_FRAME * settings.frame_rate_hz,
        licence="CC0-1.0",
        consent="synthetic",
        source="avatar_v.world",
        transcript=clip.transcript,
    )
    pictures, frames = None, None
    if settings.close_ups:
        frames = spread_frames(clip.valid, NUM_CLOSE_UPS)
        pictures = close_ups(person, scene, speech, clip.motion[frames], size=settings.size)
    return Sample(
        key=f"{index:07d}_{person}_{scene}_{speech}",
        meta=meta,
        audio=to_int16(clip.audio),
        motion=clip.motion,
        face_box=_drawn(clip.face_box, settings, 4),
        mouth_box=_drawn(clip.mouth_box, settings, 4),
        landmarks=_drawn(clip.landmarks, settings, 0, 2),
        valid=clip.valid,
        phonemes=clip.phonemes,
        video=clip.video,
        close_ups=pictures,
        close_up_frames=frames,
        heard=None if clip.heard is None else to_int16(clip.heard),
    )


def _drawn(track: Tensor | None, settings: WorldSettings, *shape: int) -> Tensor:
    """The renderer's account of each frame; zeros where nothing is drawn."""
    return torch.zeros(settings.num_frames, *shape) if track is None else track


def write_world(
    settings: WorldSettings,
    out: str | Path,
    *,
    num_workers: int = 1,
    on_clip: Callable[[int], None] = lambda num_done: None,
) -> list[ShardIndex]:
    """Write every shard that is not finished yet; ``on_clip`` hears the number of clips done.

    Returns all indexes, with a row for each clip that failed. ValueError if ``out`` holds a set of
    other settings.
    """
    write_worlds([(settings, out)], num_workers=num_workers, on_clip=on_clip)
    return [read_index(index_path(path)) for path in _paths(settings, Path(out))]


def write_worlds(
    sets: Sequence[tuple[WorldSettings, str | Path]],
    *,
    num_workers: int = 1,
    on_clip: Callable[[int], None] = lambda num_done: None,
) -> None:
    """Write the sets one behind the other, by the same processes; as `write_world`.

    Within a set, shards of the same persons come together: what is there early holds pairs.
    """
    checks.at_once("--workers", num_workers)
    todo: list[tuple[WorldSettings, int, Path]] = []
    num_kept = 0
    for settings, out in sets:
        _claim(Path(out), settings)
        paths = list(enumerate(_paths(settings, Path(out))))
        missing = [n for n, path in paths if not _is_finished(path)]
        num_kept += sum(len(_clip_range(settings, n)) for n, _ in paths if n not in missing)
        rounds = max(1, settings.num_clips // settings.clips_per_person // settings.clips_per_shard)
        missing.sort(key=lambda n, rounds=rounds: (n % rounds, n))
        todo += [(settings, n, paths[n][1]) for n in missing]
    on_clip(num_kept)
    context = multiprocessing.get_context("spawn")
    counter, stopping = context.Value("q", 0), context.Event()
    with ProcessPoolExecutor(
        max(1, min(num_workers, len(todo))), context, _start_worker, (counter, stopping)
    ) as pool:
        try:
            with interrupts_deferred():  # the first tasks start the processes
                pending = {
                    pool.submit(_write_one, settings, n, str(at)) for settings, n, at in todo
                }
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()  # a shard that could not be written stops the run
                on_clip(num_kept + counter.value)
        except BaseException:
            stopping.set()  # at their next clip; one that begins needs what ends with this process
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def is_whole(settings: WorldSettings, out: str | Path) -> bool:
    """Whether ``out`` holds all shards of a set of so many clips, so that none is left to write."""
    return all(_is_finished(path) for path in _paths(settings, Path(out)))


def _paths(settings: WorldSettings, out: Path) -> list[Path]:
    return [out / f"world-{settings.split}-{n:06d}.tar" for n in range(settings.num_shards)]


def _claim(out: Path, settings: WorldSettings) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; shards go into a folder")
    out.mkdir(parents=True, exist_ok=True)
    fields = dataclasses.asdict(settings)
    for name, usual in (("raw", False), ("frame_rate_hz", FRAME_RATE_HZ), ("dialogues", False)):
        if fields[name] == usual:
            del fields[name]  # as sets of before have it
    file, text = out / SETTINGS_FILE, json.dumps(fields, sort_keys=True)
    if file.exists() and file.read_text() != text:
        raise ValueError(f"{out} holds a set of other settings: {file.read_text()}, asked: {text}")
    if not file.exists() and any(out.glob("*.tar")):
        raise ValueError(f"{out} already holds shards of another origin; choose an empty folder")
    write_text_atomically(file, text)


def _is_finished(path: Path) -> bool:
    if not index_path(path).exists():
        return False
    read_index(index_path(path))  # a finished shard that was damaged since is an error, not redone
    return True


def _clip_range(settings: WorldSettings, shard: int) -> range:
    start = shard * settings.clips_per_shard
    return range(start, min(start + settings.clips_per_shard, settings.num_clips))


_counter = None  # one per worker process: clips done, over all workers
_stopping = None  # and whether they are to end


def _start_worker(counter, stopping) -> None:
    global _counter, _stopping
    _counter, _stopping = counter, stopping
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def _write_one(settings: WorldSettings, shard: int, path: str) -> None:
    write_shard(path, _items(settings, shard), raw=settings.raw)


def _items(settings: WorldSettings, shard: int) -> Iterator[Sample | Failure]:
    for index in _clip_range(settings, shard):
        if _stopping is not None and _stopping.is_set():
            raise KeyboardInterrupt
        try:
            yield make_sample(settings, index)
        except Exception as error:  # recorded in the index and reported by the command
            yield Failure(f"clip {index}", f"{type(error).__name__}: {error}")
        if _counter is not None:
            with _counter.get_lock():
                _counter.value += 1
