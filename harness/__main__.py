"""``python -m harness``: how much faster is a decoding strategy, and does it still say the same?"""

import sys

INTERRUPTED = "interrupted before anything was measured"


def main() -> int:
    """Run the command line; the exit status is what is returned."""
    try:  # above, nothing is imported that takes a moment, in which a Ctrl-C can come
        from harness import interrupt

        interrupt.leave_at_once(INTERRUPTED)
        try:
            from harness.command import command

            return command("harness", "config", _run, INTERRUPTED)
        finally:
            interrupt.as_exception()
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130


def _run(config) -> int:
    from harness.run import run  # late, so that --help and --cfg load nothing heavy

    return run(config)


if __name__ == "__main__":
    status = main()
    from harness.interrupt import ignore

    ignore()
    sys.exit(status)
