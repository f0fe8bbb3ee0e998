#pragma once

// What C++20 has and the standard library of Debian 12's emscripten (libc++ of LLVM 13) has not yet. Included before
// every source by wasm32-emscripten.cmake; empty where the library is newer.

#ifdef __cplusplus
#include <version>
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 15000

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>

namespace std {

#if _LIBCPP_VERSION < 14000
template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}
#endif

template <class Array>
std::unique_ptr<Array> make_unique_for_overwrite(std::size_t size) {
  return std::unique_ptr<Array>(new std::remove_extent_t<Array>[size]);
}

namespace ranges {

struct Itself {
  template <class T>
  constexpr T&& operator()(T&& x) const {
    return static_cast<T&&>(x);
  }
};

template <class Range, class T, class Projection = Itself>
constexpr auto find(Range&& range, const T& value, Projection projection = {}) {
  return std::find_if(std::begin(range), std::end(range),
                      [&](const auto& x) { return std::invoke(projection, x) == value; });
}
template <class Range, class Predicate>
constexpr auto find_if(Range&& range, Predicate predicate) {
  return std::find_if(std::begin(range), std::end(range), predicate);
}
template <class Range, class Predicate>
constexpr auto count_if(Range&& range, Predicate predicate) {
  return std::count_if(std::begin(range), std::end(range), predicate);
}
template <class Range, class Predicate>
constexpr bool any_of(Range&& range, Predicate predicate) {
  return std::any_of(std::begin(range), std::end(range), predicate);
}
template <class Range, class Predicate>
constexpr bool all_of(Range&& range, Predicate predicate) {
  return std::all_of(std::begin(range), std::end(range), predicate);
}
template <class Range, class Predicate>
constexpr bool none_of(Range&& range, Predicate predicate) {
  return std::none_of(std::begin(range), std::end(range), predicate);
}
template <class Range, class Other>
constexpr bool equal(Range&& range, Other&& other) {
  return std::equal(std::begin(range), std::end(range), std::begin(other), std::end(other));
}
template <class Range, class Other>
constexpr auto mismatch(Range&& range, Other&& other) {
  const auto found = std::mismatch(std::begin(range), std::end(range), std::begin(other), std::end(other));
  struct {
    decltype(found.first) in1;
    decltype(found.second) in2;
  } const result{found.first, found.second};
  return result;
}
template <class Range>
constexpr auto max_element(Range&& range) {
  return std::max_element(std::begin(range), std::end(range));
}
template <class Range>
constexpr auto min_element(Range&& range) {
  return std::min_element(std::begin(range), std::end(range));
}
template <class Range, class Out, class Function>
constexpr auto transform(Range&& range, Out out, Function function) {
  return std::transform(std::begin(range), std::end(range), out, function);
}
template <class Range, class Out>
constexpr auto copy(Range&& range, Out out) {
  return std::copy(std::begin(range), std::end(range), out);
}
template <class Range, class T>
constexpr void fill(Range&& range, const T& value) {
  std::fill(std::begin(range), std::end(range), value);
}
template <class Range>
constexpr void reverse(Range&& range) {
  std::reverse(std::begin(range), std::end(range));
}
template <class Range, class T, class Less = std::less<>, class Projection = Itself>
constexpr auto lower_bound(Range&& range, const T& value, Less less = {}, Projection projection = {}) {
  return std::lower_bound(std::begin(range), std::end(range), value,
                          [&](const auto& x, const T& y) { return less(std::invoke(projection, x), y); });
}
template <class Range, class T, class Less = std::less<>, class Projection = Itself>
constexpr auto upper_bound(Range&& range, const T& value, Less less = {}, Projection projection = {}) {
  return std::upper_bound(std::begin(range), std::end(range), value,
                          [&](const T& y, const auto& x) { return less(y, std::invoke(projection, x)); });
}
template <class Range, class Less = std::less<>, class Projection = Itself>
void sort(Range&& range, Less less = {}, Projection projection = {}) {
  std::sort(std::begin(range), std::end(range),
            [&](const auto& a, const auto& b) { return less(std::invoke(projection, a), std::invoke(projection, b)); });
}
template <class Range, class Less = std::less<>, class Projection = Itself>
void stable_sort(Range&& range, Less less = {}, Projection projection = {}) {
  std::stable_sort(std::begin(range), std::end(range), [&](const auto& a, const auto& b) {
    return less(std::invoke(projection, a), std::invoke(projection, b));
  });
}

}  // namespace ranges
}  // namespace std

#endif
#endif
