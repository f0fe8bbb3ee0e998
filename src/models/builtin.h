#pragma once

// The small language model that comes with the project (docs/builtin-model.md).

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace rootdk {

// Its folder: what ROOTDK_BUILTIN_MODEL names, else share/rootdk/builtin beside the library or the program, else the
// source tree's.
// Throws rootdk::Error that lists where it was looked for.
std::filesystem::path builtin_model_folder();
// The folder of a model by the name a user gives: `builtin`, or the folder itself.
std::filesystem::path model_folder(const std::string& name);

// Continues the prompt by up to max_new tokens, sampled with a temperature of 0.8. on_text sees the text as it comes.
// Returns the continuation.
std::string builtin_continuation(const std::string& prompt, std::int64_t max_new, std::uint64_t seed,
                                 const std::function<void(std::string_view)>& on_text = {});

}  // namespace rootdk
