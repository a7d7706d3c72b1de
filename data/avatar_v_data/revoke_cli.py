"""`avatar-v-data revoke`: what is there of a person who withdraws, and with --apply its removal."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from avatar_v.base.progress import progress_bar
from avatar_v.base.words import counted, listed, near

if TYPE_CHECKING:
    from avatar_v_data.revoke import Trace

SOMETHING_LEFT = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Looks below folders for everything that holds a person: clips of shards, latents and "
        "preference pairs, results of the data engine, tables, manifests, records of consent. With "
        "--apply these are removed. Recordings, trained weights, videos made and files that say "
        "the name are listed and left to you; exit status 1 where there are any, 2 where nothing "
        "is there of such a person."
    )
    add = parser.add_argument
    add("folders", nargs="+", metavar="FOLDER", help="where to look, in subfolders too")
    add("--person", metavar="NAME", help="as shards and manifests name the person")
    add(
        "--record",
        metavar="FILE",
        help="a record of consent: its name, and its face among the data engine's",
    )
    add("--apply", action="store_true", help="remove; without it nothing is changed")


def run(args: argparse.Namespace) -> int:
    from avatar_v.safety.consent import read_consent
    from avatar_v_data.revoke import remove, traces_of
    from avatar_v_data.revoke_left import BEFORE
    from avatar_v_data.revoke_place import Place, persons_in
    from avatar_v_data.revoke_who import Withdrawn

    who = Withdrawn.of(args.person, read_consent(Path(args.record)) if args.record else None)
    place = Place.below(args.folders)
    found = traces_of(who, place)
    if all(trace.what == BEFORE for trace in found):
        _print("left to you", found)
        names, known = listed(sorted(who.names)), persons_in(place)
        alike = sorted({one for name in who.names for one in near(name, known)})
        words = f"; nearest: {listed(alike)}" if alike else ""
        raise ValueError(f"nothing is there of {names}, who may have been removed before{words}")
    removable = [trace for trace in found if trace.remove is not None]
    left = [trace for trace in found if trace.remove is None]
    _print("to be removed" if not args.apply else "removed", removable)
    if args.apply and removable:
        with progress_bar() as progress:
            task = progress.add_task("revoke", total=len(removable))
            folder = Path(args.folders[0]).resolve()
            remove(who, removable, folder, lambda num: progress.update(task, completed=num))
        again = traces_of(who, Place.below(args.folders))
        if still := [trace for trace in again if trace.remove is not None]:
            raise ValueError(f"{still[0].path} came back while it was removed: try again")
        left += [trace for trace in again if trace not in left]  # weights no longer show
    _print("left to you", left)
    if not args.apply:
        print(f"nothing was changed: --apply removes {counted(len(removable), 'thing')}")
    return SOMETHING_LEFT if left else 0


def _print(title: str, traces: Sequence["Trace"]) -> None:
    if traces:
        print(f"{title}:")
        for trace in traces:
            print(f"  {trace.path}: {trace.what}")
