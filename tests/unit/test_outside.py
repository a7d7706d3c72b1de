"""Files of other people: nothing is waited for, nothing grows, and no key wins over another."""

import io
import os
import socket
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from avatar_v.base.outside import (
    check_yaml,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    read_table,
    read_yaml,
)
from avatar_v.base.paths import check_name
from avatar_v.recipe.before import store_problem
from avatar_v.recipe.cli import merge_recipes
from avatar_v.safety.key import KEY_FILE, own_key
from avatar_v.safety.policy import read_policy
from avatar_v.shards.arrays import load_arrays
from avatar_v.shards.writer import read_index, scan_shard
from avatar_v_data.curation.plan import parse_plan, read_plan
from avatar_v_data.import_plan import read_manifest
from avatar_v_data.world_footage import FootageSettings
from avatar_v_eval.bench.manifest import load_manifest
from avatar_v_eval.human.study_file import load_study
from avatar_v_eval.records import make_result, read_result, write_result

LISTS = "a: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGES = "a: &a0 {a: 1, b: 2}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
)


def _study(path: Path) -> object:
    return load_study(path)


def _recipe(path: Path) -> object:
    return merge_recipes([str(path)])


def _plan(path: Path) -> object:
    return read_plan(str(path))


OF_YAML = {"study": _study, "recipe": _recipe, "plan": _plan, "policy": read_policy}
OF_JSON = {"manifest": load_manifest, "result": read_result, "settings": read_json}


def _table(path: Path) -> object:
    return read_manifest(path, path.parent)


@pytest.mark.parametrize("kind", OF_YAML)
@pytest.mark.parametrize("text", [LISTS, MERGES, "a: &a [*a]", "[" * 1000])
def test_a_small_file_stays_small(kind: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"aliases .* make more than|nested too deeply"):
        OF_YAML[kind](tmp_path / "a.yaml")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize("kind", OF_YAML)
def test_a_key_that_is_there_twice_in_yaml(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {a: 1}\ndata: 2\nmodel: {a: 2}\n")
    with pytest.raises(ValueError, match=r"a\.yaml: the key 'model' is there twice"):
        OF_YAML[kind](tmp_path / "a.yaml")


def test_which_keys_are_the_same() -> None:
    for text in ("{a: 1, 'a': 2}", "{1: 1, 0x1: 2}", "[{b: {a: 1, a: 1}}]", "{<<: {a: 1}, <<: {}}"):
        with pytest.raises(ValueError, match="is there twice"):
            parse_yaml(text, where="x", what="plan")
        with pytest.raises(ValueError, match="is there twice"):
            check_yaml(text)
    kept = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n1: 1\n'1': 2"
    assert parse_yaml(kept, where="x", what="plan") == yaml.safe_load(kept)


@pytest.mark.parametrize("kind", OF_JSON)
def test_a_key_that_is_there_twice_in_json(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1, "b": [{"name": 1, "name": 2}]}')
    with pytest.raises(ValueError, match="the key 'name' is there twice"):
        OF_JSON[kind](tmp_path / "a.json")
    with pytest.raises(ValueError, match="is there twice"):
        parse_json('{"a": 1, "\\u0061": 2}', where="x")


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("file,person,person\na.mp4,anna,bert\n")
    with pytest.raises(ValueError, match="the column 'person' is there twice"):
        _table(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
    assert read_table(tmp_path / "a.csv", ("b", "a"))[1] == (3, {"a": "3", "b": "4"})


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    **{name: ("a.yaml", read) for name, read in OF_YAML.items()},
    **{name: ("a.json", read) for name, read in OF_JSON.items()},
    "table": ("a.csv", _table),
    "lines": ("a.jsonl", _table),
    "index": ("a.index.json", read_index),
    "shard": ("a.tar", scan_shard),
    "key": ("a.key", lambda path: own_key({KEY_FILE: str(path)})),
}


@pytest.mark.parametrize("special", ["pipe", "device", "circle"])
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_read(name: str, special: str, tmp_path: Path) -> None:
    file, read = READERS[name]
    path = tmp_path / file
    if special == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if special == "device" else path)
    with pytest.raises(
        ValueError, match=r"pipe|device|circle|no file|no study|no manifest|Too many levels"
    ):
        read(path)


def test_a_file_has_a_most(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space
    with pytest.raises(ValueError, match="it has more than 100 bytes"):
        read_bytes(tmp_path / "a.json", what="table", most=100)
    with pytest.raises(ValueError, match=r"a\.json is no plan: it has more than"):
        read_yaml(tmp_path / "a.json", "plan")


def test_arrays_of_a_clip_are_as_large_as_they_are_stored() -> None:
    file = io.BytesIO()
    np.savez_compressed(file, valid=np.zeros(1 << 28, bool))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"face\.npz: damaged, .*its arrays would have 268,4"):
        load_arrays(file.getvalue(), "face.npz")
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    small = io.BytesIO()
    np.savez_compressed(small, valid=np.zeros(1000, bool))
    assert load_arrays(small.getvalue(), "face.npz")["valid"].shape == (1000,)


def test_a_member_with_holes_is_no_member(tmp_path: Path) -> None:
    """GNU's sparse format: a header says that 1 GiB lies between two stored bytes."""
    info = tarfile.TarInfo("a.json")
    info.size = 512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:398] = b"00000000000\0"  # where the only part lies
    header[398:410] = b"00000001000\0"  # and how long it is
    header[483:495] = b"10000000000\0"  # 1 GiB in all
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + b"\0" * 512 + b"\0" * 1024)
    with tarfile.open(tmp_path / "a.tar") as tar:
        (found,) = tar.getmembers()
        assert (found.size, found.issparse()) == (1 << 30, True)
    with pytest.raises(ValueError, match=r"a\.json is no plain file"):
        scan_shard(tmp_path / "a.tar")


PATHS = ["../../evil", "/tmp/evil", "..", ".hidden", "a/b", "a\\b", "a\0b", "", "a\nb", "x" * 200]


@pytest.mark.parametrize("name", PATHS)
def test_a_name_that_becomes_a_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the tier: expected a name of letters, digits"):
        check_name(name, where="the tier")
    values = {"stages": {}, "limits": {name: {}}}
    with pytest.raises(
        ValueError, match=r"plan\.yaml: limits: .*(expected a name of letters|is text without NUL)"
    ):
        parse_plan(values, where="plan.yaml")
    with pytest.raises(ValueError, match="the name of a result: expected a name"):
        write_result(make_result(name, "title", {}), tmp_path / "in")
    assert not list(tmp_path.rglob("*evil*"))


def test_names_that_are_fine() -> None:
    for name in ("strict", "tier_1", "best of 3", "größe-2.5"):
        assert check_name(name, where="x") == name


def test_a_store_that_does_not_answer_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        began_s = time.monotonic()
        for uri in (f"http://127.0.0.1:{port}", f"postgresql://127.0.0.1:{port}/x"):
            assert "refused" in str(store_problem(uri)).lower()
    assert "no folder that can be written" in str(store_problem("sqlite:////proc/x.db"))
    assert time.monotonic() - began_s < 5
    assert store_problem(f"sqlite:///{tmp_path}/x.db") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e9, -1.0])
def test_footage_has_an_end(seconds: float) -> None:
    with pytest.raises(ValueError, match="a recording lasts 9 s to 3,600 s"):
        FootageSettings(num_recordings=1, seconds=seconds)
