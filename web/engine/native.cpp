// The page's requests answered by the native library: a request a line in, an answer a line out. The browser test
// compares the page with it, and scripts/web.sh records the long experiments with it.
// usage: live_native [MODEL]

#include <iostream>
#include <string>

#include "session.h"

int main(int count, char** arguments) {
  using rootdk::live::Json;
  rootdk::live::Session session;
  try {
    if (count > 1) session.open(arguments[1], arguments[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    Json json;
    try {
      json = rootdk::live::flattened(session.answer(Json::parse(line)));
    } catch (const std::exception& error) {
      json = {{"error", error.what()}};
    }
    std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
}
