"""Packets passed on unchanged, also by a process of its own: FLV from stdin to an RTMP server.

``python -m avatar_v.media.push rtmp://…`` (outputs.RtmpPush) imports little but PyAV, and can be
ended where a server hangs. It leaves one line on stderr and status 1 if the server refuses or goes
away.
"""

import sys

import av
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError
from av.stream import Stream


def push(url: str) -> None:
    """Returns at the end of stdin."""
    with (
        open(0, "rb", buffering=0) as stdin,  # buffered, a read would wait for a whole block
        av.open(stdin, "r", format="flv") as source,
        av.open(url, "w", format="flv", options={"flvflags": "no_duration_filesize"}) as target,
    ):
        copy_packets(source, target)


def copy_packets(source: InputContainer, target: OutputContainer) -> None:
    """All streams of ``source``, in its order, as they come; nothing is encoded again."""
    copies: dict[int, Stream] = {
        stream.index: target.add_stream_from_template(stream) for stream in source.streams
    }
    for packet in source.demux():
        if packet.dts is not None:  # demux ends with empty packets
            packet.stream = copies[packet.stream.index]
            target.mux(packet)


if __name__ == "__main__":
    try:
        push(sys.argv[1])
    except FFmpegError as error:
        sys.exit(f"the server does not take the stream ({error})")
