// What the page's JavaScript calls. Errors become an answer {"error": message}.

#include <emscripten.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/check.h"
#include "session.h"

namespace {

using rootdk::live::Json;

rootdk::live::Session session;
rootdk::live::Answer last;  // its arrays stay where they are until the next request
std::string text;

const char* answered(const Json& json) {
  text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.c_str();
}

template <class Body>
const char* guarded(Body&& body) {
  try {
    return answered(body());
  } catch (const std::exception& error) {
    return answered({{"error", error.what()}});
  }
}

}  // namespace

extern "C" {

// A file of the model, before live_open.
EMSCRIPTEN_KEEPALIVE const char* live_file(const char* name, const char* bytes, int size) {
  return guarded([&]() -> Json {
    std::filesystem::create_directories("/model");
    std::ofstream file(std::string("/model/") + name, std::ios::binary);
    file.write(bytes, size);
    rootdk::require(static_cast<bool>(file.flush()), "live: cannot keep ", name);
    return Json::object();
  });
}

EMSCRIPTEN_KEEPALIVE const char* live_open(const char* name) {
  return guarded([&]() -> Json {
    session.open("/model", name);
    std::filesystem::remove_all("/model");
    return Json::object();
  });
}

// The answer's JSON; "arrays" has, by name, the address of the floats and the shape.
EMSCRIPTEN_KEEPALIVE const char* live_request(const char* request) {
  return guarded([&]() -> Json {
    last = session.answer(Json::parse(request));
    Json json = last.json;
    for (const auto& [name, array] : last.arrays) {
      json["arrays"][name] = {{"at", reinterpret_cast<std::uintptr_t>(array.values.data())}, {"shape", array.shape}};
    }
    return json;
  });
}
}
