"""Attacks on the gateway, the chat page, the proxy and the Ray ingress, as users start them: ``make abuse``."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
from pathlib import Path

from tests.abuse.attacks import trap
from tests.abuse.campaign import run
from tests.abuse.servers import SERVERS, everything
from tests.abuse.shots import drawn, shots


def main() -> int:
    """Attack, print the measurements, and return 1 where something must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.abuse", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.0, help="continue for so long; default: every attack once")
    parser.add_argument(
        "--servers", nargs="+", default=list(SERVERS), choices=SERVERS, help="that are attacked (default: all)"
    )
    parser.add_argument(
        "--max-attacks", type=int, default=2000, help="attacks on each server, drawn at random (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of their order")
    parser.add_argument(
        "--attack-seconds",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="of each attack alone, before all together, which takes long unless --attacks names few (default: none)",
    )
    parser.add_argument("--attacks", default="", metavar="REGEX", help="only those in whose names it is found")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the measurements there too, as JSON")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped
    with (
        tempfile.TemporaryDirectory(prefix="lmdeploy-abuse-") as folder,
        trap() as other,
        everything(Path(folder), given.servers) as servers,
    ):
        attacks = [shot for shot in shots(servers, other.address) if re.search(given.attacks, shot.name)]
        chosen = drawn(attacks, given.max_attacks, given.seed)
        print(f"{len(chosen)} of {len(attacks)} attacks on {', '.join(given.servers)}", flush=True)
        report = run(servers, chosen, other, given.seconds, given.seed, attack_seconds=given.attack_seconds)
    print(report.text())
    if given.output:
        given.output.write_text(json.dumps(vars(report), indent=1), encoding="utf-8")
    return 1 if report.failures() or report.stalls() else 0


if __name__ == "__main__":
    sys.exit(main())
