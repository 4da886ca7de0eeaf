"""A sweep: many runs from one command, each in a process of its own. ``python -m harness -m KEY=A,B``."""
