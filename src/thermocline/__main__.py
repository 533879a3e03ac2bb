"""Entry point of `thermo`: install the signal handlers first, then load and run the command."""

from __future__ import annotations

import sys

from thermocline import interrupt


def main() -> int:
    """Run the command that the arguments name and return its exit code."""
    interrupt.install()
    from thermocline.cli.main import run

    return interrupt.confirm_exit(run())


if __name__ == "__main__":
    sys.exit(main())
