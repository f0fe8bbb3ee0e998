#pragma once

// The parts of the live page (web/), inside the program, so that it is never without them.

#include <cstddef>
#include <string_view>

namespace rootdk::lab {

std::string_view live_template();  // web/page.html
std::string_view live_style();     // web/style.css
std::string_view live_modules();   // web/src/*.js, one after the other
std::string_view live_glue();      // web/built/rootdk_live.js
std::string_view live_wasm();      // web/built/rootdk_live.wasm.gz
std::string_view live_recorded();  // web/built/claims.json

}  // namespace rootdk::lab
