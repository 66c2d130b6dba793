"""What runs in the process of `lmdeploy.vl.decoder_process`: ``python -m lmdeploy.vl.decoder_worker SECONDS BYTES``."""

import os
import resource
import signal
import sys
from typing import Any

from lmdeploy.vl.decoder_process import receive, send
from lmdeploy.vl.decoding import Limits, decode
from lmdeploy.vl.videos import Sampling, Video, from_file

_WAITED = 10  # times the processor's time that it may take by the clock, on a machine with other work


def main() -> None:
    """Answer until nobody asks any more, or a file takes too long: its signal then ends the process."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    asked, responses = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints
    for limit, most in (("RLIMIT_AS", memory), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0)):
        resource.setrlimit(getattr(resource, limit), (most, most))
    while (message := receive(asked, memory)) is not None:
        wanted, content = message
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, _WAITED * seconds)
        try:
            video = _video(wanted, bytes(content))
            size = video.frames[0].size
            pixels = b"".join(frame.tobytes() for frame in video.frames)
        except (ValueError, MemoryError) as error:
            send(responses, {"error": str(error) or "the image takes too much memory to decode"}, b"")
        else:
            send(responses, {"size": size, "times": video.times}, pixels)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)


def _video(wanted: dict[str, Any], content: bytes) -> Video:
    limits = Limits(**wanted["limits"])
    if "sampling" not in wanted:
        return Video((decode(content, limits),), (0.0,))
    return from_file(content, Sampling(**wanted["sampling"]), limits, wanted["max_total_pixels"])


if __name__ == "__main__":
    main()
