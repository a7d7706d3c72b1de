"""`avatar-v shards …` and `avatar-v-data …` in this process, and a wait for another process."""

import argparse
import time
from collections.abc import Callable

from avatar_v.commands import shards as cli
from avatar_v_data import cli as data_cli


def run(*words: str) -> int:
    """`avatar-v-data import | world`, or another command of `avatar-v shards`."""
    if words[0] in ("import", "world"):
        return data_cli.run(data_cli.build_parser().parse_args(words))
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
