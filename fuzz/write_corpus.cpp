// Writes the safetensors files of the tests into a folder, one file each: where the fuzzer starts.

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "models/safetensors_cases.h"

namespace {

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_corpus FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  for (const auto& file : rootdk::test::good_files()) write(folder / file.name, file.bytes);
  for (const auto& file : rootdk::test::bad_headers()) write(folder / file.name, file.bytes);
  for (const auto& file : rootdk::test::bad_tensors()) write(folder / file.name, file.bytes);
}
