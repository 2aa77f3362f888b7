"""The native half, built from `src/`: the calls of one process, with descriptors that are numbers. `Fs` has the public names."""

import os
from typing import Any

class Process:
    def __getattr__(self, name: str) -> Any: ...
