"""What a server says of its queue and of its conversations, for Prometheus; no names of clients."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from avatar_v.generate.session import LiveSession
from avatar_v.serving.job_store import JobStore


class QueueMetrics(Collector):
    """What the queue is like now."""

    def __init__(self, store: JobStore) -> None:
        self.store = store

    def collect(self) -> Iterable[Metric]:
        words = "Videos and conversations that are known, by state and priority"
        videos = GaugeMetricFamily("avatar_v_videos", words, labels=["state", "priority"])
        for (state, priority), num in sorted(self.store.counts().items()):
            videos.add_metric([state, str(priority)], num)
        yield videos
        yield GaugeMetricFamily("avatar_v_workers", "Workers that live", self.store.num_workers())


class LiveMetrics:
    """What became of the conversations."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        how = {"namespace": "avatar_v_live", "registry": self.registry}
        self.held = Gauge("conversations", "Places that are taken", **how)
        self.capacity = Gauge("capacity", "Conversations that the machine can hold", **how)
        self.refused = Counter("refused", "Places that were refused", **how)
        self.failed = Counter("failed", "Conversations that ended with a fault", **how)
        self.frames = Counter("frames", "Frames made", **how)
        self.first = Histogram(
            "first_frame_seconds",
            "From the open socket to the first frame",
            buckets=(0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 30),
            **how,
        )
        self.bad = Counter("faulty_packets", "Packets with NaN or infinite samples", **how)
        self.dropped = Counter("dropped_seconds", "Sound that came too late to be spoken", **how)
        self.skipped = Counter("skipped_seconds", "Time in which the making was behind", **how)

    def count(self, session: LiveSession) -> None:
        """A conversation is over."""
        counts = session.counts
        self.bad.inc(counts.num_bad)
        self.dropped.inc(counts.dropped_s + counts.late_s)
        self.skipped.inc(counts.skipped_s)
