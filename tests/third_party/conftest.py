"""The packages' own tests are run where they are installed, not from here."""

from __future__ import annotations

collect_ignore_glob = ["rlframe-*"]
