"""The command line: one module for each noun, over `options` (what all share) and `output` (how they speak)."""
