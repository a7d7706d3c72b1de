"""Every hostile command line, and one table of how they end.

``PYTHONPATH=tests python -m bad_inputs`` takes some minutes. ``--out eval/results`` writes the
counts, ``--only WORD`` runs the cases with this word alone.
"""

import argparse
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import track

from avatar_v_eval.records import Number, Result, make_result, write_result
from bad_inputs.case import ACCEPTED, REFUSED, WARNED
from bad_inputs.cases import all_cases
from bad_inputs.files import make_files
from bad_inputs.judge import Verdict, judged
from bad_inputs.runner import LIMIT_S


def main() -> int:
    """Print every fault; the exit status is 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name or command holds this word")
    parser.add_argument("--out", help="folder of the result file bad_inputs.json")
    parser.add_argument("--all", action="store_true", help="print every case, not faults alone")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    cases = [c for c in all_cases() if args.only in c.name or args.only in c.command]
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(args.workers) as pool:
        files = Path(place) / "files"
        make_files(files)
        done = pool.map(lambda case: judged(case, files), cases)
        verdicts = list(track(done, total=len(cases), description="bad inputs"))
    for verdict in verdicts:
        if verdict.fault or args.all:
            mark = "FAULT" if verdict.fault else "ok   "
            print(f"{mark} {verdict.case.name:40} {verdict.fault or verdict.outcome}")
            print(f"      {verdict.error[:300]}")
    counts = Counter(verdict.outcome for verdict in verdicts)
    faults = sum(verdict.fault is not None for verdict in verdicts)
    print(f"{len(cases)} cases, {faults} faults: {dict(counts)}")
    if args.out and not args.only:
        print(write_result(_result(verdicts), args.out))
    return 1 if faults else 0


def _result(verdicts: list[Verdict]) -> Result:
    """How many commands ended how. The CPU time counts from the front end's first line."""
    ends = [verdict.outcome for verdict in verdicts]
    faults = sum(verdict.fault is not None for verdict in verdicts)
    slowest = max(v.cpu_s for v in verdicts if v.outcome == REFUSED)

    def share(label: str, count: int, target: str = "") -> Number:
        return Number(count, len(ends)).described(label, target=target)

    numbers = {
        "refused": share("refused: exit status 2, one line, nothing left", ends.count(REFUSED)),
        "warned": share("carried out with a warning", ends.count(WARNED)),
        "accepted": share("carried out", ends.count(ACCEPTED)),
        "tracebacks": share("tracebacks", ends.count("traceback"), "< 1"),
        "hangs": share(f"longer than {LIMIT_S:.0f} s", ends.count("hangs"), "< 1"),
        "faults": share("ends that differ from the table's, whatever the kind", faults, "< 1"),
        "slowest": Number(slowest, ends.count(REFUSED)).described(
            "slowest refusal, CPU time without imports", unit="s", target="< 10"
        ),
    }
    return make_result("bad_inputs", "Hostile and careless command lines", numbers)


if __name__ == "__main__":
    sys.exit(main())
