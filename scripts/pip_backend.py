"""What `pip install .` calls (PEP 517): builds the release preset and packs it into a wheel.

pip install . --config-settings build=FOLDER packs what is already built there.
"""

import subprocess
from pathlib import Path

import build_wheel as packing


def _built(config_settings):
    """The folder of the build, made where none is named."""
    built = (config_settings or {}).get("build")
    if built is not None:
        return Path(built)
    subprocess.run([packing.ROOT / "scripts/build.sh", "release", "all", "-DROOTDK_TESTS=OFF"], check=True)
    return packing.ROOT / "build"


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """`pip install -e .` (PEP 660): the package stays in the source tree, and finds the libraries in its build folder."""
    return packing.build_editable_wheel(_built(config_settings), Path(wheel_directory)).name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return packing.build_wheel(_built(config_settings), Path(wheel_directory)).name
