"""What a wheel needs of the system beyond the C and C++ runtimes, copied into it, so that it runs on any Linux with a C
library that is new enough (PEP 600, manylinux). Needs readelf, ldd and patchelf.

Each library gets a name with its hash in it: a process may hold another library of the same name.
"""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

# What every Linux with a C++ runtime has; and our own, which lie in the wheel already.
COMMON = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|ld-linux|librootdk")
# The C library of the first distributions with this libstdc++.
GLIBC_OF_GLIBCXX = {28: 31, 29: 34, 30: 35, 31: 38, 32: 38, 33: 39}


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def needed(file):
    return re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "-dW", file))


def foreign(file):
    """Names of libraries that a file needs, and not every system has."""
    return [name for name in needed(file) if not COMMON.match(name)]


def can_bundle():
    return shutil.which("patchelf") is not None


def _found(files):
    """{name: path} of all foreign libraries that the files need, and that these need in turn."""
    found, waiting = {}, list(files)
    while waiting:
        file = waiting.pop()
        places = dict(re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", file), re.MULTILINE))
        for name in foreign(file):
            if name not in places:
                raise RuntimeError(f"build_wheel: {file} needs {name}, which is not on this machine")
            if name not in found:
                found[name] = Path(places[name]).resolve()
                waiting.append(found[name])
    return found


def _new_name(name, path):
    stem, _, version = name.partition(".so")
    return f"{stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.so{version}"


def _patched(source, target, names, rpath, soname=None):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    # One change a run: patchelf 0.14 forgets some of several.
    changes = [["--replace-needed", name, names[name]] for name in foreign(source)]
    changes += [["--set-soname", soname]] if soname else []
    changes.append(["--force-rpath", "--set-rpath", rpath])
    for change in changes:
        subprocess.run(["patchelf", *change, str(target)], check=True)
    return target


def bundle(binaries, folder):
    """(name in the wheel, file) of the binaries, changed where they have to be, and of the libraries that they need."""
    found = _found([file for _, file in binaries])
    names = {name: _new_name(name, path) for name, path in found.items()}
    for name, file in binaries:
        if foreign(file):
            rpath = "$ORIGIN" if name.startswith("rootdk/lib/") else "$ORIGIN/../lib"
            yield name, _patched(file, folder / name, names, rpath)
        else:
            yield name, file
    for name, path in sorted(found.items()):
        wheel_name = "rootdk/lib/" + names[name]
        yield wheel_name, _patched(path, folder / wheel_name, names, "$ORIGIN", names[name])


def licences(binaries):
    """(package, text) of what bundle() copies, as Debian has them; nothing where packages are not Debian's."""
    if shutil.which("dpkg-query") is None:
        return
    for path in sorted(set(_found([file for _, file in binaries]).values())):
        for place in (path, Path("/", *path.parts[2:])):  # where /lib is /usr/lib, packages know files by either name
            done = subprocess.run(["dpkg-query", "-S", str(place)], capture_output=True, text=True)
            if done.returncode == 0:
                package = done.stdout.split(":")[0]
                text = Path("/usr/share/doc") / package / "copyright"
                if text.exists():
                    yield package, text.read_bytes()
                break


def glibc_needed(files):
    """The minor version of the C library (2.N) that the files ask for, by themselves or through libstdc++."""
    versions = "".join(output("readelf", "--version-info", "--wide", file) for file in files)
    minors = [int(x) for x in re.findall(r"GLIBC_2\.(\d+)", versions)]
    plus = max((int(x) for x in re.findall(r"GLIBCXX_3\.4\.(\d+)", versions)), default=0)
    known = [glibc for version, glibc in GLIBC_OF_GLIBCXX.items() if version >= plus]
    if plus >= min(GLIBC_OF_GLIBCXX):
        if not known:
            raise RuntimeError(f"build_wheel: GLIBCXX_3.4.{plus} is newer than what is known here")
        minors.append(min(known))
    return max(minors, default=17)
