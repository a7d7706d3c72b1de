"""A wrong name or number on the command line is an error before torch is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__)
RECIPES = HERE.resolve().parents[2] / "recipes"
CASES = (
    ("generate --reference none.mp4 --audio a.wav --out o.mp4", "none.mp4: no such file"),
    (f"generate --reference {HERE} --audio none.wav --out o.mp4", "none.wav: no such file"),
    (f"generate --reference {HERE} --audio {HERE} --out no/o.mp4", "the folder no does not exist"),
    (f"generate --reference {HERE} --audio {HERE} --out o.avi", "the output is an .mp4 file"),
    (f"generate --reference {HERE} --audio {HERE} --out o.mp4 --steps 0", "--steps is a whole"),
    (f"generate --reference {HERE} --audio {HERE} --out o.mp4 --weights no", "no weights 'no'"),
    (f"generate --reference {HERE} --script 7 --out o.mp4", "English words, and not '7'"),
    ("speak --script none.txt --out o.wav", "none.txt: no such file"),
    ("speak --script hello --voice none --out o.wav", "no voice 'none'"),
    ("scene --reference none.mp4 --prompt room --out o.png", "none.mp4: no such file"),
    (f"generate --reference {HERE} --audio {HERE} --out o.mp4 --sign c.pem", "go together"),
    ("watermark read none.mp4", "none.mp4: no such file"),
    ("demo --weights none", "no weights 'none'"),
    ("app --weights none", "no weights 'none'"),
    ("shards encode --shards none --vae none --out out", "none: no finished shards"),
    ("shards stats none --out stats.json", "none: no finished shards"),
    ("weights average none none --out out", "no file none/card.json"),
    ("weights import-wan none out", "none: no such folder"),
    ("run none.yaml", "none.yaml: no such file"),
    ("plan none.yaml", "none.yaml: no such file"),
    (f"run {RECIPES}/0_vae.yaml root.yaml --trainer.max_steps 1", "but root.yaml is a file"),
    ("run modl.yaml", "modl.yaml: a recipe has no key modl; nearest: model"),
    (f"run {RECIPES}/2_a2v.yaml zz.yaml", "zz.yaml: a recipe has no key zz; it has model, data"),
    (
        f"run {RECIPES}/2_a2v.yaml {RECIPES}/small.yaml",
        "no weights in runs/1_t2v/weights",
    ),
    (
        f"run {RECIPES}/2_a2v.yaml {RECIPES}/small.yaml --trainer.max_steps=1 --ckpt_path last",
        "no weights in runs/1_t2v/weights",
    ),
    ("data import none --out out", "none: no such folder"),
    ("data world --clips 1 --out out", "--clips is at least 2"),
)
PROGRAM = """
import contextlib, io, json, sys
import avatar_v.cli, avatar_v_data.cli

found = []
for words in json.load(sys.stdin):
    front = avatar_v_data if words[0] == "data" else avatar_v
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = front.cli.main(words[words[0] == "data" :])
    found.append([status, said.getvalue(), "torch" in sys.modules])
print(json.dumps(found))
"""
"""One process for all: what one command has imported is there for those behind it."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    """Of each command its status, what it said, and whether torch is imported behind it."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "modl.yaml").write_text("modl: {}", encoding="utf-8")
    (folder / "root.yaml").write_text("trainer: {default_root_dir: root.yaml/x}", "utf-8")
    (folder / "zz.yaml").write_text("zz:", encoding="utf-8")
    commands = [words for words, _ in CASES]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps([words.split() for words in commands]),
        cwd=folder, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return dict(zip(commands, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("words", "message"), CASES)
def test_an_error_comes_before_torch(words: str, message: str, found: dict[str, list]) -> None:
    status, said, imported = found[words]
    assert message in said
    assert said.count("\n") == 1
    assert (status, imported) == (2, False)
