"""avatar_v_data makes shards for avatar_v: from videos, and of the embedded world.

It imports avatar_v, and avatar_v imports nothing of it.
"""
