"""The command `avatar-v-data voices`: speech to train voice models on."""

import argparse
from pathlib import Path

from avatar_v.base.options import at_once
from avatar_v.base.outside import read_text
from avatar_v.base.progress import progress_bar


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", required=True, help="folder; the same command goes on there")
    add("--voices", type=int, required=True, help="number of voices, every other one drawn")
    add("--sentences", type=int, default=20, help="of each voice (default: 20)")
    add("--split", default="train", choices=["train", "validation", "test"])
    add("--first", type=int, default=0, help="number of the first voice of the split")
    add("--texts", help="a file of sentences, one a line (default: some are made)")
    add(
        "--languages", nargs="+", default=["en"], help="that the voices speak in turn (default: en)"
    )
    add("--emotions", type=float, default=0.0, help="share of sentences with one (default: 0)")
    add("--workers", type=at_once, default=1, help="processes (default: 1)")


def run(args: argparse.Namespace) -> int:
    from avatar_v_data.voice_corpus import make_corpus

    with progress_bar() as progress:
        task = progress.add_task("voices", total=None)
        make_corpus(
            Path(args.out),
            args.split,
            args.voices,
            args.sentences,
            first=args.first,
            texts=read_text(args.texts, what="text").splitlines() if args.texts else None,
            languages=args.languages,
            emotions=args.emotions,
            num_workers=args.workers,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    return 0
