"""What acts: each service owns its transactions and its part of a run's way, and none imports another.

`loop`, `hints` and `owned` are what they share: how to go on ticking, how to wake each other, and which shards are
ours.
"""
