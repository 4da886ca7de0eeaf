"""Where downloaded files are kept between runs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`HARNESS_CACHE` where it is set, else the platform's cache folder for this user. It need not exist yet."""
    chosen = os.environ.get("HARNESS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("draft-harness", appauthor=False))
