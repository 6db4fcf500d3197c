"""The check of a training step's memory from a checkout: the same command as `onemodel check-zero-alloc`. Holds no logic of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onemodel.check_zero_alloc import main  # noqa: E402  (the path above makes the checkout importable)

if __name__ == "__main__":
    sys.exit(main())
