"""The `dragoman` command, also as `python -m dragoman`: signals end it in one line, or none."""

import os
import signal
import sys


def _stop(number: int, _: object) -> None:
    error = sys.exception()
    while error is not None:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return  # an earlier signal's, and what cleans up goes on
        error = error.__context__
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def main() -> None:
    """Run the command line, see `cli.main`; signals that come while it cleans up are ignored."""
    usual = signal.SIG_DFL, signal.default_int_handler
    stops = {1, 2, 15} & signal.valid_signals()  # SIGHUP, which not all systems have, INT and TERM
    for number in stops:
        if signal.getsignal(number) in usual:
            signal.signal(number, _stop)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: in this order, each gets its own number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:  # while it was imported
        sys.stderr.write("Interrupted.\n")
        sys.exit(128 + signal.SIGINT)
    except MemoryError as error:
        sys.stderr.write(f"Error: out of memory: {error}".rstrip(": ") + "\n")
        sys.exit(2)
    finally:
        for number in stops:
            if signal.getsignal(number) == _stop:
                signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
