"""One file a metric; `metric.metric_classes` finds them. A new file here is a new metric."""
