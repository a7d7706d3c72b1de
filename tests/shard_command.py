"""`avatar-v shards …` in this process, and what tests of it as another process wait for."""

import argparse
import time
from collections.abc import Callable

from avatar_v.shards import cli


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    return cli.run(parser.parse_args(["shards", *words]))


def wait_for(happened: Callable[[], object], seconds: float = 60) -> None:
    """Until ``happened()``; TimeoutError after so many seconds."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.02)
