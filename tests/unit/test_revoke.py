"""avatar-v-data revoke: all that is there of a person is found, what can be goes, nothing else."""

import dataclasses
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars
import pytest

from avatar_v.safety.consent import FILMED, SUFFIX, VERSION, Consent, save_consent
from avatar_v.shards.folder import read_indexes
from avatar_v.shards.pairs import encode_pair
from avatar_v.shards.writer import write_shard
from avatar_v_data import cli, revoke
from avatar_v_data.curation.person import PersonStage
from avatar_v_data.curation.reconcile import CurationTask
from avatar_v_data.curation.stages import FootageRecording
from avatar_v_data.curation.store import CurationStore, Row
from tiny_run import make_clip, make_pair

ADA, GRACE = "Ada Example", "Grace Example"
FACE, OTHER = np.eye(128)[0], np.eye(128)[1]


def clip(index: int, person: str, source: str):
    sample = make_clip(index)
    return dataclasses.replace(
        sample, meta=dataclasses.replace(sample.meta, person=person, source=source)
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two persons in all that the library writes. The engine knows them by numbers."""
    shards = tmp_path / "shards"
    mixed = [clip(i, ADA if i % 2 else GRACE, f"{'ag'[i % 2 == 0]}{i}.mp4") for i in range(4)]
    write_shard(shards / "train" / "clips-000000.tar", mixed)
    write_shard(shards / "train" / "clips-000001.tar", [clip(5, ADA, "a5.mp4")])
    write_shard(shards / "other" / "clips-000000.tar", [clip(6, GRACE, "g6.mp4")])
    pairs = [
        dataclasses.replace(make_pair(i), clip=clip(i, person, f"{i}.mp4"))
        for i, person in ((7, ADA), (8, GRACE))
    ]
    write_shard(shards / "pairs" / "pairs-000000.tar", map(encode_pair, pairs))

    store = CurationStore(tmp_path / "curated")
    for name, face in (("film/one.mp4", FACE), ("film/two.mp4", OTHER)):
        key = hashlib.sha256(name.encode()).hexdigest()[:32]
        clips = [{"start": 0, "stop": 100}]
        store.commit([
            Row("clips", f"c{key}", name, {"clips": clips}),
            Row("person", f"p{key}", name, {"clips": [{"face": list(face * 0.999)}]}),
        ])  # fmt: skip
        (store.files / f"p{key}.tar").write_bytes(b"samples")
    (store.files / "of no row.tar").write_bytes(b"samples")  # its worker was killed
    (store.folder / "results" / "person" / "part.damaged").write_bytes(b"faces")
    rows = [
        {"file": "film/one.mp4", "start": 0, "stop": 100, "person": "person-00007"},
        {"file": "film/two.mp4", "start": 0, "stop": 100, "person": "person-00008"},
    ]
    chosen = tmp_path / "curated" / "selected"
    chosen.mkdir()
    polars.DataFrame(rows).write_parquet(chosen / "clips.parquet")
    edges = {"one": ["film/one.mp4:0-100", "x"], "other": ["film/three.mp4:5-9", "y"]}
    polars.DataFrame(edges).write_parquet(chosen / "edges.parquet")
    graph = {"clip": ["film/one.mp4:0-100", "film/two.mp4:0-100"], "near": [[], [0]]}
    polars.DataFrame(graph).write_parquet(tmp_path / "curated" / "graph.parquet")
    (chosen / "watch").mkdir()
    (chosen / "watch" / "0000.mp4").write_bytes(b"a clip")
    (chosen / "report.json").write_text(json.dumps({"shots": {"film/one.mp4": [[0, 100]]}}))
    (tmp_path / "curated" / "run.json").write_text(json.dumps({"footage": str(tmp_path)}))
    (chosen / "a2v.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "own.csv").write_text(f"file,person\na5.mp4,{ADA}\ng6.mp4,{GRACE}\n")
    for name in ("film/one.mp4", "film/two.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"film")

    for name, face in ((ADA, FACE), (GRACE, OTHER)):
        consent = Consent(VERSION, name, "2026-11-01", "2127-01-01", "", "", None, "", FILMED, "",
                          tuple(1.4 * face))  # fmt: skip
        save_consent(tmp_path / f"{name.split()[0].lower()}{SUFFIX}", consent)
    for run, train, start in (
        ("first", "shards/train", None),
        ("second", "shards/other", "runs/first/weights"),
        ("third", "shards/other", None),
    ):
        folder = tmp_path / "runs" / run
        (folder / "weights").mkdir(parents=True)
        values = {"data": {"init_args": {"train": train}}, "model": {"init_from": start}}
        (folder / "recipe.yaml").write_text(json.dumps(values))
    (tmp_path / "talk.json").write_text(json.dumps({"consented": {"person": ADA}}))
    (tmp_path / "notes.md").write_text(f"We thank {ADA}.\n")
    return tmp_path


def bytes_of(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def test_nothing_is_changed_without_apply(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = bytes_of(place)
    assert cli.main(["revoke", str(place), "--record", str(place / f"ada{SUFFIX}")]) == 1
    assert bytes_of(place) == before
    said = capsys.readouterr().out
    for words in ("train/clips-000000.tar: 2 of 4 clips", "clips-000001.tar: 1 of 1 clip",
                  "pairs-000000.tar: 1 of 2 clips", "clips.parquet: 1 of 2 rows",
                  "edges.parquet: 1 of 2 rows",
                  "graph.parquet: 1 of 2 rows; select makes it anew",
                  "a2v.jsonl: 1 of 2 lines", "own.csv: 1 of 2 lines",
                  "curated: results of 1 recording, of others in them, too",
                  "selected/watch: its clips and pictures",
                  "selected/report.json: the numbers of a report; select makes one in another",
                  f"ada{SUFFIX}: a record of consent",
                  "film/one.mp4: a recording", "runs/first: weights that were trained",
                  "runs/second: weights that begin", "talk.json: the record of a video",
                  "notes.md: says the name", "--apply removes 12 things"):  # fmt: skip
        assert words in said, words
    assert "two.mp4" not in said
    assert "third" not in said


def test_what_can_be_removed_is_gone_and_the_others_stay(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["revoke", str(place), "--record", str(place / f"ada{SUFFIX}"), "--apply"]
    assert cli.main(words) == 1  # weights and recordings are left
    persons = [c.person for index in read_indexes(place / "shards") for c in index.clips]
    assert persons == [GRACE] * 4
    assert not (place / "shards" / "train" / "clips-000001.tar").exists()
    store = CurationStore(place / "curated")
    assert store.recordings() == {"film/two.mp4"}
    assert len(list(store.files.iterdir())) == 1
    assert not list((place / "curated").rglob("*.damaged"))
    kept = polars.read_parquet(place / "curated" / "selected" / "clips.parquet")
    assert kept["person"].to_list() == ["person-00008"]
    assert (place / "own.csv").read_text().splitlines() == ["file,person", f"g6.mp4,{GRACE}"]
    assert not (place / "curated" / "graph.parquet").exists()
    assert not (place / f"ada{SUFFIX}").exists()
    assert not (place / "curated" / "selected" / "watch").exists()
    assert not (place / "curated" / "selected" / "report.json").exists()
    assert (place / f"grace{SUFFIX}").exists()
    left = [name for name, data in bytes_of(place).items() if ADA.encode() in data]
    assert sorted(left) == ["notes.md", "talk.json"]

    said = capsys.readouterr().out
    assert "runs/first: weights that were trained" in said
    assert "film/one.mp4: a recording" in said
    for path in ("notes.md", "talk.json"):
        (place / path).unlink()
    for told in ("film/one.mp4: a recording with a person who withdrew before", ""):
        assert cli.main(["revoke", str(place), "--person", "Gracie Example"]) == 2
        out, err = capsys.readouterr()
        assert told in out
        assert bool(out) == bool(told)
        assert "nothing is there of 'Gracie Example'" in err
        assert f"nearest: {GRACE!r}" in err
        (place / "film" / "one.mp4").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["."], "name the person"), (["nowhere", "--person", "x"], "no such folder")],
)
def test_bad_words_are_one_line(
    words: list[str], said: str, place: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(place)
    assert cli.main(["revoke", *words]) == 2
    assert said in capsys.readouterr().err


def test_recordings_are_named_where_their_run_found_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["revoke", str(place / "curated"), "--person", "person-00007"]
    assert cli.main(words) == 1
    assert f"{place}/film/one.mp4: a recording: an import" in capsys.readouterr().out


def test_a_face_is_named_by_results_that_belong_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run keeps what older plans gave, whose clips have other numbers, and drawn faces may lie
    beside filmed ones."""
    store, film = CurationStore(tmp_path / "run"), "film.mp4"
    ada, grace = ({"face": face.tolist()} for face in (FACE, OTHER))
    store.commit([
        Row("clips", "c-old", film, {"clips": [{"start": 500, "stop": 700}]}),
        Row("person", "p-old", film, {"clips": [ada]}),
        Row("clips", "c", film, {"clips": [{"start": 0}, {"start": 500}]}),
        Row("person", "p", film, {"clips": [grace, ada]}),
        Row("person", "p-drawn", "drawn.mp4", {"clips": [{"face": [1.0] + 63 * [0.0]}]}),
    ])  # fmt: skip
    task = CurationTask(PersonStage(), FootageRecording(film, film, ""), "p", {"clips": "c"})
    monkeypatch.setattr(revoke, "opened", lambda folder: SimpleNamespace(tasks=[task]))
    rows = [(film, 0, 100, "person-grace"), (film, 500, 700, "person-ada"),
            ("own.mp4", 0, 100, "person-grace")]  # fmt: skip
    table = polars.DataFrame(rows, schema=["file", "start", "stop", "person"], orient="row")
    table.write_parquet(tmp_path / "clips.parquet")
    consent = Consent(VERSION, ADA, "2026-11-01", "2127-01-01", "", "", None, "", FILMED, "",
                      tuple(FACE))  # fmt: skip
    save_consent(tmp_path / f"ada{SUFFIX}", consent)
    words = ["revoke", str(tmp_path), "--record", str(tmp_path / f"ada{SUFFIX}"), "--apply"]
    assert cli.main(words) == 0
    persons = polars.read_parquet(tmp_path / "clips.parquet")["person"].to_list()
    assert persons == ["person-grace"] * 2
    assert CurationStore(tmp_path / "run").recordings() == {"drawn.mp4"}


def test_names_clips_and_recordings_that_belong_together_are_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another selection has another name for the person, a file's name is somebody else's in
    another folder, and a copy of the recording is one no more when that is gone."""
    theirs, others = "film.mp4:0-100", "other.mp4:0-100"
    for folder, name in (("one", "person-b"), ("two", "person-a"), ("files", "film.mp4")):
        own = [clip(0, name, "film.mp4"), clip(1, GRACE, "other.mp4")]
        write_shard(tmp_path / folder / "a.tar", own[: 1 if folder == "files" else 2])
    write_shard(tmp_path / "elsewhere" / "a.tar", [clip(2, "film.mp4", "film.mp4")])
    persons = {"clip": [theirs, others], "person": ["person-a", GRACE]}
    store = CurationStore(tmp_path / "run")
    polars.DataFrame(persons).write_parquet(store.folder / "graph.parquet")
    for name in ("film.mp4", "copy.mp4", "part.mp4", "other.mp4"):
        store.commit([Row("probe", name, name, {})])
    copies = {"copy.mp4": [[[0, 9]], "prints: shows", ["film.mp4"]], "part.mp4": [[[0, 9]], "", []]}
    (store.folder / "left_out.json").write_text(json.dumps({"left_out": copies}))
    assert cli.main(["revoke", str(tmp_path), "--person", "person-b", "--apply"]) == 1
    left = [(Path(i.shard).parent.name, c.person) for i in read_indexes(tmp_path) for c in i.clips]
    assert left == [("elsewhere", "film.mp4"), ("one", GRACE), ("two", GRACE)]
    assert CurationStore(store.folder).recordings() == {"part.mp4", "other.mp4"}
    assert "clips of the person under the name film.mp4" in capsys.readouterr().out


def test_a_removal_that_was_stopped_is_made_again(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(place)
    words = ["revoke", str(place), "--record", str(place / f"ada{SUFFIX}"), "--apply"]
    with CurationStore(place / "curated").locked():
        assert cli.main(words) == 2
    assert "a process works on this run" in capsys.readouterr().err
    assert {**bytes_of(place), "curated/lock": b""} == {**before, "curated/lock": b""}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(revoke, "write_shard", lambda *_: Path("/dev/full").write_bytes(b"x"))
        assert cli.main(words) == 2  # the vectors of the face are gone by then
    capsys.readouterr()
    assert cli.main(words) == 1
    assert "runs/first: weights that were trained" in capsys.readouterr().out
    found = {name for name, data in bytes_of(place).items() if ADA.encode() in data}
    assert found == {"notes.md", "talk.json"}
    persons = {c.person for index in read_indexes(place / "shards") for c in index.clips}
    assert persons == {GRACE}
