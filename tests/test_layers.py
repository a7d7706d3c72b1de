"""The import order of the house: a room may import only what stands to its left.

`types, flow < base < media, kernels, web < critics < faces < motion < models < weights < parallel <
sampling < world, shards < losses, scoring, voices < rewards < training < objectives < callbacks <
recipe < engines, safety < request < inputs < generate < pairs, demo, planning, launch, serving <
app < commands < cli`.
Imports in functions count, and no file is free. Of the rooms in between, training (training,
objectives, callbacks, recipe) and generation (engines to generate) know nothing of each other.

Nothing but a demonstration, the drawn voice, which is the world's synthesiser, and what writes the
world's prompts reads the embedded world, and of the three packages avatar_v imports neither of the
others, avatar_v_data imports avatar_v alone.
"""

import ast
import subprocess
from collections.abc import Mapping, Sequence, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "avatar_v"
DATA = ROOT / "data" / "avatar_v_data"
EVAL = ROOT / "eval" / "avatar_v_eval"
ORDER = [
    ("types", "flow"),
    ("base",),
    ("media", "kernels", "web"),
    ("critics",),
    ("faces",),
    ("motion",),
    ("models",),
    ("weights",),
    ("parallel",),
    ("sampling",),
    ("world", "shards"),
    ("losses", "scoring", "voices"),
    ("rewards",),
    ("training",),
    ("objectives",),
    ("callbacks",),
    ("recipe",),
    ("engines", "safety"),
    ("request",),
    ("inputs",),
    ("generate",),
    ("pairs", "demo", "planning", "launch", "serving"),
    ("app",),
    ("commands",),
    ("cli",),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
TRAINING = {"training", "objectives", "callbacks", "recipe"}
GENERATION = {"engines", "safety", "request", "inputs", "generate"}
DEMONSTRATIONS = {"app/example.py", "demo/showcase.py"}
DRAWN_VOICE = {
    f"engines/{name}.py" for name in ("drawn_voice", "pronunciation", "script", "voices")
}
READERS = DEMONSTRATIONS | DRAWN_VOICE | {"engines/writing.py"}
"""Files outside of `world` that may import it."""
FILES = sorted(SRC.rglob("*.py"))


LARGEST = 60 * 2**20
"""Bytes of all tracked files: everybody who clones has them."""


def part_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """First-level parts of avatar_v that a file imports, wherever in the file."""
    names = imported_modules(path)
    return {name.split(".")[1] for name in names if name.startswith("avatar_v.")} - {"__version__"}


@cache
def imported_modules(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in the file."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            name = node.module or ""
            inner = {f"{name}.{alias.name}" for alias in node.names}
            files = {one for one in inner if file_of(one).is_file()}
            modules |= files or ({name} if name != "avatar_v" else inner)
    return modules


def file_of(module: str) -> Path:
    """Of a module of avatar_v or avatar_v_eval; no file for other names."""
    root = EVAL.parent if module.startswith("avatar_v_eval.") else SRC.parent
    return root / f"{module.replace('.', '/')}.py"


def imports_among(paths: Sequence[Path], root: Path) -> dict[str, set[str]]:
    """Of the modules of some files below ``root``: which of one another they import."""
    modules = {str(path.relative_to(root).with_suffix("")).replace("/", "."): path
               for path in paths if path.stem != "__init__"}  # fmt: skip
    return {name: imported_modules(path) & modules.keys() for name, path in modules.items()}


def circle(imports: Mapping[str, Set[str]]) -> list[str]:
    """The modules of one circle of imports; [] where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_imports_point_left() -> None:
    assert len(FILES) > 400
    for path in FILES:
        part, where = part_of(path), path.relative_to(SRC)
        if part == "__init__":
            continue
        assert part in RANK, f"{where}: {part} has no place in the import order"
        for other in imported_parts(path) - {part}:
            assert RANK[other] <= RANK[part], f"{where}: {part} may not import {other}"
            apart = (part in TRAINING and other in GENERATION) or (
                part in GENERATION and other in TRAINING
            )
            assert not apart, f"{where}: training and generation are apart: {part}, {other}"


def test_no_imports_go_in_a_circle() -> None:
    files = imports_among(FILES, SRC.parent)
    assert circle(files) == []
    assert circle(imports_among(sorted(EVAL.rglob("*.py")), EVAL.parent)) == []
    rooms: dict[str, set[str]] = {}
    for name, others in files.items():
        room = name.split(".")[1]
        rooms.setdefault(room, set()).update({other.split(".")[1] for other in others} - {room})
    assert circle(rooms) == []


def test_the_world_is_read_by_demonstrations_and_engines_alone() -> None:
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
    file.write_text("def f():\n    from avatar_v.objectives.a2v import A2V\n    return A2V\n")
    assert imported_parts(file) == {"objectives"}
    assert RANK["objectives"] > RANK["training"] > RANK["models"]
    other = tmp_path / "y.py"
    other.write_text("def f():\n    from avatar_v.models import vae\n    return vae\n")
    assert imported_modules(other) == {"avatar_v.models.vae"}
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not circle({"a": {"b", "c"}, "b": {"c"}})


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_tracked_files_stay_small() -> None:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    sizes = {path: path.stat().st_size for path in files if path.is_file()}
    largest = sorted(sizes, key=sizes.__getitem__)[-5:]
    assert sum(sizes.values()) <= LARGEST, f"the largest are {[str(path) for path in largest]}"
