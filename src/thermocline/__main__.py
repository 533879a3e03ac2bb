"""The first lines of `thermo`: from here on a signal ends it, whatever it is loading or doing."""

from __future__ import annotations

import sys

from thermocline import interrupt


def main() -> int:
    """Run the command that the arguments name, and return its exit code."""
    interrupt.install()
    from thermocline.cli.main import run

    return interrupt.leave(run())


if __name__ == "__main__":
    sys.exit(main())
