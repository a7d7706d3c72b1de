"""Shared fixtures. beartype, where it is installed, checks every shape of avatar_v and
avatar_v_data at run time."""

import gc
import importlib.util
import inspect
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import CodeType
from typing import Any, ForwardRef, get_args

import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook, jaxtyped

from forked import Spawning

gc.disable()  # while all is imported; see the end of pytest_collection_modifyitems
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job; children too
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def checked(made: Any = None, *, typechecker: Callable) -> Any:
    """`jaxtyped`, which the hook puts before everything that is defined, in its older form: it
    checks a call once, not what is given before it and all again behind it. That form does not know
    generators, nor types in quotes."""
    if made is None:
        return partial(checked, typechecker=typechecker)
    hints = list(getattr(made, "__annotations__", {}).values())
    if isinstance(made, type) and is_dataclass(made) and not has_quotes(hints):
        init = vars(made).get("__init__")
        if init is not None and not hasattr(init, "__wrapped__"):
            made.__init__ = mostly_checked(init)
        return made
    if not inspect.isfunction(made) or inspect.isgeneratorfunction(made) or has_quotes(hints):
        return jaxtyped(made, typechecker=typechecker)
    return mostly_checked(made) if hints else made


tests_begun = 0
counts: dict[CodeType, list[int]] = {}
"""Of all closures of a function together: the test that is run, and the calls in it."""


def mostly_checked(made: Callable) -> Callable:
    """Of the calls in each test the first are checked, and of a loop's others each eighth. The
    checks are made for the first call: few tests call most functions of a module."""
    check, count = None, [0, 0]
    if "<locals>" in made.__qualname__:
        count = counts.setdefault(made.__code__, count)

    @wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal check
        if count[0] != tests_begun:
            count[:] = tests_begun, 0
        count[1] += 1
        if count[1] > 24 and count[1] % 8:
            return made(*args, **kwargs)
        if check is None:
            check = jaxtyped(as_type_error(made), typechecker=None)
        return check(*args, **kwargs)

    return call


def has_quotes(hint: Any) -> bool:
    """Whether some part of a type is a text."""
    parts = hint if isinstance(hint, list) else get_args(hint)
    return isinstance(hint, str | ForwardRef) or any(map(has_quotes, parts))


if importlib.util.find_spec("beartype"):  # a rented machine does without
    from beartype import BeartypeConf, beartype

    as_type_error = beartype(conf=BeartypeConf(violation_type=TypeError))  # as Python's own
    jaxtyping.jaxtyped = checked
    install_import_hook(["avatar_v", "avatar_v_data"], "beartype.beartype")
if importlib.util.find_spec("triton") and not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # its interpreter stands in for a GPU, in this process
    importlib.import_module("avatar_v.kernels.scopes")
    del os.environ["TRITON_INTERPRET"]  # alone

_context = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: (
    Spawning() if method == "spawn" else _context(method)
)  # a start of seconds, most of them for torch

MEDIA = Path(__file__).resolve().parents[2] / "shared" / "media"
LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "RANK", "WORLD_SIZE")
"""What Lightning's launchers leave, by which others take the next file's process for a rank."""
NOTEBOOK = "follow_a_batch"
"""The one that runs with every test; of the others test_docs.py resolves what they import."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="replace the golden losses")


def pytest_runtest_setup() -> None:
    global tests_begun
    tests_begun += 1


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path == item.path:
        return  # a fixture of the file may hold a process group
    for name in LAUNCHED:
        os.environ.pop(name, None)
    if is_left := torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    assert not is_left, "its process group would be that of the next file"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`media` tests read real clips beside the checkout, `gpu` tests a CUDA device, `faces` tests
    dlib; `slow` and `chain` tests, and all notebooks but one, wait to be asked for."""
    import torch

    from avatar_v.faces import face_track

    asked = config.getoption("markexpr")
    waiting = [name for name in ("slow", "chain") if name not in asked]
    for item in items:
        if item.path.suffix == ".ipynb" and item.path.stem != NOTEBOOK:
            item.add_marker(pytest.mark.slow)
    left_out = [item for item in items if any(map(item.get_closest_marker, waiting))]
    if left_out:  # more than a thousand: as skipped tests each would cost its report
        config.hook.pytest_deselected(items=left_out)
        out = set(left_out)
        items[:] = [item for item in items if item not in out]
    for item in items:
        if item.get_closest_marker("media") and not MEDIA.is_dir():
            item.add_marker(pytest.mark.skip(reason=f"no real clips at {MEDIA}"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if item.get_closest_marker("faces") and not face_track.is_available():
            item.add_marker(pytest.mark.skip(reason="needs the [faces] extra"))
    gc.collect()
    gc.freeze()  # what is imported stays, and is not searched again and again
    gc.enable()


@pytest.fixture
def write_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--write-golden"))


@pytest.fixture
def media() -> Path:
    """The folder of real clips; tests that use it carry the `media` marker."""
    return MEDIA
