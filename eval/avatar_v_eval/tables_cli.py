"""`avatar-v-eval tables`: write the tables of the documents, which the result files decide."""

import argparse
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `tables`."""
    parser = subparsers.add_parser(
        "tables", help="write the documents' tables from eval/results", allow_abbrev=False
    )
    parser.add_argument("documents", metavar="FILE", nargs="*", type=Path, help="Markdown (all)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    from avatar_v_eval.tables import DOCUMENTS, fill

    return fill(args.documents or DOCUMENTS, check=args.check)
