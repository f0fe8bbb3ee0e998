"""The wheel: built, installed into a clean virtual environment, and used from there, README examples included."""

import base64
import hashlib
import os
import re
import shutil
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
    expected = {
        "rootdk/py.typed",
        "rootdk/bin/rootdk",
        "rootdk/torch/__init__.py",
        "rootdk/share/rootdk/builtin/model.safetensors",
    }
    assert expected <= names
    assert len([name for name in names if re.fullmatch(r"rootdk/lib/librootdk(_models)?\.so\.\d+\.\d+", name)]) == 2


def test_the_platform_tag_is_honest(wheel, tmp_path):
    """manylinux promises that nothing but the C and C++ runtimes is taken from the system."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        declared = set(re.findall(r"^Requires-External: (.+)$", archive.read(metadata).decode(), re.MULTILINE))
        tags = re.findall(r"^Tag: (.+)$", archive.read(metadata.replace("METADATA", "WHEEL")).decode(), re.MULTILINE)
    assert tags == [wheel.stem.split("-", 2)[2]]
    machine = os.uname().machine
    needed = set()
    for file in [*tmp_path.glob("rootdk/lib/*"), tmp_path / "rootdk/bin/rootdk"]:
        needed |= set(re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-dW", file)))
    own = {path.name for path in tmp_path.glob("rootdk/lib/*")}
    runtimes = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|ld-linux).*")
    foreign = {name for name in needed - own if not runtimes.fullmatch(name)}
    assert declared == foreign
    if shutil.which("patchelf") is None:
        assert tags[0] == f"py3-none-linux_{machine}"
    else:
        assert not foreign and re.fullmatch(rf"py3-none-manylinux_2_\d+_{machine}", tags[0])
    # The library proper needs nothing else.
    library = next(tmp_path.glob("rootdk/lib/librootdk.so*"))
    assert all(map(runtimes.fullmatch, re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-dW", library))))


def test_the_tag_names_a_c_library_that_is_new_enough(wheel, tmp_path):
    found = re.search(r"manylinux_2_(\d+)_", wheel.name)
    if found is None:
        pytest.skip("patchelf is not installed: the wheel is for this system alone")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    files = [*tmp_path.glob("rootdk/lib/*"), tmp_path / "rootdk/bin/rootdk", *tmp_path.glob("rootdk/*.so")]
    versions = "".join(run("readelf", "-VW", file) for file in files)
    assert max(int(x) for x in re.findall(r"GLIBC_2\.(\d+)", versions)) <= int(found.group(1))
    # Whoever copies a library passes its licence on.
    copied = [file.name for file in files if "librootdk" not in file.name and file.parent.name == "lib"]
    assert copied and all(re.fullmatch(r".+-[0-9a-f]{8}\.so\.\d+", name) for name in copied)
    assert len(list(tmp_path.glob("rootdk-*.dist-info/licenses/*"))) >= 3 or not Path("/usr/bin/dpkg-query").exists()


def test_the_kernels_are_there_once(wheel):
    """The command line runs on librootdk.so, as models do."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        kernels = sizes[next(name for name in sizes if re.search(r"/librootdk\.so", name))]
        program = archive.read("rootdk/bin/rootdk")
    assert b"librootdk.so" in program
    assert len(program) < kernels + 12_000_000  # with CUDA the kernels alone have more than thirty


def test_models_take_nothing_from_the_system(wheel, environment, tmp_path):
    if "manylinux" not in wheel.name:
        pytest.skip("patchelf is not installed: the wheel is for this system alone")
    program = tmp_path / "maps.py"
    program.write_text("""
import rootdk
rootdk.load("builtin").generate("ROMEO:", 3)
print("\\n".join(sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line})))
""")
    loaded = run(environment / "bin/python", program, cwd=tmp_path).splitlines()
    ours = [name for name in loaded if str(environment) in name]
    assert any("libdnnl" in name for name in ours) and any("libicudata" in name for name in ours)
    others = [name for name in loaded if name not in ours and re.search(r"lib(dnnl|icu|gomp|OpenCL|rootdk)", name)]
    assert not others, others
    debug = subprocess.run(
        [environment / "bin/rootdk", "--version"], env={**CLEAN, "LD_DEBUG": "libs"}, capture_output=True, text=True
    )
    found = re.findall(r"calling init: (\S+)", debug.stderr)
    assert any("libicuuc" in name for name in found)
    assert all(str(environment) in name for name in found if re.search(r"lib(dnnl|icu|gomp|OpenCL|rootdk)", name))


def test_make_wheel_builds_this_wheel():
    commands = run("make", "-n", "-C", SOURCE, "wheel")
    assert "scripts/build_wheel.py build dist" in commands


def test_pip_installs_the_source_tree(wheel, environment, tmp_path):
    """pip install . packs the same wheel; here over the build that is under test."""
    pip = (environment / "bin/pip", "wheel", "--no-index", "--no-deps", "--disable-pip-version-check")
    run(*pip, SOURCE, "--config-settings", f"build={BUILD}", "--wheel-dir", tmp_path)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


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
with rootdk.KvCache(kv_heads=1, head_dim=2, pages=1, dtype="f32").open() as sequence:
    sequence.append(q, q)
    assert sequence.attend(q).tolist() == result.out.tolist()
model = rootdk.load("builtin")
ids = model.generate("ROMEO:", 3).ids
logits = model.forward(model.encode("ROMEO:"))
assert logits.shape[1] == 1024 and max(logits.memoryview().tolist()[-1]) == logits.memoryview()[logits.shape[0] - 1, ids[0]]
assert len(rootdk.inspect(model, "To be, or not to be").rows()) == 16
assert "numpy" not in sys.modules
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


def test_brings_its_own_model(environment, tmp_path):
    """The command line and the library both read the copy in the wheel, not the one of the source tree."""
    command = [environment / "bin/python", *"-m rootdk generate builtin --prompt ROMEO: --max-new 3".split()]
    program = [environment / "bin/python", "-c", "import rootdk; print(rootdk.load('builtin').generate('ROMEO:', 3))"]
    shown = run(*command, cwd=tmp_path)
    assert shown.startswith("ROMEO:") and run(*program, cwd=tmp_path).strip() in shown
    config = next(environment.glob("lib/python*/site-packages/rootdk/share/rootdk/builtin/config.json"))
    text = config.read_text()
    config.write_text("{}")
    try:
        for attempt in (command, program):
            failed = subprocess.run(attempt, cwd=tmp_path, env=CLEAN, capture_output=True, text=True)
            assert failed.returncode != 0 and str(config) in failed.stderr, failed.stderr
    finally:
        config.write_text(text)


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
    for written, start in ((".svg", "<svg"), (".html", "<!")):
        if written in code:
            assert next(tmp_path.glob("*" + written)).read_text().startswith(start)


def test_readme_has_examples():
    shown = "".join(readme_examples())
    for call in ("rootdk.attention", "rootdk.torch", "rootdk.KvCache", "rootdk.load", "rootdk.inspect"):
        assert call in shown
    assert all(len(code.strip().splitlines()) <= 12 for code in readme_examples())
