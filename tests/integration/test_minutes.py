"""recipes/launch: the whole model in minutes and the agenda of a rented GPU, where nothing is
installed but what such a machine has and what travels there."""

import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

from avatar_v.callbacks.time_box import TIME_BOX
from avatar_v.recipe.cli import run_words
from avatar_v.weights.weights import load_pipeline
from tiny_run import RECIPES, losses, make_shards

LAUNCH = RECIPES / "launch"
TIMES_SLOWER = float(os.environ.get("AVATAR_V_TIMES_SLOWER", "1"))
"""Of a machine that others use, too."""


def module(name: str) -> ModuleType:
    sys.path.insert(0, str(LAUNCH))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(LAUNCH))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that sees links to those packages, with all that they ask for, and no others."""
    gpu, folder = module("gpu"), tmp_path_factory.mktemp("bare") / "env"
    make = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(make, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    names = {"PIL": "pillow", "yaml": "pyyaml"}
    left, seen = [names.get(name, name) for name in (*gpu.THERE, *gpu.PACKED)], set[str]()
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # of another system
            continue
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            source = Path(str(found.locate_file(top)))
            if source.exists() and top != "__pycache__":
                link(gpu, source, site / top)
        asked = [each for each in found.requires or () if "extra ==" not in each]
        left += [re.match(r"[\w.-]+", each)[0] for each in asked]  # pyright: ignore
    return folder / "bin" / "python"


def link(gpu: ModuleType, source: Path, target: Path) -> None:
    """A link, or of diffusers a folder of links to what travels."""
    if source.name != "diffusers":
        target.symlink_to(source)
        return
    target.mkdir()
    for path in source.iterdir():
        if not gpu.UNUSED.fullmatch(f"diffusers/{path.name}/x"):
            (target / path.name).symlink_to(path)


def started(python: Path, script: str, *words: str, **more: object) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.Popen(
        [str(python), str(LAUNCH / script), *words], text=True,
        env={**environment, "OMP_NUM_THREADS": "1"}, **more,
    )  # fmt: skip


def test_what_travels_is_all_that_is_imported(bare: Path) -> None:
    names = ["avatar_v.recipe.lightning_cli", "avatar_v_data.world_set", "avatar_v.shards.encode",
             "avatar_v_eval.speed.full_size", "avatar_v_eval.speed.device"]  # fmt: skip
    paths = [str(RECIPES.parent / package) for package in ("src", "data", "eval")]
    code = f"import sys; sys.path[:0] = {paths}\nimport " + ", ".join(names)
    code += "\nfrom lightning.pytorch.cli import LightningArgumentParser as p; p()"
    code += "\nimport importlib.util as u; assert not u.find_spec('av') and not u.find_spec('dlib')"
    done = subprocess.run([str(bare), "-c", code], capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_part_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_shards(tmp_path)
    box = {"class_path": "avatar_v.callbacks.time_box.TimeBox"}
    box["init_args"] = {"seconds": 2.0, "line_s": 0.5, "keep_s": 0.5}  # pyright: ignore
    overlay = {
        "every": {"model": {"init_args": {"seed": 0}}},
        "model": {"init_args": {"models": {"vae": None}}},
        "trainer": {"max_steps": 1_000_000, "callbacks": [box]},
    }
    (tmp_path / "box.yaml").write_text(json.dumps(overlay))
    words = [str(RECIPES / name) for name in ("1_t2v.yaml", "tiny.yaml")]
    model = "--model.init_args"
    words += ["box.yaml", f"{model}.objective.resolution", "{0: 1.0}"]
    words += [f"{model}.objective.window_latents", "{0: 5}"]
    words += ["--data.init_args.ahead", "2", "--data.init_args.echo", "2"]
    assert run_words("run", words) == 0
    run = tmp_path / "runs" / "tiny" / "1_t2v"
    row = json.loads((run / TIME_BOX).read_text())
    assert row["step"] == len(losses(run)) >= 1
    assert row["fit_s"] >= 2.0
    assert row["tflops"] > 0
    assert "val/loss" in row["numbers"]
    load_pipeline(run / "weights")


def test_weights_come_back_as_they_went_to_half_a_hundredth(tmp_path: Path) -> None:
    kept = module("minutes_kept")
    draw = torch.Generator().manual_seed(0)
    state = {
        "a.weight": torch.randn(256, 1024, generator=draw).half(),
        "a.bias": torch.randn(256, generator=draw),
        "zeros": torch.zeros(64, 64),
    }
    for std in (1e-3, 3e-4, 1e-5, 1e-8, 1e-30):  # of layers that begin at zero
        state[f"small {std}"] = std * torch.randn(64, 64, generator=draw)
    data = kept.packed(state)
    (tmp_path / "x").write_bytes(data)
    back = kept.unpacked(tmp_path / "x")
    assert len(data) < 1.13 * (256 * 1024 + 6 * 64 * 64) + 8192
    assert torch.equal(back["a.bias"], state["a.bias"])
    assert torch.equal(back["zeros"], state["zeros"])
    for key in state.keys() - {"a.bias", "zeros"}:
        right = state[key].double()
        assert (back[key].double() - right).norm() < 0.006 * right.norm(), key


def test_an_archive_that_is_too_large_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = module("minutes_kept")
    weights, out = tmp_path / "work" / "runs" / "1_t2v" / "weights", tmp_path / "out"
    (weights / "dit").mkdir(parents=True)
    out.mkdir()
    (weights / "card.json").write_text("{}")
    save_file({"w": torch.ones(64, 64)}, weights / "dit" / "model.safetensors")
    (out / ".model.tar.1.tmp").write_text("of a run that was killed")
    kept.keep(tmp_path / "work", out)
    assert [path.name for path in out.iterdir()] == ["model.tar"]
    before = (out / "model.tar").read_bytes()
    monkeypatch.setattr(kept, "MAX_BYTES", 100)
    os.utime(weights / "card.json", (2**32, 2**32))
    kept.keep(tmp_path / "work", out)
    assert (out / "model.tar").read_bytes() == before


def test_a_run_goes_on_from_what_is_whole_alone(tmp_path: Path) -> None:
    kept = module("minutes_kept")
    source, work = tmp_path / "out", tmp_path / "work"
    source.mkdir(), work.mkdir()
    assert kept.restore(source, work, "tiny") == []  # it was killed before anything was there

    def fault(of: str = "tiny") -> str:
        with pytest.raises(SystemExit) as found:
            kept.restore(source, work, of)
        return str(found.value)

    (source / "model.tar").write_bytes(b"no archive")
    assert "lacks log.jsonl" in fault()
    row = {"part": "begin", "minutes": 1, "size": "tiny"}
    (source / "log.jsonl").write_text(json.dumps(row) + "\n")
    assert "--size tiny, and this one of small" in fault("small")
    whole_log = (source / "log.jsonl").read_text()
    (source / "log.jsonl").write_text(whole_log[:-9])
    assert "log.jsonl is damaged" in fault()
    (source / "log.jsonl").write_text(whole_log)
    assert "model.tar is damaged" in fault()
    weights = tmp_path / "made" / "runs" / "1_t2v" / "weights"
    (weights / "dit").mkdir(parents=True)
    (weights / "card.json").write_text("{}")
    save_file({"w": torch.ones(64, 64)}, weights / "dit" / "model.safetensors")
    kept.keep(tmp_path / "made", source)
    whole = (source / "model.tar").read_bytes()
    (source / "model.tar").write_bytes(whole[:600])
    assert "model.tar is damaged" in fault()
    (source / "model.tar").write_bytes(whole)
    assert "lacks base.tar" in fault()
    assert not (work / "log.jsonl").exists()  # a second try is a first one
    vae = tmp_path / "made" / "runs" / "0_vae" / "vae"
    vae.mkdir(parents=True)
    (vae / "config.json").write_text("{}")
    kept.keep(tmp_path / "made", source)
    assert kept.restore(source, work, "tiny") == [row]
    assert kept.names_there(work) == {"0_vae", "1_t2v"}
    assert kept.unpack([str(source), str(tmp_path / "weights")]) == 0
    assert (tmp_path / "weights" / "model" / "vae" / "config.json").exists()
    with pytest.raises(SystemExit, match="holds no run"):
        kept.unpack([str(tmp_path), str(tmp_path / "other")])
    with pytest.raises(SystemExit, match="name a folder to be made"):
        kept.unpack([str(source), str(tmp_path / "weights")])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--minutes", "0"], "--minutes is a number above 0.13"),
        (["--minutes", "nan"], "--minutes is a number above 0.13"),
        (["--minutes", "5", "--workers", "0"], "--workers is a whole number from 1 to 64"),
        (["--minutes", "5", "--before", "nowhere"], "there is no such folder"),
        (["--minutes", "5", "--before", "out"], "--out out holds a run"),
        (["--minutes", "5"], "--out out holds a run"),
        (["--minutes", "5", "--out", "file/x"], "file"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_is_loaded(
    words: list[str], fault: str, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "base.tar").touch()
    (tmp_path / "file").touch()
    script = str(LAUNCH / "minutes.py")
    done = subprocess.run(
        [sys.executable, script, "--out", "out", *words], cwd=tmp_path, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert fault in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_part_of_the_agenda_that_hangs_or_fails_is_told_of(tmp_path: Path) -> None:
    gpu = module("gpu")
    begin = time.monotonic()
    row = gpu.carried_out(("-c", "import time; time.sleep(60)"), 0.5, dict(os.environ))
    assert row["status"] == 124
    assert time.monotonic() - begin < 20
    row = gpu.carried_out(("-c", "raise SystemExit('no card')"), 20, dict(os.environ))
    assert row["status"] == 1
    assert "no card" in row["last_words"]


@pytest.mark.slow
def test_the_agenda_runs_whole_and_once_a_commit_killed_thrice(bare: Path, tmp_path: Path) -> None:
    gpu, draw, out = module("gpu"), random.Random(0), tmp_path / "out"
    words = ("agenda", "--tiny", "--out", str(out), "--minutes", "10")
    for _ in range(3):
        run = started(bare, "gpu.py", *words)
        time.sleep(TIMES_SLOWER * draw.uniform(15, 45))
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        run.kill()
        run.wait()
        time.sleep(1)
        alive = [pid for pid in children if running(Path(f"/proc/{pid}/stat"))]
        assert not alive, "a part goes on without its agenda"
    there = {path.stem for path in out.glob("*.json")}
    begin = time.monotonic()
    last = started(bare, "gpu.py", *words, stdout=subprocess.PIPE)
    said, _ = last.communicate()
    took = time.monotonic() - begin
    assert last.returncode == 0, said
    assert took < 600
    kept = {line.split(":")[0] for line in said.splitlines() if "done for this commit" in line}
    assert kept == there
    rows = {p: json.loads((out / f"{p}.json").read_text()) for p in gpu.PARTS}
    assert all(row["status"] == 0 for row in rows.values())
    assert all(row["took_s"] <= 6 * gpu.PARTS[name].seconds for name, row in rows.items())
    assert all(row["results"] for name, row in rows.items() if name != "tests")
    again = started(bare, "gpu.py", *words, stdout=subprocess.PIPE)
    said, _ = again.communicate()
    assert said.count("done for this commit") == len(gpu.PARTS)
    print(json.dumps({"kept": sorted(kept), "last_s": round(took)}))


def running(stat: Path) -> bool:
    """Whether a process lives; one that has ended and waits for its parent does not."""
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.slow
def test_the_whole_model_is_made_in_its_minutes_killed_thrice(bare: Path, tmp_path: Path) -> None:
    minutes, draw = module("minutes"), random.Random(0)
    before: list[str] = []
    for turn in range(3):
        run = started(bare, "minutes.py", *words_of(tmp_path, turn, before), start_new_session=True)
        time.sleep(TIMES_SLOWER * draw.uniform(40, 80))
        assert run.poll() is None, "it ended by itself"
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        before = ["--before", str(tmp_path / f"out{turn}")]
    begin = time.monotonic()
    run = started(bare, "minutes.py", *words_of(tmp_path, 3, before))
    assert run.wait() == 0
    took = time.monotonic() - begin
    assert took < 1.05 * 60 * minutes_of(3)
    out = tmp_path / "out3"
    sizes = [path.stat().st_size for path in out.iterdir()]
    assert len(sizes) <= 8
    assert max(sizes) <= 2**24
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert {row["part"] for row in rows if row.get("done")} == set(minutes.PARTS)
    numbers = {"took_s": round(took), "bytes": sum(sizes), "files": len(sizes)}
    print(json.dumps(numbers))


def minutes_of(turn: int) -> float:
    return TIMES_SLOWER * (4 if turn < 3 else 5)


def words_of(folder: Path, turn: int, before: list[str]) -> list[str]:
    words = ["--minutes", str(minutes_of(turn)), "--size", "tiny", "--workers", "1"]
    return [*words, "--out", f"{folder}/out{turn}", "--work", f"{folder}/work{turn}", *before]
