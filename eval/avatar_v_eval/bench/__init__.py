"""The cross-scene benchmark (Avatar V §7): any talking-avatar system, measured by machines.

Down the flow: `manifest` (the cases; `world70` and `pairs` make some) → `systems` (who delivers a
video of a case) → `footage` (files to tensors, or the reason why not) → `metrics/` (one file each,
on `metric`, `sampling`, `readings`) → `cache` → `score` (one case) → `run` (all of them) → `rows`
(Parquet) → `summary`. `sensitivity` tells how far a metric moves when nothing that matters changed.
"""
