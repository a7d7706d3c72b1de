"""Frozen networks that score video: mouth opening (motion), identity (face), lip sync (sync).

Four users: losses, rewards, curation, metrics. A critic judges; it is trained once by its own
recipe (recipes/critic_*.yaml, objectives/critic.py) and never while something else learns from it.
"""
