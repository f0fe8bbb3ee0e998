"""What `pip install .` calls (PEP 517): builds the release preset and packs it into a wheel.

pip install . --config-settings build=FOLDER packs what is already built there.
"""

import subprocess
from pathlib import Path

import build_wheel as packing


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    built = (config_settings or {}).get("build")
    if built is None:
        subprocess.run([packing.ROOT / "scripts/build.sh", "release", "all", "-DROOTDK_TESTS=OFF"], check=True)
        built = packing.ROOT / "build"
    return packing.build_wheel(Path(built), Path(wheel_directory)).name
