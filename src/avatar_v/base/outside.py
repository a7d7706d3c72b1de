"""Files of other people as bytes and values: YAML, JSON and tables, read within bounds.

Only regular files are read: a pipe would be waited for, and a device never ends. A small file never
becomes a large structure: YAML lets a file name a part of itself again (an alias), so that a
kilobyte can stand for more lists than any memory holds. A key that stands twice in a mapping, or a
column twice in a header, is an error: else the later one would win without a word. Types of values
are checked by stored.py, names of files by paths.py.
"""

import contextlib
import csv
import errno
import io
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1_000_000
"""Of a file of YAML."""
MAX_JSON = 1 << 28
"""Of a file of JSON, or a table."""
MAX_VALUES = 20_000
"""Of YAML, with all aliases written out."""
MAX_DEPTH = 64
POINTER = b"version https://git-lfs.github.com/spec/v1\n"
MERGE = "tag:yaml.org,2002:merge"


def regular_file(
    path: str | Path, *, expected: str = "expected a video, image or audio file"
) -> int:
    """A descriptor of the file, open for reading. ValueError that says what ``path`` is instead.

    A pipe, socket or device is refused without waiting for it, and what is opened is what was
    checked.
    """
    try:
        found = _kind(os.stat(path).st_mode)
        if found is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            found = _kind(os.fstat(descriptor).st_mode)
            if found is None:
                return descriptor
            os.close(descriptor)
    except OSError as error:
        found = why_not(error)
    except ValueError:  # a zero byte
        raise ValueError(f"{str(path)!r}: not a path; {expected}") from None
    raise ValueError(f"{path}: {found}; {expected}")


def why_not(error: OSError) -> str:
    """Why a path cannot be opened, in words for a sentence."""
    words = {
        errno.ENOENT: "no such file",
        errno.ENOTDIR: "no such file",
        errno.ELOOP: "its links go in a circle",
        errno.EACCES: "may not be read",
    }
    code = error.errno or 0
    return words.get(code, os.strerror(code).lower())


def read_bytes(path: str | Path, *, what: str, most: int = MAX_JSON) -> bytes:
    """The bytes of a file that should be a ``what``. ValueError for one that cannot be read, is no
    regular file, or has more than ``most`` bytes."""
    with open(regular_file(path, expected=f"expected a {what}"), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} is no {what}: it has more than {most:,} bytes")
    return data


def read_text(path: str | Path, *, what: str, most: int = MAX_JSON) -> str:
    """The same in UTF-8, perhaps behind a mark of byte order."""
    try:
        return read_bytes(path, what=what, most=most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no {what}: it is not text in UTF-8") from error


def read_yaml(path: str | Path, what: str) -> Any:
    """What is in a file of YAML that should be a ``what``. ValueError as `read_bytes` and
    `parse_yaml`."""
    return parse_yaml(read_bytes(path, what=what, most=MAX_BYTES), where=path, what=what)


def parse_yaml(data: str | bytes, *, where: str | Path, what: str) -> Any:
    """The values of a YAML text. ValueError, which begins with ``where``, for what is no YAML, for
    a key that is there twice, and for more than the bounds allow."""
    try:
        loader = _Loader(data if isinstance(data, str) else data.decode("utf-8"))
        with contextlib.closing(_Disposed(loader)):
            root = _composed(loader)
            return None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not YAML: it is not text in UTF-8") from error
    except RecursionError as error:
        raise ValueError(f"{where} is no {what}: its values are nested too deeply") from error
    except (ValueError, TypeError) as error:  # TypeError: a list as a key
        raise ValueError(f"{where}: {error}") from error


def check_yaml(text: str) -> None:
    """ValueError for a text that another reader of YAML may not be given; what is no YAML passes,
    for it is a word."""
    loader = _Loader(text)
    try:
        with contextlib.closing(_Disposed(loader)):
            _composed(loader)
    except yaml.YAMLError:
        return
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def parse_json(text: str | bytes, *, where: str | Path) -> Any:
    """The values of a JSON text; ValueError for anything else, however deep it is nested, and for
    a key that is there twice."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error


def read_json(path: str | Path) -> dict[str, Any]:
    """ValueError for a missing file or one that is not a JSON object."""
    if not Path(path).is_file():
        raise ValueError(f"no file {path}")
    check_pulled(path)
    data = read_bytes(path, what="JSON file")
    values = parse_json(data.decode("utf-8", errors="surrogateescape"), where=path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, expected an object")
    return values


def check_pulled(path: str | Path) -> None:
    """ValueError where a file, or one in a folder, is not there itself, but as Git LFS's pointer to
    it, which `git clone` leaves without git-lfs."""
    path = Path(path)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        with file.open("rb") as opened:
            if opened.read(len(POINTER)) == POINTER:
                raise ValueError(
                    f"{file} is a pointer of Git LFS, not the file itself; "
                    "run `git lfs pull` in its repository"
                )


def read_table(
    path: str | Path, columns: Sequence[str] | None = None
) -> list[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with their line numbers. ValueError for a header that names a column
    twice, or others than ``columns``, in whatever order, and for rows that do not fit it."""
    text = read_text(path, what="table in UTF-8")
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        names = list(reader.fieldnames or ())
        if twice := _twice(names):
            raise ValueError(f"{path}: the column {twice} is there twice")
        if columns is not None and set(names) != set(columns):
            raise ValueError(f"{path} has columns {names}, expected {list(columns)}")
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ValueError(f"{path}: no table in UTF-8 ({error})") from error
    if short := [number for number, row in rows if None in row or None in row.values()]:
        raise ValueError(f"{path}, line {short[0]}: not as many cells as the header has")
    return rows


class _Loader(yaml.SafeLoader):
    """Plain values alone, nested at most `MAX_DEPTH` deep."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Disposed:
    """A loader of YAML whose parser ends with the block."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.close = loader.dispose


def _composed(loader: yaml.SafeLoader) -> yaml.Node | None:
    """The one document, whose size is bounded and whose keys differ."""
    root = loader.get_single_node()
    if root is None:
        return None
    if _num_values(root, {}) > MAX_VALUES:
        raise ValueError(f"aliases (*name) make more than {MAX_VALUES:,} values of it")
    for node in _mappings(root, set()):
        keys = [_key(loader, key) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := _twice(keys):
            line = node.start_mark.line + 1
            raise ValueError(f"the key {twice} is there twice in the mapping of line {line}")
    return root


def _key(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    """What it becomes: 1 and 0x1 are one key, 1 and "1" are two."""
    return node.value if node.tag == MERGE else loader.construct_object(node)


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Values below ``node``, itself included, each alias counted like what it stands for; too
    many for a node that holds itself."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = MAX_VALUES + 1  # while its parts are counted
    known[id(node)] = 1 + sum(_num_values(child, known) for child in _children(node))
    return known[id(node)]


def _mappings(node: yaml.Node, seen: set[int]) -> Iterator[yaml.MappingNode]:
    """Each mapping at or below ``node`` once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield node
    for child in _children(node):
        yield from _mappings(child, seen)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError(f"the key {_twice([key for key, _ in pairs])} is there twice")
    return values


def _twice(names: Sequence[Any]) -> str | None:
    """The first of the names that are there more than once, as it is shown."""
    return next((f"{name!r:.60}" for name, num in Counter(names).items() if num > 1), None)


def _kind(mode: int) -> str | None:
    """What kind of file a mode is of; None for a regular one."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return None if stat.S_ISREG(mode) else kinds.get(stat.S_IFMT(mode), "not a regular file")
