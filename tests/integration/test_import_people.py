"""Own videos → shards: who is in them and in which split, by manifest, folder, seed or face."""

import csv
import json
import os
import shutil
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch

from avatar_v.shards.loader import read_clip, read_folder
from avatar_v_data import importer
from avatar_v_data.import_plan import cluster_faces, find_sources
from own_videos import SMALL, folder_of, write_clip
from shard_command import run


def test_a_manifest_says_person_scene_caption_and_split(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", "a/1.mp4", "a/2.mp4", "b.mp4", "c.mp4")
    table = tmp_path / "clips.csv"
    table.write_text(
        "file,person,scene,caption,split,licence,consent\n"
        "b.mp4,Bo,,,validation,,\n"
        'a/1.mp4,Ann,kitchen,"says hello, twice",train,CC0-1.0,form 7\na/2.mp4,Ann,,,,,\n'
    )
    lines = tmp_path / "clips.jsonl"
    rows = csv.DictReader(table.read_text().splitlines())
    lines.write_text("\n".join(json.dumps(row) for row in rows))
    for manifest in (table, lines):
        out = tmp_path / f"from_{manifest.name}"
        words = ("--manifest", str(manifest), "--licence", "MIT", *SMALL)
        assert run("import", str(folder), "--out", str(out), *words) == 0
        train = [read_clip(clip).meta for clip in read_folder(out / "train")]
        assert {(m.person, m.scene, m.text, m.licence, m.consent) for m in train} == {
            ("Ann", "kitchen", "says hello, twice", "CC0-1.0", "form 7"),
            ("Ann", "a/2.mp4", "", "MIT", "unknown"),
        }
        assert {clip.person for clip in read_folder(out / "validation")} == {"Bo"}
        report = json.loads((out / importer.REPORT_FILE).read_text())
        assert report["splits"] == {"Ann": "train", "Bo": "validation"}
        assert report["not_in_manifest"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,who\na.mp4,x\n", r"line 2: unknown column 'who'; expected file, person"),
        ("person\nx\n", r"line 2: file ''; expected a path within"),
        ("file\n../a.mp4\n", r"line 2: file '\.\./a\.mp4'; expected a path within"),
        ("file\n/etc/passwd\n", r"line 2: file '/etc/passwd'; expected a path within"),
        ("file\na.mp4\nb.mp4\n", r"line 3: no file 'b\.mp4'"),
        ("file\na.mp4\n./a.mp4\n", r"line 3: a\.mp4 is named twice"),
        ("file,split\na.mp4,test\n", r"line 2: split 'test'; expected train or validation"),
        ("file,person\na.mp4\n", r"line 2: not as many cells"),
        ("file\na.mp4,x\n", r"line 2: not as many cells"),
        ("file,person\na.mp4,A\nc.mp4,\n", r"c\.mp4 has no person"),
        ("file,person,split\na.mp4,A,train\nc.mp4,A,validation\n", "A is in train and in valid"),
        ("", "names no files"),
        ("file\n\xe9\n", "no table in UTF-8"),
    ],
)
def test_a_wrong_manifest_is_one_error(text: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.mp4", "c.mp4"):
        (folder / name).touch()
    table = tmp_path / "clips.csv"
    table.write_bytes(text.encode("latin-1"))
    words = ["import", str(folder), "--out", str(tmp_path / "out"), "--manifest", str(table)]
    words += ["--person", "manifest"] if "has no person" in message.replace("\\", "") else []
    with pytest.raises(ValueError, match=message):
        run(*words, *SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clips.csv", "in"]


def test_validation_persons_are_drawn_by_seed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", *(f"p{n}/x.mp4" for n in range(5)), "p0/y.mp4", frames=6)
    drawn = set()
    for seed in ("0", "0", "1", "2"):
        out = tmp_path / f"out{seed}"
        shutil.rmtree(out, ignore_errors=True)
        words = ("--person", "folder", "--validation", "0.4", "--seed", seed, *SMALL)
        assert run("import", str(folder), "--out", str(out), *words) == 0
        train, held = ({c.person for c in read_folder(out / s)} for s in ("train", "validation"))
        assert (len(train), len(held)) == (3, 2)
        assert not train & held
        drawn.add((seed, *sorted(held)))
    assert len(drawn) == 3  # one seed, one draw
    assert len({held for _, *held in drawn for held in [tuple(held)]}) > 1
    for words, message in (
        (["--person", "folder", "--validation", "1"], "a share from 0 to below 1"),
        (["--validation", "nan"], "a share from 0 to below 1"),
        (["--person", "face"], "leave out --no-face-crop"),
        (["--person", "manifest"], "pass the manifest too"),
    ):
        with pytest.raises(ValueError, match=message):
            run("import", str(folder), "--out", str(tmp_path / "not"), *words, *SMALL)
    one = ("--person", "folder", "--validation", "0.5")
    with pytest.raises(ValueError, match="keeps persons apart and needs two or more"):
        run("import", str(folder / "p0"), "--out", str(tmp_path / "not"), *one, *SMALL)
    assert not list(tmp_path.glob("*not*"))


def test_folders_of_one_name_are_other_persons(tmp_path: Path) -> None:
    for name in ("ada/first/a.mp4", "bo/first/a.mp4", "c.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    persons = [source.parts[0].person for source in find_sources(tmp_path, None, "folder")[0]]
    assert persons == ["ada/first", "bo/first", tmp_path.name]


def test_a_manifest_names_files_as_a_selection_does(tmp_path: Path) -> None:
    """With blanks before them, or bytes that are no UTF-8; a caption may hold any character."""
    (tmp_path / "in").mkdir()
    for name in (b" lead.mp4", b"caf\xe9.mp4"):
        Path(os.fsdecode(os.fsencode(tmp_path / "in") + b"/" + name)).touch()
    files = [source.name for source in find_sources(tmp_path / "in", None, "file")[0]]
    rows = [json.dumps({"file": name, "caption": "a\u2028b"}, ensure_ascii=False) for name in files]
    (tmp_path / "m.jsonl").write_text("\n".join(rows), encoding="utf-8")
    again, _ = find_sources(tmp_path / "in", str(tmp_path / "m.jsonl"), "file")
    assert sorted(source.name for source in again) == files
    assert all(Path(source.path).exists() for source in again)
    (tmp_path / "m.csv").write_text("file,caption\n lead.mp4,a\u2028b\n", encoding="utf-8")
    assert len(find_sources(tmp_path / "in", str(tmp_path / "m.csv"), "file")[0]) == 1


def test_faces_of_one_person_are_joined() -> None:
    generator = torch.Generator().manual_seed(0)
    persons = torch.nn.functional.normalize(torch.randn(3, 128, generator=generator), dim=1)
    order = [1, 1, 0, 2, 0, 1, 2, 2]
    faces = [persons[n] + 0.02 * torch.randn(128, generator=generator) for n in order]
    assert cluster_faces(faces) == [0, 0, 1, 2, 1, 0, 2, 2]
    assert cluster_faces([]) == []


def first_frames(source: Path, target: Path, num: int) -> None:
    """The beginning of a clip, as it is coded."""
    with av.open(str(source)) as before, av.open(str(target), "w") as after:
        kept = [*before.streams.video[:1], *before.streams.audio[:1]]
        streams = {stream.index: after.add_stream_from_template(stream) for stream in kept}
        for packet in before.demux(*kept):
            if packet.dts is not None and packet.dts * packet.time_base < Fraction(num, 25):
                packet.stream = streams[packet.stream.index]
                after.mux(packet)


@pytest.mark.media
@pytest.mark.faces
def test_real_clips_are_cropped_to_faces_which_tell_who_it_is(media: Path, tmp_path: Path) -> None:
    """Two people in one folder, whose files say nothing about who is shown, and an empty room."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name, num in (("talking_head.mp4", 100), ("presenter.mp4", 52)):
        first_frames(media / name, folder / name, num)
    write_clip(folder / "wall.mp4", frames=50)
    words = ("--person", "face", "--frames", "49")
    assert run("import", str(folder), "--out", str(tmp_path / "out"), *words) == 0
    report = json.loads((tmp_path / "out" / importer.REPORT_FILE).read_text())
    reasons = {row["file"]: row["reason"] for row in report["dropped"] if row["frames"] == "0-48"}
    assert reasons == {"wall.mp4": "no face in 49 of 49 frames"}
    assert report["persons"] == {"face-000": ["presenter.mp4"], "face-001": ["talking_head.mp4"]}
    assert report["clips_of"] == {"presenter.mp4": 1, "talking_head.mp4": 2, "wall.mp4": 0}
    samples = [read_clip(clip) for clip in read_folder(tmp_path / "out")]
    assert [sample.meta.person for sample in samples] == ["face-000", "face-001", "face-001"]
    for sample in samples:
        assert sample.valid.all()
        mouth = sample.mouth_box.mean(0)
        assert 0.3 < (mouth[0] + mouth[2]) / 2 < 0.7
        assert 0.5 < (mouth[1] + mouth[3]) / 2 < 0.9
    assert samples[1].motion[:, 0].std() > 0.05  # she speaks
