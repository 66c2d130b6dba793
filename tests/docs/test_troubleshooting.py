"""The messages of the troubleshooting page are messages of the product."""

import re
import subprocess

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "guides" / "troubleshooting.md"
PRODUCT = ("lmdeploy", "openai_gateway", "backend_cpp/engine", "backend_cpp/model", "backend_cpp/weights")
MESSAGE = re.compile(r"^\| (`[^|]+) \|", re.MULTILINE)


def test_every_message_is_in_the_sources() -> None:
    files = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, check=True, capture_output=True, text=True)
    text = "\n".join(
        (ROOT / name).read_text(encoding="utf-8") for name in files.stdout.split() if not name.endswith(".gz")
    )
    joined = re.sub(r'"\s*\n\s*f?"', "", text)  # literals that continue on the next line
    messages = [
        part for cell in MESSAGE.findall(PAGE.read_text(encoding="utf-8")) for part in re.findall("`([^`]+)`", cell)
    ]
    assert len(messages) >= 20
    assert [message for message in messages if message not in joined] == []
