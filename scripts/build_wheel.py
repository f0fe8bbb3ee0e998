#!/usr/bin/env python3
"""Packs python/rootdk, the libraries, the command line and the built-in model of a build into a wheel, with the standard
library and readelf alone.

usage: scripts/build_wheel.py BUILD_DIR OUTPUT_DIR

The package is Python over a C ABI, and its binding keeps to the stable ABI of Python 3.9, so one wheel serves every Python
from 3.9 on: py3-none-PLATFORM. The platform is manylinux_2_N: oneDNN, ICU and OpenMP, which models and the command line
need, are copied into the wheel (wheel_libraries.py), which takes patchelf. Without patchelf it is linux_MACHINE, and the
metadata lists what is taken from the system (Requires-External); attention itself needs nothing. The same inputs give the
same bytes.
"""

import base64
import hashlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

import wheel_libraries

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = "Scaled dot-product attention: exact, fused, and open to inspection"


def version():
    text = (ROOT / "include/rootdk/version.h").read_text()
    return re.search(r'ROOTDK_VERSION_STRING "(.+)"', text).group(1)


def binaries(build):
    """(path in the wheel, file) of the libraries, each under the name by which others ask for it, and the program."""
    for name in ("librootdk", "librootdk_models"):
        file = (build / "src" / (name + ".so")).resolve()
        soname = re.search(r"SONAME.*\[(.+)\]", dynamic_section(file)).group(1)
        yield "rootdk/lib/" + soname, file
    yield "rootdk/bin/rootdk", build / "wheel" / "rootdk"  # over librootdk.so, whose kernels are then there once
    binding = build / "src" / "_binding.abi3.so"  # not there where Python's headers were not
    if binding.exists():
        yield "rootdk/_binding.abi3.so", binding


def dynamic_section(file):
    return subprocess.run(["readelf", "-dW", file], check=True, capture_output=True, text=True).stdout


def metadata(external):
    external = "".join(f"Requires-External: {name}\n" for name in external)
    return f"""Metadata-Version: 2.1
Name: rootdk
Version: {version()}
Summary: {SUMMARY}
License: Apache-2.0
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Provides-Extra: plot
Requires-Dist: matplotlib; extra == "plot"
{external}Classifier: Programming Language :: Python :: 3
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

""" + (ROOT / "README.md").read_text()


def contents(files, tag, external, licences):
    """(path in the wheel, bytes, executable) of every file but RECORD."""
    package = ROOT / "python" / "rootdk"
    for path in sorted(package.rglob("*")):
        if path.is_file() and (path.suffix == ".py" or path.name == "py.typed"):
            yield "rootdk/" + path.relative_to(package).as_posix(), path.read_bytes(), False
    for name, file in files:
        yield name, file.read_bytes(), True
    for path in sorted((ROOT / "models" / "builtin").iterdir()):
        yield "rootdk/share/rootdk/builtin/" + path.name, path.read_bytes(), False
    yield from description(tag, external, licences)


def description(tag, external=(), licences=()):
    """The files of dist-info but RECORD."""
    info = f"rootdk-{version()}.dist-info/"
    yield info + "METADATA", metadata(external).encode(), False
    yield info + "WHEEL", (
        f"Wheel-Version: 1.0\nGenerator: rootdk build_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode(), False
    yield info + "entry_points.txt", b"[console_scripts]\nrootdk = rootdk.__main__:main\n", False
    yield info + "LICENSE", (ROOT / "LICENSE").read_bytes(), False
    for name, text in licences:
        yield f"{info}licenses/{name}", text, False


def add(wheel, name, data, executable):
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, data)


def write_wheel(output, tag, files):
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"rootdk-{version()}-{tag}.whl"
    record = []
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data, executable in files:
            add(wheel, name, data, executable)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        name = f"rootdk-{version()}.dist-info/RECORD"
        add(wheel, name, ("\n".join(record) + f"\n{name},,\n").encode(), False)
    return path


def machine():
    return re.sub(r"[-.]", "_", sysconfig.get_platform()).split("_", 1)[1]


def build_wheel(build, output):
    own = list(binaries(build))
    if not wheel_libraries.can_bundle():
        external = sorted({name for _, file in own for name in wheel_libraries.foreign(file)})
        tag = f"py3-none-linux_{machine()}"
        return write_wheel(output, tag, contents(own, tag, external, ()))
    with tempfile.TemporaryDirectory() as folder:
        files = list(wheel_libraries.bundle(own, Path(folder)))
        glibc = wheel_libraries.glibc_needed([file for _, file in files])
        tag = f"py3-none-manylinux_2_{glibc}_{machine()}"
        return write_wheel(output, tag, contents(files, tag, (), dict(wheel_libraries.licences(own)).items()))


def build_editable_wheel(build, output):
    """A wheel that points to the source tree."""
    pointer = ("rootdk.pth", f"{ROOT / 'python'}\n".encode(), False)
    tag = f"py3-none-linux_{machine()}"
    return write_wheel(output, tag, [pointer, *description(tag)])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(build_wheel(Path(sys.argv[1]), Path(sys.argv[2])))
