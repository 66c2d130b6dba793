"""A conversion that is killed leaves no half of a workspace, and the next one clears up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from lmdeploy.turbomind.convert import convert
from lmdeploy.turbomind.engine_dir import resolve

# The command, stopped forever when it has written its first file.
SLOW = """
import sys, time
from lmdeploy.turbomind import engine_dir
from lmdeploy.cli.main import main
copy = engine_dir.copy_texts
def copy_and_wait(*arguments):
    copy(*arguments)
    print("half done", flush=True)
    time.sleep(600)
engine_dir.copy_texts = copy_and_wait
sys.exit(main())
"""


def test_a_killed_conversion_leaves_the_old_workspace_and_the_next_one_clears_up(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "workspace"
    convert(str(model), target, model_name="old")
    arguments = ["convert", str(model), "--dst-path", str(target)]
    killed = subprocess.Popen([sys.executable, "-c", SLOW, *arguments], stdout=subprocess.PIPE, text=True)
    assert killed.stdout.readline() == "half done\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(set(tmp_path.iterdir()) - {target}) == 1
    assert resolve(target).spec.model_name == "old"
    convert(str(model), target, model_name="new")
    assert set(tmp_path.iterdir()) == {target}
    assert resolve(target).spec.model_name == "new"
