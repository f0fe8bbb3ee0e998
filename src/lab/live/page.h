#pragma once

// The live page: the library compiled to WebAssembly, a model and the page's own code in one HTML file.

#include <filesystem>
#include <string>

namespace rootdk::lab {

// The page for a checkpoint folder (or "builtin"). Throws rootdk::Error where the model does not fit into a page.
std::string live_page(const std::string& model);

}  // namespace rootdk::lab
