#pragma once

// JSON as this module reads it. nlohmann-json checks syntax and UTF-8; its own values take memory in their destructors,
// where running out of it ends the program, and so are not used for what is read.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace rootdk {

class Json {
 public:
  struct Member;

  Json() = default;  // null
  explicit Json(bool value);
  explicit Json(std::int64_t value);
  explicit Json(std::uint64_t value);
  explicit Json(double value);
  explicit Json(std::string value);
  static Json array();
  static Json object();

  struct Limits {
    int depth = 64;             // of nesting: deeper documents would exhaust the stack of whoever walks them
    bool unique_names = false;  // else the last of several members of one name counts
  };
  // What is wrong with a text.
  struct Problem {
    enum class Kind { syntax, depth, repeated_name } kind = Kind::syntax;
    std::string detail = {};  // of the syntax, or the name
  };
  // Where there is a problem, null comes back.
  static Json parse(std::string_view text, const Limits& limits, std::optional<Problem>& problem);

  bool is_null() const { return holds<std::monostate>(); }
  bool is_boolean() const { return holds<bool>(); }
  bool is_number_unsigned() const { return holds<std::uint64_t>(); }
  bool is_number_integer() const { return holds<std::int64_t>() || holds<std::uint64_t>(); }
  bool is_number_float() const { return holds<double>(); }
  bool is_number() const { return is_number_integer() || is_number_float(); }
  bool is_string() const { return holds<std::string>(); }
  bool is_array() const { return holds<Array>(); }
  bool is_object() const { return holds<Object>(); }

  // Any number as any number; else of the very type. What it is has been asked before.
  template <class T>
  T get() const {
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      if (const auto* number = std::get_if<std::int64_t>(&value_)) return static_cast<T>(*number);
      if (const auto* number = std::get_if<std::uint64_t>(&value_)) return static_cast<T>(*number);
      return static_cast<T>(std::get<double>(value_));
    } else {
      return std::get<T>(value_);
    }
  }
  bool operator==(std::string_view text) const { return is_string() && std::get<std::string>(value_) == text; }

  // Elements of an array; none of anything else.
  std::size_t size() const { return elements().size(); }
  bool empty() const { return elements().empty(); }
  const Json& operator[](std::size_t index) const { return elements()[index]; }
  auto begin() const { return elements().begin(); }
  auto end() const { return elements().end(); }

  // Members of an object, by name in order; none of anything else.
  std::span<const Member> items() const;
  const Json* find(std::string_view name) const;  // null: there is none
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // Of an object: a member of this name, in place of what it has; none of this name.
  void set(std::string_view name, Json value);
  void erase(std::string_view name);

  // On one line, in ASCII: for messages.
  std::string dump() const;

 private:
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;
  class Builder;

  explicit Json(Array elements);
  explicit Json(Object members);
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  std::span<const Json> elements() const;

  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

struct Json::Member {
  std::string name;
  Json value;
};

// Members are complete from here on.
inline Json::Json(bool value) : value_(value) {}
inline Json::Json(std::int64_t value) : value_(value) {}
inline Json::Json(std::uint64_t value) : value_(value) {}
inline Json::Json(double value) : value_(value) {}
inline Json::Json(std::string value) : value_(std::move(value)) {}
inline Json::Json(Array elements) : value_(std::move(elements)) {}
inline Json::Json(Object members) : value_(std::move(members)) {}
inline Json Json::array() { return Json(Array()); }
inline Json Json::object() { return Json(Object()); }

inline std::span<const Json> Json::elements() const {
  const auto* array = std::get_if<Array>(&value_);
  return array ? std::span<const Json>(*array) : std::span<const Json>();
}

inline std::span<const Json::Member> Json::items() const {
  const auto* object = std::get_if<Object>(&value_);
  return object ? std::span<const Member>(*object) : std::span<const Member>();
}

}  // namespace rootdk
