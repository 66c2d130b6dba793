"""Each C++ source is compiled: a CMakeLists.txt of its folder, or one above, lists it, once."""

import re
from collections import Counter
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent.parent / "backend_cpp"
# Found by pattern, or compiled once for each of something.
FOUND = ("kernels/cuda/", "device/cuda/", "testing/", "fuzz/", "kernels/cpu/kernels_isa.cc", "triton/private_files.cc")


def listed() -> Counter[str]:
    """Return how often each source is in a list, by its path in ``backend_cpp``."""
    counts: Counter[str] = Counter()
    for file in ENGINE.rglob("CMakeLists.txt"):
        names = re.findall(r"^ +([\w/]+\.cc)\)?$|INTERFACE ([\w/]+\.cc)\)", file.read_text(), re.MULTILINE)
        counts.update((file.parent / (first or second)).relative_to(ENGINE).as_posix() for first, second in names)
    return counts


def test_each_source_is_listed_once() -> None:
    sources = {path.relative_to(ENGINE).as_posix() for path in ENGINE.rglob("*.cc")}
    counts = listed()
    assert {name for name, count in counts.items() if count > 1} == set()
    assert {name for name in sources - counts.keys() if not name.startswith(FOUND)} == set()
    assert counts.keys() - sources == set()
