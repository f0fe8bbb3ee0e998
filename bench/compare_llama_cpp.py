#!/usr/bin/env python3
"""rootdk beside llama.cpp on the same LLaMA checkpoint, in turn, on the same threads.

    bench/compare_llama_cpp.py MODEL --llama-cpp SOURCE --build BUILD [--rootdk build/rootdk] [--threads 2] [--rounds 5]

SOURCE is llama.cpp's source (the sdist of llama-cpp-python on PyPI holds it in vendor/llama.cpp), BUILD where it was
built with static libraries for this machine:

    cmake -S SOURCE -B BUILD -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF
    ninja -C BUILD llama

MODEL is a folder with a LLaMA in bf16. It becomes gguf files in bf16, q8_0 and q4_0 beside BUILD; no tokenizer is
needed. Needs NumPy, g++ and the Python package gguf, which SOURCE also holds.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import numpy

# llama.cpp's type beside rootdk's options.
TYPES = [
    ("bf16", "BF16", ["--activations", "bf16"]),
    ("bf16, x in f32", "BF16", ["--activations", "f32"]),
    ("int8, q8_0", "Q8_0", ["--weights", "int8"]),
    ("int4, q4_0", "Q4_0", ["--weights", "int4"]),
]
# Sequences, new tokens of each.
SHAPES = [(1, 1), (32, 1), (1, 512)]


def read_safetensors(path):
    """Names with f32 arrays, one at a time."""
    with open(path, "rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_size))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "BF16":
                sys.exit(f"{path}: {name} is {entry['dtype']}, expected BF16")
            begin, end = entry["data_offsets"]
            file.seek(8 + header_size + begin)
            words = numpy.frombuffer(file.read(end - begin), numpy.uint16).astype(numpy.uint32) << 16
            yield name, words.view(numpy.float32).reshape(entry["shape"])


def rotated(weight, heads):
    """Rows of a query or key matrix in the order of llama.cpp's RoPE, which turns neighbours."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(gguf, model, config, kind, path):
    writer = gguf.GGUFWriter(path, "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    types = gguf.GGMLQuantizationType
    for name, weight in read_safetensors(model / "model.safetensors"):
        target = names.get_name(name, try_suffixes=(".weight",))
        if target is None:
            sys.exit(f"{model}: llama.cpp has no name for {name}")
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = rotated(weight, heads if "q_proj" in name else kv_heads)
        # Vectors stay f32. The head is int8 beside int4 matrices, as rootdk keeps it; the table is looked up by row.
        chosen = types.F32 if weight.ndim == 1 else types[kind]
        if kind == "Q4_0" and name == "lm_head.weight":
            chosen = types.Q8_0
        if name == "model.embed_tokens.weight":
            chosen = types.BF16
        data = weight if chosen == types.F32 else gguf.quants.quantize(numpy.ascontiguousarray(weight), chosen)
        writer.add_tensor(target, numpy.ascontiguousarray(data), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compile_rate(source, build):
    program = build / "llama_cpp_rate"
    libraries = [build / part for part in ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a",
                                           "ggml/src/libggml-base.a")]
    here = pathlib.Path(__file__).with_name("llama_cpp_rate.cpp")
    subprocess.run(["g++", "-O2", "-std=c++17", str(here), f"-I{source}/include", f"-I{source}/ggml/include",
                    *map(str, libraries), "-fopenmp", "-pthread", "-ldl", "-o", str(program)], check=True)
    return program


def calls(options, tokens):
    return options.repeat if tokens == 1 else 1  # a prompt takes seconds


def rootdk_seconds(options, weights, sequences, tokens):
    command = [options.rootdk, "bench", "generate", options.model, "--threads", options.threads, "--sequences",
               sequences, "--tokens", tokens, "--repeat", calls(options, tokens), "--json", *weights]
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["seconds_median"]


def llama_seconds(options, program, gguf_file, sequences, tokens):
    command = [program, gguf_file, options.threads, sequences, tokens, calls(options, tokens)]
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return statistics.median(float(line) for line in done.stdout.split())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--llama-cpp", type=pathlib.Path, required=True, help="llama.cpp's source")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="where it was built")
    parser.add_argument("--rootdk", default="build/rootdk")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both programs in turn")
    parser.add_argument("--repeat", type=int, default=5, help="calls of a program in a round; the median counts")
    options = parser.parse_args()
    sys.path.insert(0, str(options.llama_cpp / "gguf-py"))
    import gguf

    config = json.loads((options.model / "config.json").read_text())
    files = {}
    for _, kind, _ in TYPES:
        files[kind] = options.build / f"{options.model.name}-{kind.lower()}.gguf"
        if not files[kind].exists():
            partial = files[kind].with_suffix(".part")
            write_gguf(gguf, options.model, config, kind, partial)
            partial.rename(files[kind])
    program = compile_rate(options.llama_cpp, options.build)
    print(f"{options.threads} threads, medians of {options.rounds} rounds in turn, tokens/s")
    print("| weights | sequences x new tokens | rootdk | llama.cpp | ratio |\n| --- | --- | ---: | ---: | ---: |")
    for name, kind, weights in TYPES:
        for sequences, tokens in SHAPES:
            ours, theirs = [], []
            for _ in range(options.rounds):
                ours.append(rootdk_seconds(options, weights, sequences, tokens))
                theirs.append(llama_seconds(options, program, files[kind], sequences, tokens))
            rates = [sequences * tokens / statistics.median(seconds) for seconds in (ours, theirs)]
            ratio = statistics.median(b / a for a, b in zip(ours, theirs))
            print(f"| {name} | {sequences} x {tokens} | {rates[0]:.1f} | {rates[1]:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
