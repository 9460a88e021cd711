"""What a user's process runs: it claims runs at a desk, executes handlers, and reports."""
