"""The report's notebook, beside the package that its cells call (``harness.report``), so that a wheel carries it."""
