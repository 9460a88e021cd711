"""What Rota costs, measured: `python -m benchmarks [NAME...]` prints JSON lines {"name", "value", "unit"}.

Every benchmark runs on an embedded PostgreSQL of its own with fsync on. Figures and method: docs/benchmarks.md.
"""
