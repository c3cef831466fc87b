"""The program: ``tvae``, or ``python -m tvae.cli`` where no console script is on the path."""

import signal
import sys

from tvae.cli.exit_codes import ExitCode, Terminated


def program() -> None:
    """A command, and then the end of the process. Ctrl-C while its modules are loaded ends it without a traceback, and
    so does one that comes again while it ends."""
    try:
        from tvae.cli.dropped_signals import come_again
        from tvae.cli.names_in_utf8 import names_in_utf8

        names_in_utf8()
        come_again()
        from tvae.cli.app import main
        from tvae.pipeline.settings.leaving import leaving

        with leaving():
            main()
    except (KeyboardInterrupt, Terminated) as error:
        _end_at_once()
        sys.exit(ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else ExitCode.TERMINATED)
    except SystemExit as end:
        if end.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            _end_at_once()
        raise


def _end_at_once() -> None:
    """What is still to be done, such as to wait for a thread, no longer keeps signals from ending the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    program()
