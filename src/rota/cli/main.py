"""The entry point of the `rota` script. What takes time to import is imported where Ctrl-C is understood already."""

import sys


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        from rota.cli import supervision
        from rota.cli.leaving import leave
        from rota.cli.root import app

        supervision.allow()
        leave(app(standalone_mode=False))
    except KeyboardInterrupt:
        print("ended by Ctrl-C", file=sys.stderr)
        sys.exit(130)
