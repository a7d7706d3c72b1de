"""avatar_v.base.paths: names from files lead nowhere but into their folder."""

import json
import os
from pathlib import Path

import pytest

from avatar_v.base.paths import below, indexed_weights, inside
from avatar_v.critics.dino import Dino
from avatar_v.models.audio import HiddenStateAudioEncoder
from avatar_v.models.text import UMT5TextEncoder

OUTSIDE = [
    "../x",
    "a/../../x",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a\0b",
    "C:\\x",
    "c:x",
    "\\x",
    "..\\x",
]
NO_TEXT = [None, 3, ["a"], {"a": 1}, b"a", True]


@pytest.mark.parametrize("name", [*OUTSIDE, *NO_TEXT])
@pytest.mark.parametrize("join", [inside, below])
def test_what_leads_elsewhere_is_refused_with_its_origin(join, name: object, tmp_path: Path):
    with pytest.raises(ValueError, match=r"^list\.json: expected .* got ") as error:
        join(tmp_path, name, where="list.json")
    assert repr(name) in str(error.value)


def test_names_of_files_stay_plain_and_paths_may_have_folders(tmp_path: Path) -> None:
    assert inside(tmp_path, "a.tar", where="x") == tmp_path / "a.tar"
    assert below(tmp_path, "a/..b/c.tar", where="x") == tmp_path / "a/..b/c.tar"
    assert below(tmp_path, Path("a") / "b", where="x") == tmp_path / "a" / "b"
    with pytest.raises(ValueError, match="the name of a file"):
        inside(tmp_path, "a/b.tar", where="x")


def test_links_within_the_folder_are_followed_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "real").write_text("in")
    (tmp_path / "secret").write_text("out")
    (folder / "near").symlink_to("sub/real")
    (folder / "far").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    (folder / "circle").symlink_to("circle")
    assert inside(folder, "near", where="x").read_text() == "in"
    assert inside(folder, "circle", where="x") == folder / "circle"
    for join, name in ((inside, "far"), (below, "up/secret"), (below, "far")):
        with pytest.raises(ValueError, match="out of"):
            join(folder, name, where="x")
    assert inside(folder, "far", where="x", links_out=True).read_text() == "out"
    (tmp_path / "way").symlink_to(folder)  # the folder itself may be reached by a link
    assert below(os.fspath(tmp_path / "way"), "near", where="x").read_text() == "in"


def with_index(folder: Path, *names: object) -> Path:
    """A folder of weights whose index names files."""
    folder.mkdir(exist_ok=True)
    weight_map = {f"key{i}": name for i, name in enumerate(names)}
    file = folder / "model.safetensors.index.json"
    file.write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("reader", [Dino, UMT5TextEncoder, HiddenStateAudioEncoder])
@pytest.mark.parametrize("name", ["/etc/passwd", "../x.safetensors", 3])
def test_weights_of_another_folder_are_not_loaded(reader, name: object, tmp_path: Path) -> None:
    """transformers would: it joins what the index says."""
    folder = with_index(tmp_path / "weights", "model-1.safetensors", name)
    for other in ("config.json", "model.safetensors"):
        (folder / other).write_text("{}")
    sizes = {"size": {"height": 8}, "image_mean": [0.0], "image_std": [1.0]}
    (folder / "preprocessor_config.json").write_text(json.dumps(sizes))
    with pytest.raises(ValueError, match=r"weights/model\.safetensors\.index\.json: expected"):
        reader(folder)


def test_an_index_names_its_files_once_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    folder = with_index(tmp_path / "weights", "b", "a", "b")
    assert indexed_weights(folder) == [folder / "b", folder / "a"]
    assert indexed_weights(tmp_path) == []
    for text in ("{", "[]", '{"weight_map": 3}', "{}"):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ValueError, match=r"index\.json: not an index"):
            indexed_weights(folder)
