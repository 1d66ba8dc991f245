"""Judge the ledger in a folder; exit code 1 when a promise was broken."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nearcast.lab.chaos.checker.evidence import read_ledger
from nearcast.lab.chaos.checker.judge import check

if __name__ == "__main__":
    verdict = check(read_ledger(Path(sys.argv[1])))
    print(json.dumps(verdict.fields(), indent=1))
    sys.exit(0 if verdict.kept else 1)
