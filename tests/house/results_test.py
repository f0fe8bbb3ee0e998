"""Every page of results that `make bench` writes is the one that bench/report.py makes of its figures."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def made_again(figures: pathlib.Path, folder: pathlib.Path) -> dict:
    """Page and picture from a copy of the figures, with the part of the page that was written by hand."""
    copy = folder / figures.name
    shutil.copy(figures, copy)
    shutil.copy(figures.with_suffix(".md"), copy.with_suffix(".md"))
    subprocess.run([sys.executable, ROOT / "bench/report.py", copy], check=True)
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".md", ".svg")}


def main() -> None:
    figures = sorted((ROOT / "docs/results").glob("*.jsonl"))
    assert figures, "docs/results has no figures"
    for path in figures:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in made_again(path, pathlib.Path(folder)).items():
                assert (path.parent / name).read_text() == text, f"docs/results/{name}: run bench/report.py {path}"
                print(f"docs/results/{name}: {len(text.splitlines())} lines, as bench/report.py writes it")


if __name__ == "__main__":
    main()
