"""Wrong configurations and damaged folders, by the hundred: ``python -m benchmarks.fuzz``."""
