"""The import order of the house: a package may import only what stands to its left.

`types, outside, stored, options, states, checks, paths, local_models, device, flow, seeds, words,
progress, trust, visitors < media, kernels, interrupts, guard, connections < critics, motion <
models, world, shards, parallel < sampling < losses < engines, safety < generate < stages <
callbacks, planning < demo, app, cli`.
Command modules (`*/cli.py`) and `testing` are entries of their own and are not constrained.

Nothing but a demonstration and the drawn voice, which is the world's synthesiser, reads the
embedded world, and of the three packages avatar_v imports neither of the others, avatar_v_data
imports avatar_v alone.
"""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "avatar_v"
DATA = ROOT / "data" / "avatar_v_data"
ORDER = [
    (
        "types",
        "outside",
        "stored",
        "options",
        "states",
        "checks",
        "paths",
        "local_models",
        "device",
        "flow",
        "seeds",
        "words",
        "progress",
        "visitors",
        "trust",
    ),
    ("media", "kernels", "interrupts", "guard", "connections"),
    ("critics", "motion"),
    ("models", "world", "shards", "parallel"),
    ("sampling",),
    ("losses",),
    ("engines", "safety"),
    ("generate",),
    ("stages",),
    ("callbacks", "planning"),
    ("demo", "app", "command_line", "cli"),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
FREE = {"cli", "testing"}
DEMONSTRATIONS = {"app/example.py", "demo/showcase.py"}
DRAWN_VOICE = {
    f"engines/{name}.py" for name in ("drawn_voice", "pronunciation", "script", "voices")
}
READERS = DEMONSTRATIONS | DRAWN_VOICE
"""Files outside of `world` that may import it."""
FILES = sorted(
    path for path in SRC.rglob("*.py") if path.stem not in FREE and path.parent.name != "assets"
)


LARGEST = 60 * 2**20
"""Bytes of all tracked files: everybody who clones has them."""


def part_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """First-level parts of avatar_v that a file imports, wherever in the file."""
    names = imported_modules(path)
    return {name.split(".")[1] for name in names if name.startswith("avatar_v.")} - {"__version__"}


def imported_modules(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in the file."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "avatar_v":
            modules |= {f"avatar_v.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.add(node.module or "")
    return modules


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_left(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    assert part in RANK, f"{part} has no place in the import order"
    for other in imported_parts(path) - {part}:
        assert RANK[other] <= RANK[part], f"{part} may not import {other}"


def test_the_world_is_read_by_demonstrations_and_its_voice_alone() -> None:
    readers = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if part_of(path) != "world" and "world" in imported_parts(path)
    }
    assert readers == READERS


@pytest.mark.parametrize(
    ("folder", "others"),
    [(SRC, ("avatar_v_data", "avatar_v_eval")), (DATA, ("avatar_v_eval",))],
)
def test_packages_import_one_way(folder: Path, others: tuple[str, ...]) -> None:
    files = list(folder.rglob("*.py"))
    assert files
    for path in files:
        wrong = {name for name in imported_modules(path) if name.split(".")[0] in others}
        assert not wrong, f"{path} imports {wrong}"


def test_a_forbidden_import_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from avatar_v.stages.base import Stage\n    return Stage\n")
    assert imported_parts(file) == {"stages"}
    assert RANK["stages"] > RANK["models"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_tracked_files_stay_small() -> None:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    sizes = {path: path.stat().st_size for path in files if path.is_file()}
    largest = sorted(sizes, key=sizes.__getitem__)[-5:]
    assert sum(sizes.values()) <= LARGEST, f"the largest are {[str(path) for path in largest]}"
