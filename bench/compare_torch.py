#!/usr/bin/env python3
"""rootdk beside PyTorch's attention, on the same tensors in the same run.

    bench/compare_torch.py --device cpu  [options of compare_torch_cpu.py]
    bench/compare_torch.py --device cuda [options of compare_torch_cuda.py]
    bench/compare_torch.py --device cuda --backward [options of compare_torch_cuda_backward.py]
    bench/compare_torch.py --device cuda --fp8 [options of compare_torch_cuda_fp8.py]
    bench/compare_torch.py --device cpu|cuda --models [options of compare_torch_models.py]
"""
import pathlib
import runpy
import sys

USAGE = "usage: compare_torch.py --device cpu|cuda [options; --help shows those of the device]"


def main():
    if len(sys.argv) < 3 or sys.argv[1] != "--device" or sys.argv[2] not in ("cpu", "cuda"):
        sys.exit(USAGE)
    device = sys.argv[2]
    if "--models" in sys.argv:
        sys.argv.remove("--models")
        runpy.run_path(str(pathlib.Path(__file__).with_name("compare_torch_models.py")), run_name="__main__")
        return
    del sys.argv[1:3]
    script = f"compare_torch_{device}.py"
    if device == "cuda" and "--backward" in sys.argv:
        sys.argv.remove("--backward")
        script = "compare_torch_cuda_backward.py"
    if device == "cuda" and "--fp8" in sys.argv:
        sys.argv.remove("--fp8")
        script = "compare_torch_cuda_fp8.py"
    runpy.run_path(str(pathlib.Path(__file__).with_name(script)), run_name="__main__")


if __name__ == "__main__":
    main()
