// The modules of src/ may only look in one direction (ARCHITECTURE.md):
//   core <- {reference, cpu, cuda} <- dispatch <- layers <- models <- lab <- {models_api, tools, python, web}
// and the public headers know nothing but each other and the standard library. The compiler refuses most wrong includes
// (modules_test.sh); this test also sees headers that no source includes, CUDA sources where there is no nvcc, and
// includes through "../".

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

// What each module may include besides itself and the public headers.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {}},
    {"reference", {"core"}},
    {"cpu", {"core"}},
    {"cuda", {"core"}},
    {"dispatch", {"core"}},
    {"distributed", {"core", "dispatch"}},
    {"mpi", {}},
    {"nccl", {}},
    {"c_api", {"core", "dispatch"}},
    {"layers", {"core", "dispatch"}},
    {"models", {"core", "dispatch", "layers"}},
    {"lab", {"core", "dispatch", "layers", "models"}},
    {"models_api", {"core", "dispatch", "c_api", "layers", "models", "lab"}},
};

std::set<std::string> includes_of(const fs::path& file) {
  std::ifstream stream(file);
  EXPECT_TRUE(stream) << file;
  static const std::regex kInclude("^\\s*#\\s*include\\s*\"([^\"]+)\"");
  std::set<std::string> found;
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    if (std::regex_search(line, match, kInclude)) found.insert(match[1]);
  }
  return found;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> kEndings = {".h", ".cpp", ".cu", ".cuh", ".inc"};
  return kEndings.contains(path.extension().string());
}

TEST(Includes, RoomsLookOnlyWhereTheyMay) {
  const fs::path source = fs::path(ROOTDK_SOURCE_DIR) / "src";
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(source)) {
    if (!entry.is_regular_file() || !is_source(entry.path())) continue;
    const std::string module = fs::relative(entry.path(), source).begin()->string();
    ASSERT_TRUE(kMayInclude.contains(module)) << "src/" << module << " is a module that this test does not know";
    ++files;
    for (const std::string& include : includes_of(entry.path())) {
      const std::string first = fs::path(include).begin()->string();
      const bool is_module = fs::is_directory(source / first);
      if (!is_module || first == module) continue;
      EXPECT_TRUE(kMayInclude.at(module).contains(first))
          << entry.path() << " includes " << include << ", but " << module << " may not include from " << first;
    }
  }
  EXPECT_GT(files, 20);
}

// The passes of src/cuda/hopper share shared/ and nothing else, so that each can be read alone. What answers a call of
// attention() asks decode whether it is one.
TEST(Includes, HopperPassesKnowOnlyWhatTheyShare) {
  static const std::map<std::string, std::set<std::string>> kPasses = {{"shared", {}},
                                                                       {"forward", {"shared"}},
                                                                       {"decode", {"shared"}},
                                                                       {"backward", {"shared"}},
                                                                       {"fp8", {"shared", "forward"}}};
  const fs::path hopper = fs::path(ROOTDK_SOURCE_DIR) / "src/cuda/hopper";
  int checked = 0;
  for (const auto& [pass, others] : kPasses) {
    for (const auto& entry : fs::directory_iterator(hopper / pass)) {
      if (!is_source(entry.path()) && !entry.path().filename().string().ends_with(".cu.in")) continue;
      if (pass == "forward" && entry.path().filename() == "forward.cpp") continue;
      for (const std::string& include : includes_of(entry.path())) {
        const std::string prefix = "cuda/hopper/";
        if (!include.starts_with(prefix) || include == prefix + "hopper.h") continue;
        const std::string folder = fs::path(include.substr(prefix.size())).begin()->string();
        EXPECT_TRUE(folder == pass || others.contains(folder)) << entry.path() << " includes " << include;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(Includes, PublicHeadersKnowOnlyEachOther) {
  const fs::path include = fs::path(ROOTDK_SOURCE_DIR) / "include";
  for (const auto& entry : fs::recursive_directory_iterator(include)) {
    if (!entry.is_regular_file()) continue;
    for (const std::string& name : includes_of(entry.path())) {
      EXPECT_TRUE(name.starts_with("rootdk/")) << entry.path() << " includes " << name;
    }
  }
}

// The library proper needs the standard library and CUDA alone.
TEST(Includes, LibraryProperUsesNoForeignHeaders) {
  static const std::regex kForeign("#\\s*include\\s*[<\"](nlohmann|CLI|gtest|cblas|dnnl|oneapi|openblas|mpi\\.h)");
  const fs::path source = fs::path(ROOTDK_SOURCE_DIR) / "src";
  for (const char* module : {"core", "reference", "cpu", "cuda", "dispatch", "distributed", "c_api"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source / module)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      std::ifstream stream(entry.path());
      for (std::string line; std::getline(stream, line);) {
        EXPECT_FALSE(std::regex_search(line, kForeign)) << entry.path() << ": " << line;
      }
    }
  }
}

}  // namespace
