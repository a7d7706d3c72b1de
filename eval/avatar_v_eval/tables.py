"""The tables of README and docs, made from the result files: ``avatar-v-eval tables``.

A document says where a table goes; all between the markers is replaced::

    <!-- table:learning_a2v -->
    <!-- /table -->

Several results may share a table: ``<!-- table:mouth face -->``. Patterns after a bar choose
numbers by their key: ``<!-- table:critics | r2_mouth* face_* -->``. ``grid:`` in place of
``table:`` makes a row per measure and a column per condition of labels "measure: condition".
``headline`` takes rows from any results, each with words of its own and a page that says more::

    <!-- headline
    lips follow the speech | personality_default.mouth_video | docs/results/reference.md
    -->
    <!-- /table -->

``--check`` writes nothing and fails where a document and the results differ.
"""

import dataclasses
import fnmatch
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path

from avatar_v.critics.frozen import weights_hash
from avatar_v.models.base import hash_folder
from avatar_v.weights.card import read_card, weights_folder
from avatar_v.weights.weights import load_dit
from avatar_v_eval.records import RESULTS_DIR, Number, Result, read_result

ROOT = RESULTS_DIR.parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

INTERVAL = "95 % interval"
REPEATED = ("speed", "reference_attention")
"""Beginnings of the names of results with repeated timings, which have no interval."""
_MARKED = re.compile(
    r"(<!-- (table|grid):([\w ]+?)(?: \| ([^>]+?))? -->\n).*?(<!-- /table -->)", re.DOTALL
)
_BEGUN = re.compile(r"^<!-- (?:table|grid):([\w ]+?)(?: \| [^>]+?)? -->$", re.MULTILINE)
_HEADLINE_BEGUN, _END = re.compile(r"^<!-- headline$", re.MULTILINE), "<!-- /table -->"
_HEADLINE = re.compile(r"(<!-- headline\n(.*?)-->\n).*?(<!-- /table -->)", re.DOTALL)


def fill(documents: Sequence[Path], *, check: bool) -> int:
    """Make the tables of documents anew, or ``check`` them; returns 1 where a table differs."""
    stale = []
    for document in documents:
        old = document.read_text(encoding="utf-8")
        new = filled(old)
        if new != old:
            stale.append(str(document))
            if not check:
                document.write_text(new, encoding="utf-8")
    if check and stale:
        print(f"tables differ from eval/results in {', '.join(stale)}; run avatar-v-eval tables")
    return int(check and bool(stale))


def filled(document: str, results: Path = RESULTS_DIR) -> str:
    """``document`` with every marked table made anew; ValueError names a result that is missing,
    and a table without an end."""

    def read(name: str) -> Result:
        paths = sorted(results.rglob(f"{name}.json"))
        if not paths:
            raise ValueError(f"a table asks for result {name!r}, which is not in {results}")
        return read_result(paths[0])

    def marked(match: re.Match[str]) -> str:
        patterns = (match[4] or "*").split()
        found = [chosen(read(name), patterns) for name in match[3].split()]
        made = table(found) if match[2] == "table" else "\n".join(map(grid, found))
        return match[1] + made + match[5]

    def headline(match: re.Match[str]) -> str:
        lines = [f"| what | value | {INTERVAL} | n | more |", "|---|---|---|---|---|"]
        for line in match[2].strip().splitlines():
            words, place, page = (part.strip() for part in line.split(" | "))
            name, _, key = place.partition(".")
            result = chosen(read(name), [key])
            number, spread = result.numbers[key], _spread(result)
            interval = _interval(number) + ("" if spread == INTERVAL else f", {spread}")
            cells = [words, _value(number), interval, str(number.n)]
            lines.append(_row([*cells, f"[{Path(page).stem.replace('_', ' ')}]({page})"]))
        return match[1] + "\n".join([*lines, ""]) + match[3]

    begun = [*_BEGUN.finditer(document), *_HEADLINE_BEGUN.finditer(document)]
    begun.sort(key=lambda match: match.start())
    for match, after in itertools.zip_longest(begun, begun[1:]):
        end, stop = document.find(_END, match.end()), after.start() if after else len(document)
        if not 0 <= end < stop:
            name = match[1] if match.re is _BEGUN else "headline"
            raise ValueError(f"the table of {name} does not end: {_END} is missing")
    return _HEADLINE.sub(headline, _MARKED.sub(marked, document))


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


def table(results: list[Result], *, with_source: bool = True) -> str:
    """A Markdown table of all numbers, then a line on how each result was made."""
    numbers = [(key, number) for result in results for key, number in result.numbers.items()]
    with_target = any(number.target for _, number in numbers)
    heads = ["measure", "value", _spread(results[0]), "n"]
    if with_target:
        heads.append("asked")
    lines = [_row(heads), _row(["---"] * len(heads))]
    for key, number in numbers:
        cells = [number.label or key, _value(number), _interval(number), str(number.n)]
        if with_target:
            cells.append(_asked(number))
        lines.append(_row(cells))
    return "\n".join([*lines, "", *(_line(_source(r)) for r in results if with_source), ""])


def grid(result: Result) -> str:
    """A Markdown table with a row per measure and a column per condition, and a line on how it was
    made. Measures that share no condition with another are rows of a table of their own."""
    parts = _split_labels({key: n.label or key for key, n in result.numbers.items()})
    columns = Counter(condition for _, condition in parts.values())
    shared = [column for column in columns if columns[column] > 1 and column]
    rows: dict[str, dict[str, Number]] = {}
    alone: dict[str, Number] = {}
    for key, number in result.numbers.items():
        measure, condition = parts[key]
        if condition in shared:
            rows.setdefault(measure, {})[condition] = number
        else:
            alone[key] = number
    if not rows:
        return table([result])
    sizes = {number.n for row in rows.values() for number in row.values()}
    one_size = sizes.pop() if len(sizes) == 1 else None
    lines = [_row(["measure", *shared]), _row(["---"] * (len(shared) + 1))]
    for measure, row in rows.items():
        cells = [_cell(row[c], with_n=one_size is None) if c in row else "" for c in shared]
        lines.append(_row([measure, *cells]))
    said = f"n = {one_size} · small: {_spread(result)} · " if one_size else ""
    made = "\n".join([*lines, "", _line(said + _source(result)), ""])
    rest = dataclasses.replace(result, numbers=alone)
    return f"{table([rest], with_source=False)}{made}" if alone else made


def _split_labels(labels: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Measure and condition of each label. "lips: 16 s of video" is "lips" under "16 s of video",
    and "lips: the motion stream, 16 s of video" is "lips (motion stream)" under the same."""
    parts = {key: _measure_and_condition(label) for key, label in labels.items()}
    conditions = {condition for _, condition in parts.values()}
    for key, (measure, condition) in parts.items():
        before, _, known = condition.partition(", ")
        if known in conditions:
            parts[key] = (f"{measure} ({before})", known)
    return parts


def _measure_and_condition(label: str) -> tuple[str, str]:
    for cut in (label.split(": ", 1), label.rsplit(", ", 1)):
        if len(cut) == 2:
            condition = cut[1].replace("it through the VAE", "true video through the VAE")
            return cut[0], condition.removeprefix("the ")
    return label, ""


def _cell(number: Number, *, with_n: bool) -> str:
    small = [_interval(number)] if number.low is not None else []
    small += [f"n {number.n}"] * with_n
    small += [f"asked {_asked(number)}"] if number.target else []
    return _value(number) + "".join(f"<br><small>{text}</small>" for text in small)


def _spread(result: Result) -> str:
    """The words for what stands in ``low`` and ``high`` of a number."""
    return "lowest to highest" if result.name.startswith(REPEATED) else INTERVAL


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _source(result: Result) -> str:
    commit = result.commit[:10] + ("+" if result.dirty else "")
    machine = f"{result.hardware['cpu']}, {result.hardware['cores']} cores"
    if result.hardware["gpu"] != "none":
        machine += f", {result.hardware['gpu']}"
    if "precision" in result.hardware:  # older results do not say it
        machine += f", {result.hardware['precision']}"
    parts = [f"`{result.command}`", commit, result.date[:10], machine]
    made_by = [result.weights[part] for part in ("dit", "pipeline") if part in result.weights]
    if made_by:
        ships = set(made_by) <= shipped_hashes()
        parts.append("weights that ship" if ships else f"weights {made_by[0][:8]}")
    return " · ".join(parts)


def _line(made: str) -> str:
    """How a table was made, in small letters; two spaces end the line where another follows."""
    return f"<small>{made}</small>  "


@cache
def shipped_hashes() -> frozenset[str]:
    """The generator that ships, in result files: the hash of its DiT, or of its folder."""
    folder = weights_folder("small")
    whole = read_card(folder).whole
    hashes = [hash_folder(folder), *([] if whole is None else [whole.weights])]
    return frozenset([weights_hash(load_dit(folder / "dit").state_dict()), *hashes])


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
    return format(Decimal(f"{value:.3g}"), "f")
