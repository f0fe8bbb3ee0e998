#pragma once

// What it takes to put a page, its code and its data into one HTML file.

#include <map>
#include <string>
#include <string_view>

namespace rootdk::lab {

std::string base64(std::string_view bytes);

// Modules, one after the other, as one script: what they import from each other is in scope already.
std::string joined_modules(std::string_view modules);

// Text inside a script element, which must not close it.
std::string inside_script(std::string text);
// JSON inside a script element: neither "</script" nor "<!--<script", which hides the end of the element, stays.
std::string json_inside_script(std::string_view json);

// Fills {{name}}.
std::string filled(std::string_view pattern, const std::map<std::string_view, std::string>& parts);

}  // namespace rootdk::lab
