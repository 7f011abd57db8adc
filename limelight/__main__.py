"""`python -m limelight` is the same as `limelight`."""

import sys


def main() -> None:
    """Run the command. Ctrl-C is answered as it will be later, also while Python still reads it."""
    try:
        from limelight.cli import main
    except KeyboardInterrupt:
        print("limelight: interrupted", file=sys.stderr)
        sys.exit(130)
    main()


if __name__ == "__main__":
    main()
