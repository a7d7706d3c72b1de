"""README and docs tell the truth: commands run, options, files and links exist, the site builds.

Lines of ```bash blocks are run as they stand, in a folder that holds what the demo leaves. Lines of
```console blocks take long or need a user's files; of those the command, every option and every
recipe named are checked. Tables are checked by test_records.py.
"""

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from avatar_v import cli
from avatar_v.media import reading
from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.world.clip import make_clip
from avatar_v_data import cli as data_cli
from avatar_v_eval import cli as eval_cli
from avatar_v_eval.speed import SPEEDS
from avatar_v_eval.studies import STUDIES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "eval" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
FRONT_ENDS = {"avatar-v": cli, "avatar-v-data": data_cli, "avatar-v-eval": eval_cli}
MEASUREMENTS = {"study": STUDIES, "speed": SPEEDS}


def blocks(kind: str) -> list[tuple[Path, str]]:
    """Code blocks of one kind in all pages, with their page."""
    return [
        (page, block)
        for page in PAGES
        for block in re.findall(
            rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
        )
    ]


def commands(kind: str) -> list[str]:
    """Logical lines that start with one of our commands in blocks of one kind, each once."""
    lines: dict[str, None] = {}
    for _, block in blocks(kind):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r" [|>] ", line.split("  #")[0]):
                if part.split(" ")[0] in FRONT_ENDS:
                    lines[part.strip()] = None
    return list(lines)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the demo leaves: a clip of a person of the world, a second of speech."""
    clip = make_clip(2_000_011, 2_000_011, 2_000_011, num_frames=25, size=64)
    (tmp_path / "demo").mkdir()
    with Mp4Writer(tmp_path / "demo" / "reference.mp4", clip.audio) as writer:
        writer.write(clip.video)
    write_wav(tmp_path / "demo" / "speech.wav", clip.audio)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bash_blocks_run(folder: Path) -> None:
    lines = commands("bash")
    assert len(lines) >= 3
    for line in lines:
        name, *words = shlex.split(line)
        assert FRONT_ENDS[name].main(words) == 0, line
    assert len(reading.read_video(folder / "out.mp4")) == 25
    assert (folder / "sheet.png").stat().st_size > 0


def test_console_commands_exist() -> None:
    lines = commands("console")
    assert len(lines) > 40
    evaluation = (ROOT / "eval" / "avatar_v_eval").rglob("*.py")
    measuring = "\n".join(path.read_text(encoding="utf-8") for path in evaluation)
    for line in lines:
        name, *words = shlex.split(line)
        if name == "avatar-v" and words[0] in ("run", "fit", "validate"):
            for recipe in (word for word in words if word.endswith(".yaml")):
                assert (ROOT / recipe).is_file(), f"{line}: no {recipe}"
        elif name == "avatar-v-eval" and words[0] in MEASUREMENTS:
            assert words[1] in MEASUREMENTS[words[0]], line
            for option in (word for word in words if word.startswith("--")):
                assert f'"{option}"' in measuring, f"{line}: {option}"
        else:
            FRONT_ENDS[name].build_parser().parse_args(words)


def test_every_recipe_is_listed() -> None:
    text = (ROOT / "docs" / "training" / "index.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        assert path.name in text, path.name


def test_every_measurement_is_listed() -> None:
    text = (ROOT / "docs" / "evaluation" / "studies.md").read_text(encoding="utf-8")
    for command, names in MEASUREMENTS.items():
        for name in names:
            assert f"`{name}`" in text, f"avatar-v-eval {command} {name}"


def test_options_of_the_pages_exist() -> None:
    """Options in the tables of docs/generation are those of the commands that make videos."""
    parser = cli.build_parser()
    (commands_of,) = [a for a in parser._actions if isinstance(a.choices, dict)]
    assert isinstance(commands_of.choices, dict)
    known = {
        option
        for name in ("generate", "app", "serve", "write")
        for action in commands_of.choices[name]._actions
        for option in action.option_strings
    }
    for page in (ROOT / "docs" / "generation").glob("*.md"):
        for row in re.findall(r"^\| (`--.*?) \|", page.read_text(encoding="utf-8"), re.MULTILINE):
            for option in re.findall(r"--[\w-]+", row):
                assert option in known, f"{page.name}: {option}"


def test_every_option_is_named_on_a_page() -> None:
    """Of a switch, on or off."""
    named = {"--version", *re.findall(r"--[a-z][\w-]*", "\n".join(p.read_text() for p in PAGES))}
    parsers = [(name, one.build_parser()) for name, one in FRONT_ENDS.items()]
    while parsers:
        command, parser = parsers.pop()
        for action in parser._actions:
            if isinstance(action.choices, dict):
                parsers += [(f"{command} {name}", one) for name, one in action.choices.items()]
            options = [option for option in action.option_strings if option.startswith("--")]
            assert not options or named.intersection(options), f"{command} {options[0]}"


def test_python_blocks_parse_and_take_files_that_the_demo_leaves(folder: Path) -> None:
    found = blocks("python")
    assert found
    for page, block in found:
        ast.parse(block, filename=str(page))
        for name in re.findall(r'\b(?:reference|audio)="(.*?)"', block):
            assert (folder / name).is_file(), f"{page}: {name}"


def test_what_notebooks_import_exists() -> None:
    """One of them runs with every test (conftest.py), all with the slow ones."""
    for page in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        cells = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        code = re.sub(r"^%.*$", "", "\n".join(cells), flags=re.MULTILINE)
        for node in ast.walk(ast.parse(code, filename=str(page))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("avatar_v"):
                module = importlib.import_module(str(node.module))
                for name in (alias.name for alias in node.names):
                    assert hasattr(module, name), f"{page.name}: {node.module} has no {name}"


def test_links_lead_somewhere() -> None:
    """Files and headings, in all pages; the site's own links are checked by its build, too."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        targets = re.findall(r"\]\(([^):]+)\)", text)
        for target in targets:
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), f"{page}: {target}"
            if anchor:
                assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page}: {target}"


def anchors(text: str) -> set[str]:
    """The names that GitHub and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_file_tree_is_true() -> None:
    block = re.search(r"```\n(src/avatar_v/\n.*?)```", README, re.DOTALL)
    assert block, "the README has no file tree"
    for line in block[1].splitlines():
        if line.startswith("  "):
            base, text = ROOT / "src" / "avatar_v", line.strip()
        else:
            base, text = ROOT, line
        for name in re.split(r" {3,}", text)[0].split():
            assert (base / name).exists(), f"{name} in the README's tree"


def test_code_named_in_the_glossary_exists() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    named = re.findall(r"\| `([\w/.]+)` \|$", text, re.MULTILINE)
    assert len(named) > 30
    for path in named:
        module = path.split(".py")[0] + ".py" if ".py" in path else path
        places = (ROOT / module, ROOT / "src" / "avatar_v" / module)
        if not any(place.exists() for place in places):
            file, _, name = path.rpartition(".")
            source = ROOT / "src" / "avatar_v" / f"{file}.py"
            assert source.is_file(), path
            assert re.search(rf"^{name}\b", source.read_text(), re.MULTILINE), path


def test_code_named_in_the_architecture_exists() -> None:
    """Files by their path in the package, functions and classes behind them by name."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    sources = {path: path.read_text() for path in (ROOT / "src" / "avatar_v").rglob("*.py")}
    for name in re.findall(r"`([\w/]+\.py)`", text):
        known = any(str(path).endswith(f"/{name}") for path in [*sources, ROOT / "tests" / name])
        assert known or (ROOT / name).is_file(), name
    whole = "\n".join(sources.values())
    hops = "\n".join(re.findall(r"^\| \d+ .*$", text, re.MULTILINE))
    for name in re.findall(r"`([^`]+)`", hops):
        if not name.endswith((".py", ".json")):
            assert re.search(rf"\b(def|class) {name.split('.')[-1]}\b", whole), name


def test_every_package_is_in_the_architecture_once() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| package | content |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    listed = re.findall(r"`(\w+)`", " ".join(cells))
    parts = (ROOT / "src" / "avatar_v").iterdir()
    there = {
        path.stem for path in parts if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert sorted(listed) == sorted(there - {"__init__"})


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {
        target
        for page in PAGES
        for target in re.findall(
            r"(?:`|^)make (\w+)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert {"demo", "test", "bench", "docs", "tables"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 250
    assert len(README.split()) <= 2000


def test_the_site_builds(tmp_path: Path) -> None:
    """Strictly, as `make docs` does: with every warning an error (with -q none is counted)."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "architecture" / "index.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "fonts.googleapis" not in page
    commands_page = (tmp_path / "training" / "small" / "index.html").read_text(encoding="utf-8")
    assert "# stage 3</span>" in commands_page
    assert 'class="gp"' not in commands_page, "a comment is coloured as a prompt"
    assert (tmp_path / "results" / "pictures" / "demo_sheet.webp").is_file()
