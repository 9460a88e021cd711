"""The entry point of the `rota` script. What takes time to import is imported where Ctrl-C is understood already."""

import sys
import traceback


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        from rota.cli import supervision
        from rota.cli.leaving import leave
        from rota.cli.root import app

        supervision.allow()
        try:
            code = app(standalone_mode=False)
        except Exception:
            # With ROTA_DEBUG=1. Without a word of its end a supervisor would start a worker again and again.
            traceback.print_exc()
            code = 1
        leave(code)
    except KeyboardInterrupt:
        print("ended by Ctrl-C", file=sys.stderr)
        sys.exit(130)
