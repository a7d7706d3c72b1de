"""``python -m avatar_v.generate.push rtmp://…``: FLV from stdin to an RTMP server.

A process of its own (outputs.RtmpPush): it imports little but PyAV, and can be ended where a server
hangs. One line on stderr and status 1 if the server refuses or goes away.
"""

import sys

import av
from av.error import FFmpegError

from avatar_v.generate.remux import copy_packets


def push(url: str) -> None:
    """Returns at the end of stdin."""
    with (
        open(0, "rb", buffering=0) as stdin,  # buffered, a read would wait for a whole block
        av.open(stdin, "r", format="flv") as source,
        av.open(url, "w", format="flv", options={"flvflags": "no_duration_filesize"}) as target,
    ):
        copy_packets(source, target)


if __name__ == "__main__":
    try:
        push(sys.argv[1])
    except FFmpegError as error:
        sys.exit(f"the server does not take the stream ({error})")
