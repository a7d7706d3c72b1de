"""`avatar-v-eval study | speed`: every measurement has a module, a line and a quick list."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import avatar_v_eval
from avatar_v_eval.cli import main
from avatar_v_eval.measure_cli import KINDS

FOLDER = Path(avatar_v_eval.__file__).parent


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("command", KINDS)
def test_every_measurement_is_a_module_with_the_protocol(command: str) -> None:
    package, known = KINDS[command]
    found = {path.stem for path in (FOLDER / package).glob("*.py") if "measure" in functions(path)}
    assert found == set(known)
    for name in known:
        assert "add_options" in functions(FOLDER / package / f"{name}.py"), name


@pytest.mark.parametrize("command", KINDS)
def test_a_command_without_a_name_lists_all_with_a_line_each(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(KINDS[command][1])
    assert all(re.fullmatch(r"  \S+ {2,}\S.*", line) and len(line) < 100 for line in lines)


def test_an_unknown_measurement_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["study", "nope"])
    assert end.value.code == 2
    assert "study: error: argument NAME: invalid choice: 'nope'" in capsys.readouterr().err


def test_a_measurement_explains_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["study", "vae", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "avatar-v-eval study vae" in shown
    assert "--vae VAE" in shown
    assert "of the result (vae)" in shown


def test_the_list_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom avatar_v_eval.cli import main\nmain(['study'])\nmain(['speed'])\n"
        "assert not {'torch', 'matplotlib', 'avatar_v_eval.protocol'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
