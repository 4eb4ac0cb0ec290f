"""What all tests share."""

from __future__ import annotations

import os

# Nobody's own settings file is read. Set here, so that fixtures of any scope and all child
# processes have it.
os.environ["FAIRQR_CONFIG"] = os.devnull
