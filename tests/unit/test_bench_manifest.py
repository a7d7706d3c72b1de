"""bench/manifest.py, world70.py, pairs.py: one error a fault, content that regenerates."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch

from avatar_v.media.reading import read_audio, read_video
from avatar_v_eval import cli
from avatar_v_eval.bench import world70
from avatar_v_eval.bench.generated import add_generated, parse_scenes
from avatar_v_eval.bench.manifest import (
    BenchManifest,
    file_fault,
    load_manifest,
    write_manifest,
)
from avatar_v_eval.bench.pairs import About, build_cases
from avatar_v_eval.bench.world70 import (
    WORLD70,
    DrawnSet,
    case_content,
    differing,
    drawn_case,
    frozen_contents,
    write_world,
)
from bench_cases import make_manifest, world_clip, write_video


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> BenchManifest:
    plan = DrawnSet(name="w", num_cases=2, num_frames=25, first=11, size=64)
    return make_manifest(tmp_path_factory.mktemp("made") / "w", plan)


def test_a_manifest_round_trips(made: BenchManifest):
    assert load_manifest(made.root) == made
    assert load_manifest(made.root / "manifest.json").fingerprint == made.fingerprint
    assert not any(file_fault(made, case) for case in made.cases)


def test_files_are_what_the_world_rendered(made: BenchManifest):
    plan = DrawnSet(name="w", num_cases=2, num_frames=25, first=11, size=64)
    drawn = drawn_case(plan, 0)
    reference, driving = drawn.reference, drawn.target
    case = made.cases[0]
    assert reference.person_id == driving.person_id
    assert reference.scene_id != driving.scene_id
    assert reference.sentence_id != driving.sentence_id
    torch.testing.assert_close(read_audio(made.path(case, "audio")), driving.audio, atol=0, rtol=0)
    image = read_video(made.path(case, "image"))
    assert torch.equal(image[0], driving.video[0])
    for role, clip in (("truth", driving), ("reference", reference)):
        frames = read_video(made.path(case, role))
        assert frames.shape == clip.video.shape
        # H.264 at crf 16 with colour at half the resolution is some grey levels off
        assert (frames.float() - clip.video.float()).abs().mean() < 10


def test_the_first_cases_are_a_set_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small = DrawnSet(name="w", num_cases=3, num_frames=6, first=11, size=32)
    monkeypatch.setattr(world70, "WORLD70", small)
    whole, contents = write_world(tmp_path / "whole", small)
    part, some = write_world(tmp_path / "part", world70.first_cases(2))
    assert (part.name, len(part.cases)) == ("w_first2", 2)
    assert some == dict(list(contents.items())[:2])
    assert part.fingerprint != whole.fingerprint
    assert world70.first_cases(3) == world70.first_cases(None) == small
    for num in (0, 4):
        with pytest.raises(ValueError, match=f"--cases {num}: expected 1 to 3"):
            world70.first_cases(num)


def test_content_is_the_same_every_time_and_differs_by_case(tmp_path: Path):
    plan = DrawnSet(name="w", num_cases=2, num_frames=6, first=11, size=32)
    first, second = (write_world(tmp_path / name, plan) for name in "ab")
    assert first[1] == second[1]
    assert first[0].content == second[0].content
    assert len(set(first[1].values())) == 2
    assert differing(first[1], second[1]) == []
    assert differing({**first[1], "w_01": first[1]["w_00"]}, second[1]) == ["w_01"]
    assert not first[1]["w_00"].near(first[1]["w_01"])
    with pytest.raises(ValueError, match="not empty"):
        write_world(tmp_path / "a", plan)


def test_world70_is_the_frozen_one():
    frozen = frozen_contents()
    assert len(frozen) == WORLD70.num_cases == 70
    drawn = drawn_case(WORLD70, 69)
    assert case_content(drawn.reference, drawn.target).near(frozen["world70_69"])
    for (_, one), (_, other) in itertools.combinations(frozen.items(), 2):
        assert not one.near(other)


def test_rounding_leaves_a_case_what_it_is_and_nothing_else_does(tmp_path: Path):
    plan = DrawnSet(name="w", num_cases=1, num_frames=6, first=11, size=32)
    _, contents = write_world(tmp_path / "a", plan)
    drawn = drawn_case(plan, 0)
    reference, driving = drawn.reference, drawn.target
    assert reference.video is not None
    video, audio = reference.video.clone(), reference.audio * (1 + 1e-6)
    video[2, 0, 5, 5] ^= 1  # as another processor may round it
    rounded = case_content(dataclasses.replace(reference, video=video, audio=audio), driving)
    assert rounded.near(contents["w_00"])
    video[2] = video[2].flip(-1).roll(3, -1) // 2
    louder = dataclasses.replace(reference, audio=1.1 * reference.audio)
    for change in (dataclasses.replace(reference, video=video), louder):
        assert not case_content(change, driving).near(contents["w_00"])
    known = {"w_00": dataclasses.replace(rounded, heard=contents["w_00"].heard)}
    manifest, settled = write_world(tmp_path / "b", plan, frozen=known)
    assert settled == known  # so that the set has one name on every processor
    assert manifest.content == write_world(tmp_path / "c", plan, frozen=known)[0].content


def edited(made: BenchManifest, folder: Path, change) -> Path:
    raw = json.loads((made.root / "manifest.json").read_text())
    change(raw)
    (folder / "manifest.json").write_text(json.dumps(raw))
    return folder


def one(key: str, value: object):
    return lambda raw: raw["cases"][1].update({key: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw["cases"][1].update(id="w_00"), "given twice: w_00"),
        (one("condition", "crossed"), "condition is one of .*'crossed'"),
        (one("id", "a/b"), "an id names files"),
        (one("language", ""), "language is empty"),
        (one("audio", "../x.wav"), "audio: expected a path below"),
        (one("image", "/etc/passwd"), "image: expected a path below"),
        (one("prompt", 3), "prompt is text, got 3"),
        (one("colour", "red"), r"cases\[1\]: unknown keys \['colour'\]"),
        (one("sha256", {}), "sha256 of reference is 64"),
        (one("sha256", []), "sha256 is an object, got"),
        (one("truth", None), "sha256 of truth, which the case does not have"),
        (lambda raw: raw["cases"][0].pop("licence"), r"cases\[0\]: .*missing keys \['licence'\]"),
        (lambda raw: raw.update(cases=[]), "at least one case"),
        (lambda raw: raw.update(cases={}), "cases is a list"),
        (lambda raw: raw.update(faces="painted"), "faces is one of"),
        (lambda raw: raw.pop("name"), r"missing keys \['name'\]"),
    ],
)
def test_each_fault_is_one_clear_error(made: BenchManifest, tmp_path: Path, change, words: str):
    with pytest.raises(ValueError, match=words) as error:
        load_manifest(edited(made, tmp_path, change))
    assert "manifest.json" in str(error.value)


def test_no_manifest_and_no_json(tmp_path: Path):
    with pytest.raises(ValueError, match="no manifest at"):
        load_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load_manifest(tmp_path)


def test_missing_and_changed_files_are_named(tmp_path: Path):
    made = make_manifest(
        tmp_path / "w", DrawnSet("w", num_cases=2, num_frames=6, first=11, size=32)
    )
    first, second = made.cases
    made.path(first, "audio").unlink()
    with made.path(second, "truth").open("ab") as file:
        file.write(b"x")
    assert file_fault(made, first) == "audio audio/w_00.wav is missing"
    assert "truth truth/w_01.mp4 has changed: sha256" in file_fault(made, second)


def test_a_link_out_of_the_folder_costs_its_case_even_if_its_contents_are_right(tmp_path: Path):
    made = make_manifest(
        tmp_path / "w", DrawnSet("w", num_cases=1, num_frames=6, first=11, size=32)
    )
    (case,) = made.cases
    file = made.path(case, "audio")
    file.rename(tmp_path / "private.wav")
    file.symlink_to(tmp_path / "private.wav")
    assert "private.wav, out of" in file_fault(made, case)
    assert len(load_manifest(made.root).cases) == 1
    with pytest.raises(ValueError, match=r"case w_00, audio: .* out of"):
        made.path(case, "audio")


def test_a_fault_is_never_written(made: BenchManifest, tmp_path: Path):
    twins = BenchManifest(tmp_path, "x", "drawn", (made.cases[0],) * 2)
    with pytest.raises(ValueError, match="given twice"):
        write_manifest(twins)
    assert not list(tmp_path.iterdir())


def test_cases_from_pairs_of_clips(tmp_path: Path):
    for person in range(2):
        for scene in range(2):
            clip = world_clip(person, 30, scene=scene)
            write_video(tmp_path / f"my/p {person}/s{scene}.mp4", clip.video, clip.audio)
    about = About(faces="drawn", licence="CC0", consent="given")
    made = build_cases(tmp_path / "my", tmp_path / "out", about)
    assert [case.id for case in made.cases] == ["p-0_s0", "p-0_s1", "p-1_s0", "p-1_s1"]
    again = load_manifest(tmp_path / "out")
    assert not any(file_fault(again, case) for case in again.cases)
    case = made.cases[0]
    assert (case.reference, case.truth) == ("video/p-0_s1.mp4", "video/p-0_s0.mp4")
    assert (case.person, case.condition, case.licence) == ("p 0", "cross", "CC0")
    truth = read_video(made.path(case, "truth"))
    assert len(truth) == len(read_audio(made.path(case, "audio"))) // 640
    again = read_video(made.path(case, "image"))[0].float() - truth[0].float()
    assert again.abs().mean() < 10  # the truth was encoded once more


def test_scenes_are_folders_and_conditions_follow(tmp_path: Path):
    clip = world_clip(0, 26)
    for name in ("p/desk/a", "p/desk/b", "p/park/c", "q/desk/a", "q/desk/b"):
        write_video(tmp_path / f"my/{name}.mp4", clip.video, clip.audio)
    made = build_cases(tmp_path / "my", tmp_path / "out", About(faces="drawn"), name="mine")
    assert (made.name, load_manifest(tmp_path / "out").name) == ("mine", "mine")
    assert [(case.id, case.reference, case.condition) for case in made.cases] == [
        ("p_desk_a", "video/p_desk_b.mp4", "same"),
        ("p_desk_b", "video/p_park_c.mp4", "cross"),
        ("p_park_c", "video/p_desk_a.mp4", "cross"),
        ("q_desk_a", "video/q_desk_b.mp4", "same"),
        ("q_desk_b", "video/q_desk_a.mp4", "same"),
    ]


def test_clips_without_scenes_are_as_they_are_said_to_be(tmp_path: Path, capsys):
    clip = world_clip(0, 26)
    for name in ("p/a", "p/b"):
        write_video(tmp_path / f"my/{name}.mp4", clip.video, clip.audio)
    words = ["cases", "build", str(tmp_path / "my"), "--one-scene", "--name", "mine", "--out"]
    assert cli.main([*words, str(tmp_path / "out")]) == 0
    assert "mine, 2 cases (2 same)" in capsys.readouterr().out
    write_video(tmp_path / "my/p/desk/c.mp4", clip.video, clip.audio)
    with pytest.raises(ValueError, match="p has clips beside folders of scenes"):
        build_cases(tmp_path / "my", tmp_path / "other", About(faces="drawn"))


@pytest.mark.parametrize("fault", ["nobody", "alone", "silent", "short", "full"])
def test_pairs_that_make_no_case(tmp_path: Path, fault: str):
    clip = world_clip(0, 30)
    (tmp_path / "my").mkdir()
    if fault != "nobody":
        write_video(tmp_path / "my/p/a.mp4", clip.video, clip.audio)
    if fault in ("silent", "short", "full"):
        frames, audio = clip.video, None if fault == "silent" else clip.audio
        if fault == "short":
            frames, audio = frames[:10], clip.audio[:6400]
        write_video(tmp_path / "my/p/b.mp4", frames, audio)
    if fault == "full":
        (tmp_path / "out").mkdir()
        (tmp_path / "out/x").write_text("")
    words = {
        "nobody": "expected PERSON/CLIP.mp4",
        "alone": "has one clip",
        "silent": "b.mp4: no sound",
        "short": r"b.mp4: 0.40 s",
        "full": "not empty",
    }[fault]
    with pytest.raises(ValueError, match=words):
        build_cases(tmp_path / "my", tmp_path / "out", About(faces="drawn"))


def test_scenes_of_a_command_and_of_prompts(made: BenchManifest, tmp_path: Path):
    words = tmp_path / "words.sh"
    words.write_text(f'echo "$1" >> {tmp_path}/words; cp {made.path(made.cases[1], "image")} $2')
    scenes = parse_scenes(f"command:sh {words} {{prompt}} {{out}}", tmp_path / "made", 60.0, 1)
    out = add_generated(made, tmp_path / "out", scenes, ["a park", "a room"])
    asked = [("a park", "a room")[i % 2] for i in range(len(made.cases))]
    assert (tmp_path / "words").read_text().splitlines() == asked
    added = out.cases[len(made.cases) :]
    assert [case.prompt for case in added] == asked
    assert {case.sha256["image"] for case in added} == {made.cases[1].sha256["image"]}
    assert [case.sha256["audio"] for case in added] == [c.sha256["audio"] for c in made.cases]
    with pytest.raises(ValueError, match="not empty"):
        add_generated(made, tmp_path / "out", scenes, [])


def test_scenes_that_are_not_made(made: BenchManifest, tmp_path: Path):
    (tmp_path / "pictures").mkdir()
    scenes = parse_scenes(str(tmp_path / "pictures"), tmp_path / "made", 60.0, 1)
    with pytest.raises(ValueError, match=r"the scene of case w_00: missing: no w_00\.png"):
        add_generated(made, tmp_path / "out", scenes, [])
    wordless = dataclasses.replace(made, cases=(dataclasses.replace(made.cases[0], prompt=""),))
    with pytest.raises(ValueError, match="case w_00: no words: pass --prompts"):
        add_generated(wordless, tmp_path / "other", scenes, [])
    for text in ("command:cp {image} {out}", "pipeline:small?seed=1"):
        with pytest.raises(ValueError, match=r"of \{prompt\} and \{reference\}|without options"):
            parse_scenes(text, tmp_path / "made", 60.0, 1)
