#pragma once

// Fields of a JSON object with messages that name the file, the field and the value found. JSON stays inside this
// module's source files.

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include "core/check.h"
#include "models/json.h"

namespace rootdk {

inline Json parse_json(std::string_view text, const std::string& where) {
  const Json::Limits limits;
  std::optional<Json::Problem> problem;
  Json document = Json::parse(text, limits, problem);
  if (!problem) return document;
  if (problem->kind == Json::Problem::Kind::depth) {
    fail(where, ": JSON nested deeper than ", limits.depth, " levels");
  }
  fail(where, ": not valid JSON: ", problem->detail);
}

class JsonFields {
 public:
  JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    require(object_.is_object(), where_, ": a JSON object is expected, not ", shown(object_));
  }

  const std::string& where() const { return where_; }
  const Json& object() const { return object_; }

  // The first of the names that is there and not null, or null.
  const Json* find(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      const Json* found = object_.find(name);
      if (found && !found->is_null()) return found;
    }
    return nullptr;
  }
  bool has(std::string_view name) const { return find({name}) != nullptr; }

  // Whole numbers. The first name is the one messages use.
  std::int64_t integer(std::initializer_list<std::string_view> names) const {
    const Json* value = find(names);
    require(value, where_, ": ", *names.begin(), " is missing");
    return as_integer(*value, *names.begin());
  }
  std::int64_t integer(std::initializer_list<std::string_view> names, std::int64_t otherwise) const {
    const Json* value = find(names);
    return value ? as_integer(*value, *names.begin()) : otherwise;
  }
  // A whole number from 0 on.
  std::uint64_t natural(std::initializer_list<std::string_view> names, std::uint64_t otherwise) const {
    const Json* value = find(names);
    if (!value) return otherwise;
    require(value->is_number_unsigned(), where_, ": ", *names.begin(), " must be a whole number from 0 to ",
            std::numeric_limits<std::uint64_t>::max(), ", not ", shown(*value));
    return value->get<std::uint64_t>();
  }
  // A size: at least 1 and small enough that products of a few of them do not overflow.
  std::int64_t size(std::initializer_list<std::string_view> names) const {
    return as_size(integer(names), *names.begin());
  }
  std::int64_t size(std::initializer_list<std::string_view> names, std::int64_t otherwise) const {
    return as_size(integer(names, otherwise), *names.begin());
  }
  double number(std::initializer_list<std::string_view> names, double otherwise) const {
    const Json* value = find(names);
    if (!value) return otherwise;
    require(value->is_number() && std::isfinite(value->get<double>()), where_, ": ", *names.begin(),
            " must be a number, not ", shown(*value));
    return value->get<double>();
  }
  // What a norm adds to a variance: a negative one would make square roots of negative numbers.
  double epsilon(std::initializer_list<std::string_view> names, double otherwise) const {
    const double value = number(names, otherwise);
    require(value >= 0, where_, ": ", *names.begin(), " must not be negative, not ", value);
    return value;
  }
  bool boolean(std::initializer_list<std::string_view> names, bool otherwise) const {
    const Json* value = find(names);
    if (!value) return otherwise;
    require(value->is_boolean(), where_, ": ", *names.begin(), " must be true or false, not ", shown(*value));
    return value->get<bool>();
  }
  std::string text(std::initializer_list<std::string_view> names, const std::string& otherwise) const {
    const Json* value = find(names);
    if (!value) return otherwise;
    require(value->is_string(), where_, ": ", *names.begin(), " must be a string, not ", shown(*value));
    return value->get<std::string>();
  }

  static std::string shown(const Json& value) {
    std::string text = value.dump();
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text;
  }

 private:
  std::int64_t as_integer(const Json& value, std::string_view name) const {
    const bool whole = value.is_number_integer() || (value.is_number_float() && std::abs(value.get<double>()) < 9e15 &&
                                                     std::floor(value.get<double>()) == value.get<double>());
    require(whole, where_, ": ", name, " must be a whole number, not ", shown(value));
    if (value.is_number_unsigned()) {
      require(value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
              where_, ": ", name, " is too large: ", shown(value));
    }
    return value.is_number_float() ? static_cast<std::int64_t>(value.get<double>()) : value.get<std::int64_t>();
  }
  std::int64_t as_size(std::int64_t value, std::string_view name) const {
    constexpr std::int64_t kLargest = std::int64_t{1} << 31;
    require(value >= 1 && value <= kLargest, where_, ": ", name, " ", value, " is not a size between 1 and ", kLargest);
    return value;
  }

  const Json& object_;
  std::string where_;
};

}  // namespace rootdk
