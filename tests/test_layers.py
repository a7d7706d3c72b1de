"""The import order of the house: a package may import only what stands to its left.

`types, flow, media, recording, loudness, kernels, interrupts < critics < models, world, shards <
losses < parallel < generate < engines, safety < stages < callbacks < demo, app, cli`, and avatar_v
imports neither data nor eval.
Command modules (`*/cli.py`) and `testing.py` are entries of their own and are not constrained.
"""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "avatar_v"
ORDER = [
    ("types", "device", "flow", "media", "recording", "loudness", "kernels", "interrupts"),
    ("critics",),
    ("models", "world", "shards"),
    ("losses",),
    ("parallel",),
    ("generate",),
    ("engines", "safety"),
    ("stages",),
    ("callbacks",),
    ("demo", "app", "cli"),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
FREE = {"cli", "testing"}
FILES = sorted(
    path for path in SRC.rglob("*.py") if path.stem not in FREE and path.parent.name != "assets"
)


def part_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """First-level parts of avatar_v that a file imports, wherever in the file."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "avatar_v":
            names = [f"avatar_v.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            assert not name.startswith(("avatar_v_data", "avatar_v_eval")), f"{path} imports {name}"
            if name.startswith("avatar_v."):
                parts.add(name.split(".")[1])
    return parts - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_left(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    assert part in RANK, f"{part} has no place in the import order"
    for other in imported_parts(path) - {part}:
        assert RANK[other] <= RANK[part], f"{part} may not import {other}"


def test_a_forbidden_import_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from avatar_v.stages.base import Stage\n    return Stage\n")
    assert imported_parts(file) == {"stages"}
    assert RANK["stages"] > RANK["models"]
