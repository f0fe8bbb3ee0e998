#pragma once

// The parts of the pages (web/), inside the program, so that it is never without them.

#include <cstddef>
#include <string_view>

namespace rootdk::lab {

// The live page.
std::string_view live_template();  // web/page.html
std::string_view live_modules();   // web/src/*.js of the live page, one after the other
std::string_view live_glue();      // web/built/rootdk_live.js
std::string_view live_wasm();      // web/built/rootdk_live.wasm.gz
std::string_view live_recorded();  // web/built/claims.json

// The report of an inspection. In an object file without the above: a library that writes reports alone has no use for
// the compiled engine.
std::string_view report_template();  // web/report.html
std::string_view report_modules();   // web/src/*.js of the report, many of them the live page's too
std::string_view page_style();       // web/style.css, of both pages

}  // namespace rootdk::lab
