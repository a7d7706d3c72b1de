"""Two drawn persons talk: turns, what the one who listens does, and what clips and sets keep of it.

What a motion network can learn from it is measured elsewhere; here the truth is looked at.
"""

import hashlib
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from avatar_v.motion.listening import REST_S, listening
from avatar_v.shards.loader import read_clip
from avatar_v.shards.writer import write_shard
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLE_RATE_HZ
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.dialogue import (
    BREAK_S,
    GAP_S,
    DialogueSide,
    ListeningHabits,
    converse,
    listening_events,
    sample_listening,
)
from avatar_v.world.motion import motion_track
from avatar_v.world.speech import frame_times_s
from avatar_v.world.style import sample_style
from avatar_v.world.timing import PhraseEnd
from avatar_v.world.voice import sample_voice
from avatar_v_data.world_set import SETTINGS_FILE, _claim, clip_ids, make_sample, partner_id
from avatar_v_data.world_settings import WorldSettings
from shard_command import run

PITCH, BROW = MOTION_NAMES.index("pitch"), MOTION_NAMES.index("brow")
GAZE = [MOTION_NAMES.index(name) for name in ("gaze_x", "gaze_y")]
LONG = 751  # frames, 30 s


def sides(
    dialogue: int, one: int, other: int, num_frames: int = LONG
) -> tuple[DialogueSide, DialogueSide]:
    voices = sample_voice(one), sample_voice(other)
    habits = sample_style(one), sample_style(other)
    return converse(dialogue, voices, habits, num_frames)


def listener(person: int, dialogue: int, partner: int, num_frames: int = LONG) -> WorldClip:
    return make_clip(
        person, 0, dialogue,
        num_frames=num_frames, size=64, render_video=False, listens_to=partner,
    )  # fmt: skip


def test_turns_alternate_and_nobody_is_interrupted() -> None:
    for dialogue in range(2):
        pair = sides(dialogue, 4, 9)
        turns = sorted((*turn, who) for who, side in enumerate(pair) for turn in side.turns_s)
        assert len(turns) > 3
        for before, after in itertools.pairwise(turns):
            assert GAP_S[0] <= after[0] - before[1] <= GAP_S[1]
            assert before[2] != after[2]
        for who, side in enumerate(pair):
            own = [turn[:2] for turn in turns if turn[2] == who]
            assert len(side.speech.words) > 5
            for word in side.speech.words:
                assert sum(start <= word.start_s < stop for start, stop in own) == 1, word
            assert len(side.speech.audio) == LONG * 640
        assert not {segment.whispered for side in pair for segment in side.speech.segments} - {
            False
        }
    begun = {bool(sides(n, 4, 9, 9)[0].turns_s) for n in range(8)}
    assert begun == {True, False}  # one or the other begins


def test_a_dialogue_is_the_same_from_either_side() -> None:
    here, there = sides(7, 4, 9, 101), sides(7, 9, 4, 101)
    for one, other in zip(here, reversed(there), strict=True):
        assert torch.equal(one.speech.audio, other.speech.audio)
        assert (one.turns_s, one.ends) == (other.turns_s, other.ends)


def test_a_longer_dialogue_begins_with_the_shorter() -> None:
    margin, num = int(0.13 * SAMPLE_RATE_HZ), 200  # the last smoothing window, as in `speak`
    for short, long in zip(sides(3, 4, 9, num), sides(3, 4, 9, LONG), strict=True):
        assert torch.equal(short.speech.phonemes, long.speech.phonemes[:num])
        assert long.speech.segments[: len(short.speech.segments)] == short.speech.segments
        assert long.ends[: len(short.ends)] == short.ends
        cut = len(short.speech.audio) - margin
        assert torch.equal(short.speech.audio[:cut], long.speech.audio[:cut])
    short, long = listener(4, 3, 9, num), listener(4, 3, 9)
    assert long.listening[: len(short.listening)] == short.listening
    # fp32 of the same fp64 sums of more terms; the last frames' mouth is in the smoothing window
    assert torch.allclose(short.motion[:-5], long.motion[: num - 5], atol=1e-6)


def test_who_listens_nods_where_the_truth_says_and_nowhere_else() -> None:
    nods = 0
    for person in range(3):
        clip = listener(person, person, 50 + person)
        own = sides(person, person, 50 + person)[0].speech
        alone = motion_track(own, sample_style(person), seed=clip.seed)
        times_s = torch.from_numpy(frame_times_s(LONG))
        lower = alone[:, PITCH] - clip.motion[:, PITCH]
        inside = torch.zeros(LONG, dtype=torch.bool)
        for event in (e for e in clip.listening if e.nods):
            during = (event.start_s < times_s) & (times_s < event.stop_s)
            if during.any() and event.stop_s < times_s[-1]:
                # a frame is at most 20 ms from the deepest moment: cos² of 8 degrees
                assert 0.98 * event.nod_rad < lower[during].max() <= event.nod_rad + 1e-6
                nods += 1
            inside |= during
        assert torch.equal(lower != 0, inside & (lower > 0))
        others = [i for i in range(len(MOTION_NAMES)) if i not in (PITCH, BROW, *GAZE)]
        assert torch.equal(clip.motion[:, others], alone[:, others])
        assert clip.motion[:, BROW].abs().max() <= 1
    assert nods > 5


def test_the_gaze_rests_on_a_partner_who_speaks() -> None:
    clip, (own, partner) = listener(4, 3, 9), sides(3, 4, 9)
    alone = motion_track(own.speech, sample_style(4), seed=clip.seed)[:, GAZE]
    kept, times_s = sample_listening(4).gaze_kept, frame_times_s(LONG)
    for number, time_s in enumerate(times_s.tolist()):
        near = [(start + 0.2 <= time_s <= stop) for start, stop in partner.turns_s]
        far = [time_s <= start or time_s >= stop + 0.2 for start, stop in partner.turns_s]
        if any(near):
            assert torch.allclose(clip.motion[number, GAZE], kept * alone[number], atol=1e-6)
        elif all(far):
            assert torch.equal(clip.motion[number, GAZE], alone[number])


def test_statements_questions_and_breaks_are_answered_as_often_as_habits_have_it() -> None:
    count, habits = 600, sample_listening(1)
    for kind, low, high in (("statement", 0.7, 1), ("break", 0.02, 0.2), ("question", 0, 0)):
        ends = [PhraseEnd(kind, 4.0 * number) for number in range(count)]  # pyright: ignore[reportArgumentType]
        events = listening_events(5, habits, ends)
        assert low <= sum(event.nods for event in events) / count <= high
        assert {event.brow > 0 for event in events} == {kind == "question"}
        assert all(0.15 <= event.start_s - event.end_s <= 0.4 for event in events)
        assert {event.dips for event in events if event.nods} <= {1, 2}
        assert {event.dips for event in events if not event.nods} <= {0}


def test_a_nod_keeps_its_distance_to_the_one_before() -> None:
    always = ListeningHabits(3, 1.0, 1.0, 0.1, 1.0, 0.6, 0.3)
    ends = [PhraseEnd("statement", 0.5 * number) for number in range(40)]
    nods = [event for event in listening_events(5, always, ends) if event.nods]
    assert len(nods) > 5
    for before, after in itertools.pairwise(nods):
        assert after.start_s >= before.stop_s + REST_S


def test_a_rule_on_pauses_nods_at_most_breaks_where_the_truth_does_not() -> None:
    """What a network can be better at: the rule of motion/listening.py cannot tell the kinds."""
    seen = Counter()
    for number in range(6):
        clip = listener(number, 37 * number, 500 + number)
        assert clip.heard is not None
        starts_s = [nod.start / FRAME_RATE_HZ for nod in listening([clip.heard], 0).nods]
        for event in clip.listening:
            ruled = any(0.2 < start_s - event.end_s < 0.8 for start_s in starts_s)
            seen[event.kind, "all"] += 1
            seen[event.kind, "rule"] += ruled
            seen[event.kind, "truth"] += event.nods
    assert seen["statement", "truth"] > 0.7 * seen["statement", "all"] > 10
    assert seen["break", "rule"] > 0.5 * seen["break", "all"] > 1
    assert seen["break", "truth"] < 0.4 * seen["break", "all"]
    assert seen["question", "truth"] == 0 < seen["question", "rule"]
    assert BREAK_S[0] > 0.24


def test_clips_without_a_partner_are_those_of_before() -> None:
    """The digest was taken before there were dialogues."""
    clip = make_clip(3, 4, 5, num_frames=101, size=64, render_video=False)
    parts = b"".join(x.numpy().tobytes() for x in (clip.audio, clip.motion, clip.phonemes))
    digest = hashlib.sha256(parts + clip.transcript.encode()).hexdigest()
    assert digest == "7557a58479fc4a45991cffbb3518b69d64be30f94cf14b356f766ff5f2fc5e4b"
    assert (clip.heard, clip.listening) == (None, ())


def test_nobody_listens_to_themselves_or_to_nobody_known() -> None:
    with pytest.raises(ValueError, match="two persons, got 4 twice"):
        listener(4, 3, 4)
    with pytest.raises(ValueError, match="in no split"):
        listener(4, 3, 5_000_000)
    with pytest.raises(ValueError, match="in no split"):
        sample_listening(5_000_000)
    with pytest.raises(ValueError, match="at least 1 frame, got 0"):
        sides(3, 4, 9, 0)


def test_partners_are_others_of_the_split() -> None:
    settings = WorldSettings(num_clips=400, split="test", dialogues=True)
    for index in range(settings.num_clips):
        person, scene, speech = clip_ids(settings, index)
        partner = partner_id(settings, person, scene, speech)
        assert partner is not None
        assert partner != person
        assert 2_000_000 <= partner < 3_000_000
    assert partner_id(WorldSettings(num_clips=400), 1, 2, 3) is None


def test_sets_of_dialogues_have_the_same_bytes_twice(tmp_path: Path) -> None:
    """By the command, and here in the same way of the same settings."""
    words = ["world", "--out", str(tmp_path), "--clips", "2", "--clips-per-person", "2"]
    words += ["--frames", "25", "--motion-only", "--raw"]
    assert run(*words, "--dialogues") == 0
    settings = WorldSettings(
        num_clips=2, num_frames=25, clips_per_person=2, pictures=False, raw=True, dialogues=True
    )
    index = write_shard(
        tmp_path / "again.tar", (make_sample(settings, n) for n in (0, 1)), raw=True
    )
    (shard,) = tmp_path.glob("world-*.tar")
    assert shard.read_bytes() == (tmp_path / "again.tar").read_bytes()
    for clip in index.clips:
        sample = read_clip(clip, decode_video=False)
        assert sample.heard is not None
        assert not torch.equal(sample.heard, sample.audio)
    assert json.loads((tmp_path / SETTINGS_FILE).read_text())["dialogues"] is True
    with pytest.raises(ValueError, match="other settings"):
        run(*words)


def test_settings_of_other_sets_do_not_speak_of_dialogues(tmp_path: Path) -> None:
    _claim(tmp_path, WorldSettings(num_clips=4))
    assert "dialogues" not in (tmp_path / SETTINGS_FILE).read_text()
