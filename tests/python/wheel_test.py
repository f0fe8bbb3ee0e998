"""The wheel: built, installed into a clean virtual environment, and used from there, README examples included."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(os.environ["ROOTDK_SOURCE_DIR"])
BUILD = Path(os.environ["ROOTDK_BUILD_DIR"])
# Nothing of the source tree may help the installed package.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ROOTDK", "PIP"))}


def run(*command, cwd=None):
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=CLEAN, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    return Path(run(sys.executable, SOURCE / "scripts/build_wheel.py", BUILD, folder).strip())


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel in it and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/pip", "install", "--no-index", "--disable-pip-version-check", wheel)
    return folder


@pytest.fixture(scope="module")
def environment_with_numpy(environment):
    """The same, with the system's NumPy and PyTorch in sight."""
    settings = environment / "pyvenv.cfg"
    text = settings.read_text()
    settings.write_text(text.replace("include-system-site-packages = false", "include-system-site-packages = true"))
    yield environment
    settings.write_text(text)


def test_record_lists_every_file_with_its_hash(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        lines = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
        assert {name for name, _, _ in lines} == names
        for name, digest, size in lines:
            if name == record:
                continue
            data = archive.read(name)
            assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert int(size) == len(data)
    assert {"rootdk/py.typed", "rootdk/lib/librootdk.so", "rootdk/bin/rootdk", "rootdk/torch/__init__.py"} <= names
    assert re.fullmatch(r"rootdk-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)


def test_the_same_build_gives_the_same_bytes(wheel, tmp_path):
    again = Path(run(sys.executable, SOURCE / "scripts/build_wheel.py", BUILD, tmp_path).strip())
    assert again.read_bytes() == wheel.read_bytes()


def test_works_with_the_standard_library_alone(environment, tmp_path):
    program = tmp_path / "alone.py"
    program.write_text("""
import array, sys, rootdk
assert "numpy" not in sys.modules and rootdk.__file__.startswith(sys.prefix), rootdk.__file__
q = memoryview(array.array("f", [1, 0, 0, 1])).cast("B").cast("f", [1, 1, 2, 2])
result = rootdk.attention(q, q, q, causal=True, stats=True)
print(rootdk.__version__, result.out[0, 0, 0, 0], result.max_weight[0, 0, 0])
result.plot("heads.svg")
""")
    assert run(environment / "bin/python", program, cwd=tmp_path).split()[1:] == ["1.0", "1.0"]
    assert (tmp_path / "heads.svg").read_text().startswith("<svg")
    missing = subprocess.run([environment / "bin/python", "-c", "import numpy"], env=CLEAN, capture_output=True)
    assert missing.returncode != 0  # the environment is as clean as it says


def test_runs_the_command_line(environment, tmp_path):
    expected = run(BUILD / "rootdk", "--help")
    assert run(environment / "bin/python", "-m", "rootdk", "--help", cwd=tmp_path) == expected
    assert run(environment / "bin/rootdk", "--help", cwd=tmp_path) == expected
    failed = subprocess.run([environment / "bin/rootdk", "--no-such-option"], env=CLEAN, capture_output=True)
    assert failed.returncode != 0


def readme_examples():
    return re.findall(r"^```python\n(.*?)^```", (SOURCE / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", range(len(readme_examples())))
def test_readme_examples_run_as_they_stand(environment_with_numpy, tmp_path, example):
    pytest.importorskip("numpy")
    code = readme_examples()[example]
    if "import torch" in code:
        pytest.importorskip("torch")
    program = tmp_path / "example.py"
    program.write_text(code)
    output = run(environment_with_numpy / "bin/python", program, cwd=tmp_path)
    assert output.strip()
    if ".svg" in code:
        assert next(tmp_path.glob("*.svg")).read_text().startswith("<svg")


def test_readme_has_examples():
    assert len(readme_examples()) >= 2
