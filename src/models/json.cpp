#include "models/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace rootdk {
namespace {

// Of one number, text, truth or null. Such values of nlohmann-json take no memory when they go.
std::string scalar_text(const nlohmann::json& scalar) {
  return scalar.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void write(const Json& value, std::string& to) {
  if (value.is_array() || value.is_object()) {
    const char* separator = "";
    to += value.is_array() ? '[' : '{';
    for (const Json& element : value) {
      to += std::exchange(separator, ",");
      write(element, to);
    }
    for (const auto& [name, member] : value.items()) {
      to.append(std::exchange(separator, ",")).append(scalar_text(name)) += ':';
      write(member, to);
    }
    to += value.is_array() ? ']' : '}';
  } else if (value.is_boolean()) {
    to += scalar_text(value.get<bool>());
  } else if (value.is_number_unsigned()) {
    to += scalar_text(value.get<std::uint64_t>());
  } else if (value.is_number_integer()) {
    to += scalar_text(value.get<std::int64_t>());
  } else if (value.is_number()) {
    to += scalar_text(value.get<double>());
  } else {
    to += value.is_string() ? scalar_text(value.get<std::string>()) : "null";
  }
}

}  // namespace

// What nlohmann-json calls as it reads. Containers are built up on a stack; a false answer ends the parsing.
class Json::Builder {
 public:
  Builder(const Limits& limits, std::optional<Problem>& problem) : limits_(limits), problem_(problem) {}

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(std::int64_t value) { return add(Json(value)); }
  bool number_unsigned(std::uint64_t value) { return add(Json(value)); }
  bool number_float(double value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // not in a text
  bool start_array(std::size_t) { return open(Json::array()); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool key(std::string& name) {
    open_.back().name = std::move(name);
    return fits();
  }
  bool end_array() { return close(); }
  bool end_object() {
    auto& members = std::get<Object>(open_.back().container.value_);
    const auto by_name = [](const Member& a, const Member& b) { return a.name < b.name; };
    std::stable_sort(members.begin(), members.end(), by_name);
    const auto same = [](const Member& a, const Member& b) { return a.name == b.name; };
    const auto twice = std::adjacent_find(members.begin(), members.end(), same);
    if (twice != members.end() && limits_.unique_names) {
      problem_ = {Problem::Kind::repeated_name, twice->name};
      return false;
    }
    if (twice != members.end()) keep_last(members);
    return close();
  }
  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception& error) {
    problem_ = {Problem::Kind::syntax, error.what()};
    return false;
  }

  Json root;

 private:
  struct Open {
    Json container;
    std::string name;  // of the member that comes next
  };

  static void keep_last(Object& members) {
    Object kept;
    for (Member& member : members) {
      if (!kept.empty() && kept.back().name == member.name) kept.pop_back();
      kept.push_back(std::move(member));
    }
    members = std::move(kept);
  }

  bool fits() {
    if (open_.size() <= static_cast<std::size_t>(limits_.depth)) return true;
    problem_ = {Problem::Kind::depth};
    return false;
  }

  bool open(Json container) {
    if (!fits()) return false;
    open_.push_back({std::move(container), {}});
    return true;
  }

  bool close() {
    Json container = std::move(open_.back().container);
    open_.pop_back();
    return add(std::move(container));
  }

  bool add(Json value) {
    if (!fits()) return false;
    if (open_.empty()) {
      root = std::move(value);
    } else if (auto* array = std::get_if<Array>(&open_.back().container.value_)) {
      array->push_back(std::move(value));
    } else {
      auto& members = std::get<Object>(open_.back().container.value_);
      members.push_back({std::move(open_.back().name), std::move(value)});
    }
    return true;
  }

  const Limits& limits_;
  std::optional<Problem>& problem_;
  std::vector<Open> open_;
};

Json Json::parse(std::string_view text, const Limits& limits, std::optional<Problem>& problem) {
  Builder builder(limits, problem);
  const bool whole = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  if (!whole && !problem) problem = {Problem::Kind::syntax, "binary values"};
  return problem ? Json() : std::move(builder.root);
}

const Json* Json::find(std::string_view name) const {
  const std::span<const Member> members = items();
  const auto found =
      std::ranges::lower_bound(members, name, {}, [](const Member& m) -> std::string_view { return m.name; });
  return found != members.end() && found->name == name ? &found->value : nullptr;
}

void Json::erase(std::string_view name) {
  std::erase_if(std::get<Object>(value_), [&](const Member& member) { return member.name == name; });
}

void Json::set(std::string_view name, Json value) {
  auto& members = std::get<Object>(value_);
  const auto at =
      std::ranges::lower_bound(members, name, {}, [](const Member& m) -> std::string_view { return m.name; });
  if (at != members.end() && at->name == name) {
    at->value = std::move(value);
  } else {
    members.insert(at, {std::string(name), std::move(value)});
  }
}

std::string Json::dump() const {
  std::string text;
  write(*this, text);
  return text;
}

}  // namespace rootdk
