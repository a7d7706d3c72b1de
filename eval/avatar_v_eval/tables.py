"""The README's tables, made from the result files: ``python -m avatar_v_eval.tables``.

A document says where a table goes; all between the markers is replaced::

    <!-- table:learning_a2v -->
    <!-- /table -->

Several results may share a table: ``<!-- table:mouth face -->``. Patterns after a bar choose rows
by their key: ``<!-- table:critics | r2_mouth* face_* -->``. ``--check`` writes nothing and fails
where a document and the results differ.
"""

import argparse
import dataclasses
import fnmatch
import re
import sys
from functools import cache
from pathlib import Path

from avatar_v.critics.frozen import weights_hash
from avatar_v.generate.record import hash_folder
from avatar_v.models.weights import load_dit, weights_folder
from avatar_v_eval.records import RESULTS_DIR, Number, Result, as_command, read_result

ROOT = RESULTS_DIR.parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "eval" / "README.md")

_MARKED = re.compile(
    r"(<!-- table:([\w ]+?)(?: \| ([^>]+?))? -->\n).*?(<!-- /table -->)", re.DOTALL
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", nargs="*", type=Path, default=list(DOCUMENTS))
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    options = parser.parse_args(arguments)
    stale = []
    for document in options.documents:
        old = document.read_text(encoding="utf-8")
        new = filled(old)
        if new != old:
            stale.append(str(document))
            if not options.check:
                document.write_text(new, encoding="utf-8")
    if options.check and stale:
        sys.exit(f"tables differ from eval/results in {stale}; run python -m avatar_v_eval.tables")


def filled(document: str, results: Path = RESULTS_DIR) -> str:
    """``document`` with every marked table made anew; ValueError names a result that is missing."""

    def replace(match: re.Match[str]) -> str:
        found = []
        for name in match[2].split():
            path = results / f"{name}.json"
            if not path.is_file():
                raise ValueError(f"a table asks for result {name!r}, but {path} does not exist")
            found.append(chosen(read_result(path), (match[3] or "*").split()))
        return match[1] + table(found) + match[4]

    return _MARKED.sub(replace, document)


def chosen(result: Result, patterns: list[str]) -> Result:
    """The result with the numbers whose key fits one of the patterns; ValueError for none."""
    kept = {
        key: number
        for key, number in result.numbers.items()
        if any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
    }
    if not kept:
        raise ValueError(f"no number of result {result.name!r} fits {' '.join(patterns)}")
    return dataclasses.replace(result, numbers=kept)


def table(results: list[Result]) -> str:
    """A Markdown table of all numbers, then a line on how each result was made."""
    numbers = [(key, number) for result in results for key, number in result.numbers.items()]
    with_target = any(number.target for _, number in numbers)
    heads = ["measure", "value", "95 % interval", "n"]
    if any(result.name.startswith("speed") for result in results):
        heads[2] = "lowest to highest"
    if with_target:
        heads.append("asked")
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join(["---"] * len(heads)) + "|"]
    for key, number in numbers:
        cells = [number.label or key, _value(number), _interval(number), str(number.n)]
        if with_target:
            cells.append(_asked(number))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    sources = [_source(result) for result in results]
    return "\n".join([*lines, "", *sources, ""])


def _source(result: Result) -> str:
    commit = result.commit[:10] + ("+" if result.dirty else "")
    machine = f"{result.hardware['cpu']}, {result.hardware['cores']} cores"
    if result.hardware["gpu"] != "none":
        machine += f", {result.hardware['gpu']}"
    parts = [f"`{result.command}`", commit, result.date[:10], machine]
    made_by = [result.weights[part] for part in ("dit", "pipeline") if part in result.weights]
    if made_by:
        ships = set(made_by) <= shipped_hashes()
        parts.append("weights that ship" if ships else f"weights {made_by[0][:8]}")
    return " · ".join(parts) + "  "


@cache
def shipped_hashes() -> frozenset[str]:
    """What result files call the generator that ships: the hash of its DiT, or of its folder."""
    folder = weights_folder("small")
    return frozenset([weights_hash(load_dit(folder / "dit").state_dict()), hash_folder(folder)])


def _value(number: Number) -> str:
    return " ".join([_short(number.value), number.unit]).strip()


def _interval(number: Number) -> str:
    if number.low is None or number.high is None:
        return ""
    return f"{_short(number.low)} … {_short(number.high)}"


def _asked(number: Number) -> str:
    if number.met is None:
        return number.target
    return f"{number.target}: {'yes' if number.met else 'NO'}"


def _short(value: float) -> str:
    """Three significant digits, never an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.4f}" if "e" in text else text


if __name__ == "__main__":
    as_command(main)
