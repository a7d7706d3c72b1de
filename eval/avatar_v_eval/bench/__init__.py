"""The cross-scene benchmark (Avatar V §7): any talking-avatar system, measured by machines.

Down the flow: `manifest` (the cases; `world70` and `pairs` make some) → `systems` (who delivers a
video of a case, and how fast) → `footage` (files to a clip, or the reason why not) → `scoring` (its
scorers are the metrics) → `cache` → `score` (one case) → `run` (all of them) → `sets` (FID, FVD: a
number a system) → `rows` (Parquet), `merge` → `summary`. `controls` are systems with a known place.
"""
