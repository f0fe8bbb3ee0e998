"""`python -m rootdk ...` runs the command line that comes with the package."""

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn


def binary() -> str:
    """The binary of the wheel, of the build around this file, or of the system."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "bin" / "rootdk", here.parents[1] / "build" / "rootdk"):
        if os.access(candidate, os.X_OK):
            return str(candidate)
    # The command of this name that pip installs is this module: it must not find itself.
    own = Path(sys.executable).parent / "rootdk"
    found = shutil.which("rootdk")
    if found is None or Path(found) == own:
        sys.exit("rootdk: the command line is not part of this installation")
    return found


def main() -> NoReturn:
    path = binary()
    sys.stdout.flush()
    os.execv(path, ["rootdk", *sys.argv[1:]])


if __name__ == "__main__":
    main()
