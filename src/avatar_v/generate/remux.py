"""Packets from one container to another, unchanged: nothing is encoded again."""

from av.container import InputContainer, OutputContainer
from av.stream import Stream


def copy_packets(source: InputContainer, target: OutputContainer) -> None:
    """All streams of ``source``, in its order, as they come."""
    copies: dict[int, Stream] = {
        stream.index: target.add_stream_from_template(stream) for stream in source.streams
    }
    for packet in source.demux():
        if packet.dts is not None:  # demux ends with empty packets
            packet.stream = copies[packet.stream.index]
            target.mux(packet)
