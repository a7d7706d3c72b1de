"""A process of its own for code that nobody has read, with limits and, where the machine allows, in
namespaces of its own (sandbox.sh): no network, no other process in sight, and of the files Python,
the compiler and this package alone, read-only; what it writes lies in memory and goes with it. It
has no rights of root, no environment but a short list, and a kernel that is shared.

`Box` stops and continues it as a whole, and reads from outside what it has used.
"""

import contextlib
import functools
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import avatar_v
from avatar_v.kernels.evolve.spec import Limits

NOBODY = 65534
SYSTEM = ("/usr", "/etc/ld.so.cache", "/etc/alternatives", "/sys/devices/system/cpu")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
TOOLS = ("unshare", "setpriv", "prlimit", "mount", "pivot_root", "sh")
SCRIPT = Path(__file__).with_name("sandbox.sh")
POLL_S = 0.1
FILES = 128
"""That one process may hold open: each can be as long as `Limits.files_mb`."""
TAIL = 2000
"""Characters of what a process printed that are kept."""


class Fault(Exception):
    """Why a candidate is out: one word, and a sentence."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason


class Box:
    """``command`` in ``folder``, alone with its descendants, until the block ends."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        *,
        threads: int = 1,
        cuda: bool = False,
        isolated: bool = True,
        kept: Sequence[int] = (),
    ) -> None:
        self._limits, self._stack = limits, contextlib.ExitStack()
        self._shared = {_file_key(os.fstat(descriptor)) for descriptor in kept}
        self._printed = folder / "printed"
        inner = [*_limits(limits, cuda), *command]
        root = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="avatar_v_room_"))
        if isolated:
            places = "\n".join(_places(cuda))
            room = [str(SCRIPT), root, places, str(folder), str(limits.files_mb)]
            inner = [*_namespaces(), "sh", *room, *_unprivileged(), *inner]
        with self._printed.open("wb") as printed:
            self._outer = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *inner],
                stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, cwd=folder,
                env=_environment(threads, cuda, "/tmp" if isolated else str(folder)),
                pass_fds=kept, start_new_session=True,
            )  # fmt: skip
        self._isolated, self._pid = isolated, 0

    @property
    def pid(self) -> int:
        """Of the candidate's first process, as this machine counts."""
        if not self._isolated:
            return self._outer.pid
        if not self._pid:
            found = _children(self._outer.pid)
            self._pid = found[0] if found else 0
        return self._pid

    def close(self) -> None:
        """End all that runs in it; its namespaces go with its first process."""
        for pid in [*descendants(self._outer.pid)][1:]:
            _kill(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._outer.pid, signal.SIGKILL)
        self._outer.wait()
        self._stack.close()

    def wait(self, answers: int, seconds: float) -> bytes:
        """The next byte from its pipe. `Fault` where there is none in time or ever, and that of
        `check_memory` while it waits."""
        end = time.monotonic() + seconds
        while not select.select([answers], [], [], POLL_S)[0]:
            if time.monotonic() > end:
                raise Fault("time", f"no answer within {seconds:g} s")
            self.check_memory()
        found = os.read(answers, 1)
        if not found:
            raise Fault("crash", f"its process ended: {self.printed() or 'without a word'}")
        return found

    def check_memory(self) -> None:
        """`Fault` where all of its processes hold more than they may: what is resident, and open
        files without a name (memfds, deleted files), which are memory that no process need map."""
        processes = [*descendants(self.pid)] if self.pid else []
        files: dict[tuple[int, int], int] = {}
        for process in processes:
            try:
                files |= _unnamed_files(process)
            except PermissionError:  # for a moment also of one that only begins
                if _state(process) == "T":
                    raise Fault("cheat", "hides what it holds open") from None
        used = sum(map(_resident, processes))
        used += sum(size for key, size in files.items() if key not in self._shared)
        if used > self._limits.memory_mb << 20:
            raise Fault("memory", f"holds {used >> 20:,} MiB")

    def stop(self) -> None:
        """Returns when none of its threads runs any more. `Fault` for processes that it left."""
        pid, end = self.pid, time.monotonic() + 5
        try:
            os.kill(pid, signal.SIGSTOP)
            while any(_state(f"{pid}/task/{t}") != "T" for t in os.listdir(f"/proc/{pid}/task")):
                if time.monotonic() > end:
                    raise Fault("cheat", "could not be stopped")
        except (FileNotFoundError, ProcessLookupError):
            raise Fault("crash", f"its process ended: {self.printed()}") from None
        left = [p for p in descendants(pid) if p != pid and _state(p) != "Z"]
        if left:
            raise Fault("cheat", f"left {len(left)} processes running beside it")

    def go(self) -> None:
        """Behind `stop`: it runs again."""
        os.kill(self.pid, signal.SIGCONT)

    def close_ranks(self) -> None:
        """From now on it can start neither processes nor threads."""
        change = ["prlimit", "--pid", str(self.pid), "--nproc=0:0"]
        user = ["setpriv", *_nobody()] if self._isolated and os.geteuid() == 0 else []
        if subprocess.run([*user, *change], capture_output=True).returncode:
            raise Fault("crash", f"its process ended: {self.printed()}")

    def computed_s(self) -> float:
        """Seconds of computing of all threads of its first process, those that ended included."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # as clock_getcpuclockid has it
        except OSError:
            raise Fault("crash", f"its process ended: {self.printed()}") from None

    def printed(self) -> str:
        """The end of what it printed."""
        with self._printed.open("rb") as file:
            file.seek(max(0, self._printed.stat().st_size - TAIL))
            return file.read(TAIL).decode("utf-8", "replace").strip()


@functools.cache
def isolation() -> str | None:
    """What is missing for namespaces of a process's own; None: they can be had, as was tried."""
    if missing := [tool for tool in TOOLS if _tool(tool) is None]:
        return f"{', '.join(missing)} (util-linux)"
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix="avatar_v_box_") as name:
        folder = Path(name)
        folder.chmod(0o755)
        words = f"import os; os.listdir('/box'); os.write({writer}, b'y')"
        box = Box([sys.executable, "-c", words], folder, Limits(), kept=[writer])
        os.close(writer)
        try:
            return None if box.wait(reader, 30.0) == b"y" else "a clean start"
        except Fault as fault:
            return f"the right to make namespaces ({fault.reason[-200:]})"
        finally:
            box.close()
            os.close(reader)


def descendants(pid: int) -> Iterator[int]:
    """The process and all below it that are there."""
    yield pid
    for child in _children(pid):
        yield from descendants(child)


def _namespaces() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    kinds = ["--mount", "--pid", "--fork", "--net", "--ipc", "--uts", "--kill-child"]
    return ["unshare", *user, *kinds]


def _unprivileged() -> list[str]:
    """Nobody where root starts it, else the user whose namespace it is, without any rights."""
    rights = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--pdeathsig", "KILL"]
    return ["setpriv", *(_nobody() if os.geteuid() == 0 else []), *rights]


def _nobody() -> list[str]:
    return [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def _limits(limits: Limits, cuda: bool) -> list[str]:
    """A GPU's driver reserves addresses without end, so that they are not limited beside one."""
    most = {"cpu": limits.cpu_s, "fsize": limits.files_mb << 20, "core": 0, "nofile": FILES}
    most |= {"nproc": limits.processes} | ({} if cuda else {"as": limits.memory_mb << 20})
    return ["prlimit", *(f"--{name}={value}:{value}" for name, value in most.items())]


def _places(cuda: bool) -> list[str]:
    """Folders and files that are seen inside, none within another of them."""
    paths = {*SYSTEM, *DEVICES, str(Path(avatar_v.__file__).parent), sys.prefix, sys.base_prefix}
    paths |= {str(Path(torch.__file__).parents[1]), sysconfig.get_paths()["purelib"]}
    paths |= {p for p in ("/bin", "/sbin", "/lib", "/lib64") if not os.path.islink(p)}
    paths |= {str(path) for path in Path("/dev").glob("nvidia*")} if cuda else set()
    paths |= {os.path.realpath(path) for path in paths}
    there = sorted(path for path in paths if os.path.exists(path))
    return [p for p in there if not any(q != p and p.startswith(f"{q}/") for q in there)]


def _environment(threads: int, cuda: bool, home: str) -> dict[str, str]:
    """Nothing of this process's own."""
    above = str(Path(avatar_v.__file__).parents[1])
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": home, "TMPDIR": home, "USER": "nobody", "LANG": "C.UTF-8", "PYTHONPATH": above,
        "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0", "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "TRITON_CACHE_DIR": f"{home}/triton", **({} if cuda else {"TRITON_INTERPRET": "1"}),
    }  # fmt: skip


def _tool(name: str) -> str | None:
    return shutil.which(name, path=_environment(1, False, "/tmp")["PATH"])


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            found += map(int, text.split())
    return found


def _state(process: int | str) -> str:
    """One letter, as proc(5) has them; "" for one that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0


def _unnamed_files(pid: int) -> dict[tuple[int, int], int]:
    """Bytes of the files that a process holds open and that have no name. Threads are looked at one
    by one, since each may have open files of its own."""
    found: dict[tuple[int, int], int] = {}
    for thread in _listed(f"/proc/{pid}/task"):
        for descriptor in _listed(f"/proc/{pid}/task/{thread}/fd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                file = os.stat(f"/proc/{pid}/task/{thread}/fd/{descriptor}")
                if stat.S_ISREG(file.st_mode) and file.st_nlink == 0:
                    found[_file_key(file)] = 512 * file.st_blocks
    return found


def _file_key(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def _listed(folder: str) -> list[str]:
    """[] of a process that is gone."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
