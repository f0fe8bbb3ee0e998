#include "models/tensor_pickle.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string_view>
#include <variant>

#include "core/check.h"

namespace rootdk {
namespace {

struct Object;
using Handle = Object*;  // the machine owns them: a pickle may make cycles
using Items = std::vector<Handle>;

struct Mark {};
struct None {};
struct Name {  // of a function or class
  std::string text;
};
struct Storage {
  std::string key;
  std::optional<DType> dtype;  // none: a type that no model has
};
struct Sequence {  // a tuple or a list
  Items items;
};
struct Dictionary {
  std::vector<std::pair<Handle, Handle>> items;
};
struct Opaque {};  // what is of no interest: hooks, metadata

struct Object {
  std::variant<Mark, None, bool, std::int64_t, std::string, Name, Storage, PickledTensor, Sequence, Dictionary, Opaque>
      value;
};

struct StorageType {
  std::string_view name;
  std::optional<DType> dtype;
};
constexpr std::array<StorageType, 10> kStorages = {{{"torch FloatStorage", DType::f32},
                                                    {"torch HalfStorage", DType::f16},
                                                    {"torch BFloat16Storage", DType::bf16},
                                                    {"torch DoubleStorage", DType::f64},
                                                    {"torch IntStorage", DType::i32},
                                                    {"torch LongStorage", DType::i64},
                                                    {"torch BoolStorage", DType::boolean},
                                                    {"torch ByteStorage", std::nullopt},
                                                    {"torch CharStorage", DType::i8},
                                                    {"torch ShortStorage", std::nullopt}}};

// A stack machine for the opcodes that torch.save writes with protocol 2.
class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  Handle run() {
    while (!done_) step();
    require(stack_.size() == 1, where_, ": the pickle ends with ", stack_.size(), " objects");
    return stack_.back();
  }

 private:
  static constexpr std::size_t kMostObjects = 1 << 22;
  static constexpr std::size_t kLongestKey = 64;  // they are numbers

  template <class... Parts>
  void check(bool good, const Parts&... parts) const {
    require(good, where_, ": the pickle ", parts..., " at byte ", at_);
  }

  std::uint64_t number(std::size_t count) {
    check(count <= bytes_.size() - at_, "ends too soon");
    std::uint64_t value = 0;
    for (std::size_t i = count; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes_[at_ + i]);
    at_ += count;
    return value;
  }

  std::string text(std::uint64_t count) {
    check(count <= bytes_.size() - at_, "has a text of ", count, " bytes");
    std::string found(reinterpret_cast<const char*>(bytes_.data()) + at_, count);
    at_ += count;
    return found;
  }

  std::string line() {
    std::string found;
    while (true) {
      const auto c = static_cast<char>(number(1));
      if (c == '\n') return found;
      found += c;
      check(found.size() < 4096, "has a long name");
    }
  }

  template <class T>
  void push(T value) {
    check(++made_ < kMostObjects, "has more than ", kMostObjects, " objects");
    objects_.push_back(Object{std::move(value)});
    stack_.push_back(&objects_.back());
  }

  Handle pop() {
    check(!stack_.empty(), "takes from an empty stack");
    Handle top = stack_.back();
    stack_.pop_back();
    return top;
  }

  // What lies above the last mark, which goes too.
  Items pop_mark() {
    std::size_t first = stack_.size();
    while (first > 0 && !std::holds_alternative<Mark>(stack_[first - 1]->value)) --first;
    check(first > 0, "has no mark");
    Items items(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(first - 1);
    return items;
  }

  template <class T>
  T& as(Handle object, const char* what) const {
    T* value = std::get_if<T>(&object->value);
    check(value != nullptr, "has no ", what, " where one belongs");
    return *value;
  }

  void step() {
    const auto code = static_cast<unsigned char>(number(1));
    switch (code) {
      case 0x80: number(1); return;                                               // PROTO
      case '.': done_ = true; return;                                             // STOP
      case '(': return push(Mark{});                                              // MARK
      case '}': return push(Dictionary{});                                        // EMPTY_DICT
      case ']':                                                                   // EMPTY_LIST
      case ')': return push(Sequence{});                                          // EMPTY_TUPLE
      case 'N': return push(None{});                                              // NONE
      case 0x88: return push(true);                                               // NEWTRUE
      case 0x89: return push(false);                                              // NEWFALSE
      case 'K': return push(static_cast<std::int64_t>(number(1)));                // BININT1
      case 'M': return push(static_cast<std::int64_t>(number(2)));                // BININT2
      case 'J': return push(std::int64_t{static_cast<std::int32_t>(number(4))});  // BININT
      case 0x8a: return push_long();                                              // LONG1
      case 'X': return push(text(number(4)));                                     // BINUNICODE
      case 0x8c: return push(text(number(1)));                                    // SHORT_BINUNICODE
      case 'q': return remember(number(1));                                       // BINPUT
      case 'r': return remember(number(4));                                       // LONG_BINPUT
      case 'h': return recall(number(1));                                         // BINGET
      case 'j': return recall(number(4));                                         // LONG_BINGET
      case 't': return push(Sequence{pop_mark()});                                // TUPLE
      case 0x85: return push_tuple(1);                                            // TUPLE1
      case 0x86: return push_tuple(2);                                            // TUPLE2
      case 0x87: return push_tuple(3);                                            // TUPLE3
      case 'c': return push_name();                                               // GLOBAL
      case 'Q': return push_storage();                                            // BINPERSID
      case 'R': return call();                                                    // REDUCE
      case 'b': pop(); return;                                                    // BUILD: attributes
      case 's': return set_items(take(2));                                        // SETITEM
      case 'u': return set_items(pop_mark());                                     // SETITEMS
      case 'a': return append_items(take(1));                                     // APPEND
      case 'e': return append_items(pop_mark());                                  // APPENDS
      default: check(false, "has the opcode ", static_cast<int>(code), ", which no dictionary of tensors needs");
    }
  }

  Items take(std::size_t count) {
    check(stack_.size() >= count, "takes from an empty stack");
    Items items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }

  void push_tuple(std::size_t count) { push(Sequence{take(count)}); }

  void push_long() {
    const std::uint64_t count = number(1);
    check(count <= 8, "has an integer of ", count, " bytes");
    std::uint64_t value = number(count);
    const bool negative = count > 0 && count < 8 && (value >> (8 * count - 1) & 1) != 0;
    if (negative) value |= ~std::uint64_t{0} << (8 * count);
    push(static_cast<std::int64_t>(value));
  }

  void remember(std::uint64_t place) {
    check(!stack_.empty(), "remembers nothing");
    check(place < kMostObjects, "remembers object ", place);
    memo_[place] = stack_.back();
  }

  void recall(std::uint64_t place) {
    const auto found = memo_.find(place);
    check(found != memo_.end(), "recalls object ", place, ", which it never had");
    stack_.push_back(found->second);
  }

  void push_name() {
    const std::string module = line();
    push(Name{module + " " + line()});
  }

  // ('storage', class, key, device, elements)
  void push_storage() {
    const Handle id = pop();
    const Items& parts = as<Sequence>(id, "tuple").items;
    check(parts.size() >= 3 && as<std::string>(parts[0], "text") == "storage", "has an id that is no storage");
    const std::string& name = as<Name>(parts[1], "class").text;
    const auto known = std::ranges::find(kStorages, name, &StorageType::name);
    check(known != kStorages.end(), "has a storage of class '", name, "'");
    const std::string& key = as<std::string>(parts[2], "text");
    check(key.size() <= kLongestKey, "has a storage whose name has ", key.size(), " bytes");
    push(Storage{key, known->dtype});
  }

  // Sizes or strides. A pickle names a long tuple again and again in a few bytes each: copies must be short.
  std::vector<std::int64_t> numbers(Handle object) {
    const Items& items = as<Sequence>(object, "tuple").items;
    check(items.size() <= kMaxRank, "has a tensor of ", items.size(), " dimensions");
    std::vector<std::int64_t> found;
    for (Handle item : items) found.push_back(as<std::int64_t>(item, "number"));
    return found;
  }

  void call() {
    const Handle arguments = pop(), function = pop();
    const std::string name = as<Name>(function, "function").text;
    const Items& items = as<Sequence>(arguments, "tuple").items;
    if (name == "collections OrderedDict") return push(Dictionary{});
    if (name == "torch._utils _rebuild_parameter") {
      check(!items.empty(), "makes a parameter of nothing");
      stack_.push_back(items[0]);
      return;
    }
    check(name == "torch._utils _rebuild_tensor_v2", "calls '", name, "', which is not done");
    check(items.size() >= 4, "makes a tensor of ", items.size(), " parts");
    const Storage& storage = as<Storage>(items[0], "storage");
    if (!storage.dtype) return push(Opaque{});
    push(PickledTensor{.storage = storage.key,
                       .dtype = *storage.dtype,
                       .offset = as<std::int64_t>(items[1], "number"),
                       .shape = numbers(items[2]),
                       .strides = numbers(items[3])});
  }

  void set_items(const Items& items) {
    check(!stack_.empty() && items.size() % 2 == 0, "sets items of nothing");
    auto& dictionary = as<Dictionary>(stack_.back(), "dictionary");
    for (std::size_t i = 0; i < items.size(); i += 2) dictionary.items.emplace_back(items[i], items[i + 1]);
  }

  void append_items(const Items& items) {
    check(!stack_.empty(), "appends to nothing");
    auto& list = as<Sequence>(stack_.back(), "list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }

  std::span<const std::byte> bytes_;
  const std::string& where_;
  std::size_t at_ = 0, made_ = 0;
  bool done_ = false;
  std::deque<Object> objects_;
  Items stack_;
  std::map<std::uint64_t, Handle> memo_;
};

}  // namespace

std::map<std::string, PickledTensor> read_tensor_pickle(std::span<const std::byte> pickle, const std::string& where) {
  Machine machine(pickle, where);
  const Handle root = machine.run();
  const auto* dictionary = std::get_if<Dictionary>(&root->value);
  require(dictionary != nullptr, where, ": the pickle is no dictionary");
  std::map<std::string, PickledTensor> tensors;
  for (const auto& [key, value] : dictionary->items) {
    const auto* name = std::get_if<std::string>(&key->value);
    const auto* tensor = std::get_if<PickledTensor>(&value->value);
    if (name && tensor) tensors[*name] = *tensor;
  }
  return tensors;
}

}  // namespace rootdk
