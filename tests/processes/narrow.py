"""`slotgate serve` with 256 descriptors, as a machine may allow no more."""

from __future__ import annotations

import resource
import sys

from gateway.__main__ import main

DESCRIPTORS = 256

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    sys.argv[1:1] = ["serve"]
    main()
