"""Shards in an object store give what a local folder gives; what goes wrong there is one error.

A server on this machine (moto) speaks S3; nothing leaves it.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from shard_clips import write_clips
from test_shards_loader import data, fingerprint, fit

from avatar_v.shards import store
from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.store import list_files, read_ranges

fsspec = pytest.importorskip("fsspec")
URL = "s3://bucket/some/shards"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The file system of a fresh server with one bucket."""
    server = pytest.importorskip("moto.server", reason="needs moto and s3fs, of the extra dev")
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    address, port = moto.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{address}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        files = fsspec.filesystem("s3", use_listings_cache=False)
        files.mkdir("bucket")
        yield files
        files.clear_instance_cache()
    moto.stop()


@pytest.fixture
def local(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards in two folders, which lie at URL as well; the machine has no copies yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "WAITS_S", (0.0, 0.0))
    folder = tmp_path / "shards"
    write_clips(folder, 14)
    (folder / "b").mkdir()
    for suffix in (".tar", ".index.json"):
        shutil.move(folder / f"000{suffix}", folder / "b")
    if s3.exists("bucket/some"):
        s3.rm("bucket/some", recursive=True)
    s3.put(f"{folder}/", "bucket/some/shards/", recursive=True)
    s3.pipe("bucket/some/shards/", b"")  # a console's folder
    s3.pipe("bucket/some/shards2/000.tar", b"a neighbour")
    return folder


def test_clips_of_a_store_are_those_of_the_folder(local: Path) -> None:
    here, there = read_folder(local), read_folder(URL)
    assert [clip.key for clip in there] == [clip.key for clip in here]
    assert there[0].shard == f"{URL}/006.tar"
    for own, other in zip(here[::5], there[::5], strict=True):
        first, second = read_clip(own), read_clip(other)
        assert first.meta == second.meta
        for name in ("video", "latents", "audio", "motion"):
            assert torch.equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_a_store_are_those_of_the_folder_and_resume(
    local: Path, num_workers: int
) -> None:
    expected = [fingerprint(batch) for batch in data(str(local)).train_dataloader()]
    iterator = iter((first := data(URL, num_workers=num_workers)).train_dataloader())
    begun = [fingerprint(next(iterator)) for _ in range(2)]
    second = data(URL, num_workers=num_workers)
    second.load_state_dict(first.state_dict())
    assert begun + [fingerprint(batch) for batch in second.train_dataloader()] == expected


def test_a_training_run_is_the_same_and_goes_on_from_the_other_place(
    local: Path, tmp_path: Path
) -> None:
    here = fit(str(local), tmp_path / "here", 6)  # an epoch has 4 steps
    assert fit(URL, tmp_path / "there", 6) == here
    checkpoint = tmp_path / "there" / "step=3.ckpt"
    assert fit(URL, tmp_path / "again", 6, checkpoint) == here[3:]
    assert fit(str(local), tmp_path / "back", 6, checkpoint) == here[3:]


def test_an_index_is_fetched_once_a_machine_and_again_when_it_changes(
    local: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    fetch = store._fetch

    def heard(where: str, ranges: list) -> list[bytes]:
        fetched.extend(url for url, _, _ in ranges)
        return fetch(where, ranges)

    monkeypatch.setattr(store, "_fetch", heard)
    read_folder(URL)
    assert fetched == [f"{URL}/{name}.index.json" for name in ("006", "012", "b/000")]
    read_folder(URL)
    assert len(fetched) == 3
    text = (local / "012.index.json").read_text().replace("scene13", "scene99")
    s3.pipe("bucket/some/shards/012.index.json", text.encode())
    assert read_folder(URL)[7].scene == "scene99"
    assert fetched[3:] == [f"{URL}/012.index.json"]


def test_neighbouring_members_are_one_request(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = read_folder(URL)[2]
    asked = []
    monkeypatch.setattr(store, "_fetch", lambda where, ranges: asked.append(ranges) or [b""])
    read_ranges(clip.shard, [(m.offset, m.size) for m in clip.members.values()])
    assert [len(ranges) for ranges in asked] == [1]
    asked.clear()
    monkeypatch.setattr(
        store, "_fetch", lambda where, r: [bytes([a % 7]) * (b - a) for _, a, b in r]
    )
    far = 10 * store.MAX_GAP_BYTES
    assert read_ranges("s3://x/y", [(far, 3), (0, 2), (5, 0), (1, 2)]) == [
        bytes([far % 7]) * 3, bytes(2), b"", bytes(2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://nobucket/x", "s3://nobucket/x: not found"),
        ("s3://bucket/nothing", "s3://bucket/nothing: no finished shards"),
        ("s3://bucket/../other", "expected s3://BUCKET/PREFIX"),
        ("s3://", "read from a folder or s3://"),
        ("s3://bucket/a::file:///etc", "expected s3://BUCKET/PREFIX"),
        ("file:///etc", "read from a folder or s3://"),
        ("https://example.org/shards", "read from a folder or s3://"),
        ("simplecache::s3://bucket/x", "read from a folder or s3://"),
        ("pipe:cat a.tar", "it would run a command that the recipe names"),
    ],
)
def test_what_is_not_read_is_said(local: Path, url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        data(url).setup()


def test_a_missing_package_is_named(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(scheme: str, **options) -> None:
        raise ImportError(f"Install {scheme}fs to access {scheme}")

    monkeypatch.setattr(fsspec, "filesystem", absent)
    with pytest.raises(ValueError, match=r"read by the package s3fs: pip install .*\[cloud\]"):
        read_folder(URL)


class Failing:
    """A store that fails a number of times, then answers like another."""

    def __init__(self, answering: Any, error: Exception, num_failures: int):
        self.answering, self.error, self.left = answering, error, num_failures

    def __getattr__(self, name: str) -> Any:
        def call(*args, **options):
            self.left -= 1
            if self.left >= 0:
                raise self.error
            return getattr(self.answering, name)(*args, **options)

        return call


def test_a_network_that_comes_back_is_not_noticed_and_one_that_does_not_is_one_error(
    local: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = read_folder(URL)[3]
    expected = read_clip(read_folder(local)[3]).motion
    for error, num, said in (
        (ConnectionError("reset"), 2, None),
        (ConnectionError("reset"), 3, r"006\.tar.* clip clip009: .*no answer in 3 tries.*reset"),
        (PermissionError("no"), 1, r"006\.tar.*clip009.*access denied"),
        (FileNotFoundError("no"), 1, r"006\.tar.*clip009.*not found"),
    ):
        failing = Failing(s3, error, num)
        monkeypatch.setattr(store, "_store", lambda url, failing=failing: failing)
        if said is None:
            assert torch.equal(read_clip(clip).motion, expected)
            continue
        with pytest.raises(ValueError, match=said):
            read_clip(clip)


def test_a_shard_replaced_or_cut_behind_its_index_is_refused(local: Path, s3: Any) -> None:
    clip = read_folder(URL)[1]
    whole = s3.cat("bucket/some/shards/006.tar")
    s3.pipe("bucket/some/shards/006.tar", whole[:-512])
    with pytest.raises(ValueError, match=r"006\.tar: \d+ bytes, its index says \d+"):
        read_folder(URL)
    s3.pipe("bucket/some/shards/006.tar", bytes(len(whole)))
    with pytest.raises(ValueError, match=r"006\.tar, clip clip007: .* is corrupt"):
        read_clip(clip)
    s3.rm("bucket/some/shards/006.tar")
    with pytest.raises(ValueError, match=r"006\.index\.json: its shard 006\.tar is missing"):
        read_folder(URL)


@pytest.mark.parametrize("name", ["../b/000.tar", "b/000.tar", "/etc/passwd", "", 3, "s3://x/y"])
def test_an_index_names_a_file_beside_it(local: Path, s3: Any, name: object) -> None:
    fields = json.loads((local / "006.index.json").read_text())
    s3.pipe("bucket/some/shards/006.index.json", json.dumps({**fields, "shard": name}).encode())
    with pytest.raises(ValueError, match=r"006\.index\.json: expected the name of a file beside"):
        read_folder(URL)


def test_a_hostile_listing_is_refused(
    local: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {"size": 3, "type": "file"}

    class Listing:
        found: dict

        def find(self, root: str, detail: bool) -> dict:
            return self.found

    monkeypatch.setattr(store, "_store", lambda url: Listing())
    for path in ("bucket/some/shards/../../x.index.json", "other/x.tar", "bucket/some/shards//x"):
        Listing.found = {path: info}
        with pytest.raises(ValueError, match="which is no path below it"):
            list_files(URL)
    Listing.found = {"bucket/some/shards/a.index.json": {**info, "size": 1 << 40}}
    with pytest.raises(ValueError, match=r"a\.index\.json: 1,099,511,627,776 bytes"):
        read_folder(URL)


def test_copies_stay_below_the_cache(local: Path, tmp_path: Path) -> None:
    read_folder(URL)
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(kept) == 4  # three indexes and the lock
    assert not any(os.fspath(path).endswith(".tmp") for path in kept)
