#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace rootdk::lab {

// Writes JSON as it comes, indented by a space a level or on one line. nlohmann-json gets single numbers and texts
// alone: its values that hold others take memory in their destructors, where running out of it ends the program.
class JsonWriter {
 public:
  using Scalar = nlohmann::json;

  explicit JsonWriter(bool indented = true) : indented_(indented) {}

  void open(char bracket) {
    text_ += bracket;
    ++depth_;
    first_ = true;
  }
  void close(char bracket) {
    --depth_;
    if (!first_) new_line();
    text_ += bracket;
    first_ = false;
  }
  // Before each element of a list.
  void next() {
    if (!first_) text_ += ',';
    first_ = false;
    new_line();
  }
  void name(std::string_view name) {
    next();
    put(name);
    text_ += ": ";
  }
  void put(const Scalar& scalar) { text_ += scalar.dump(-1, ' ', false, Scalar::error_handler_t::replace); }
  void member(std::string_view key, const Scalar& scalar) {
    name(key);
    put(scalar);
  }
  template <class T>
  void list(std::string_view key, const std::vector<T>& values) {
    name(key);
    open('[');
    for (const T& value : values) {
      next();
      put(value);
    }
    close(']');
  }
  std::string take() { return std::move(text_); }

 private:
  void new_line() {
    if (indented_) text_.append("\n").append(depth_, ' ');
  }

  std::string text_;
  bool indented_;
  std::size_t depth_ = 0;
  bool first_ = true;  // in the container at hand
};

inline JsonWriter::Scalar number_or_null(double value) {
  if (std::isfinite(value)) return value;
  return nullptr;
}

}  // namespace rootdk::lab
