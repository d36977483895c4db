"""The kvcast command, and python -m kvcast: Ctrl-C is one line from the first import on."""

import sys


def main() -> int:
    try:
        from kvcast.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("kvcast: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
