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

            return command("harness", "config", _run, INTERRUPTED, sweeps=True)
        finally:
            interrupt.as_exception()
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130


def _run(config) -> int:
    from harness.sweep.store import is_sweep  # late, as all that follows, so that --help and --cfg load nothing heavy

    if config.get("resume") is not None and is_sweep(str(config.resume)):
        from hydra.core.hydra_config import HydraConfig

        from harness.sweep.command import go_on

        return go_on(str(config.resume), HydraConfig.get().overrides.task)
    from harness.run import run

    return run(config)


if __name__ == "__main__":
    status = main()
    from harness.interrupt import ignore

    ignore()
    sys.exit(status)
