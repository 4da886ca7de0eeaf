"""How fast DDTree is inside vLLM, and what each millisecond of its rounds goes to: ``python -m benchmarks.vllm_speed --help``."""
