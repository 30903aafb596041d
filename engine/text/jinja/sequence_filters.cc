#include "engine/text/jinja/sequence_filters.h"

#include <algorithm>
#include <map>

#include "absl/container/flat_hash_set.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

bool IsNumberText(std::string_view text) {
  return !text.empty() && text.size() < 19 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// A path such as "function.name" or 0, followed from a value.
std::vector<Value> PathOf(std::string_view rest) {
  std::vector<Value> path;
  SpendSearch(rest.size());
  while (true) {
    const size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    path.push_back(IsNumberText(part) ? Value::Int(std::stoll(part)) : Value::String(part));
    if (dot == std::string_view::npos) return path;
    rest.remove_prefix(dot + 1);
  }
}
std::vector<Value> PathOf(const Value& attribute) {
  if (attribute.Is(Kind::kNone)) return {};
  return attribute.Is(Kind::kString) ? PathOf(attribute.bytes()) : std::vector<Value>{attribute};
}

Value Follow(Interpreter& interpreter, Value value, const std::vector<Value>& path,
             const Value& fallback = Value::None()) {
  for (const Value& part : path) {
    value = interpreter.ItemOf(value, part);
    if (!fallback.Is(Kind::kNone) && value.Is(Kind::kUndefined)) value = fallback;
  }
  return value;
}

Value IgnoreCase(const Value& value) {
  return value.Is(Kind::kString) ? Value::String(WithCase(value.text(), Case::kLower)) : value;
}

// Stable, as Python's sorted is.
void SortByKeys(std::vector<std::pair<Value, Value>>* keyed, bool reverse) {
  // An order that fails must not leave std::sort with half of its work: the comparisons are tried before.
  for (size_t i = 1; i < keyed->size(); ++i) Compare((*keyed)[i].first, (*keyed)[i - 1].first, "<");
  std::stable_sort(keyed->begin(), keyed->end(), [&](const auto& a, const auto& b) {
    return Compare(reverse ? b.first : a.first, reverse ? a.first : b.first, "<").value_or(0) < 0;
  });
}

std::vector<Value> Values(std::vector<std::pair<Value, Value>> keyed) {
  std::vector<Value> values;
  for (auto& [key, value] : keyed) values.push_back(std::move(value));
  return values;
}

Value First(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("first", arguments, {});
  if (input.Is(Kind::kString) && !input.text().empty()) return *Item(input, Value::Int(0));
  const SharedItems items = SharedItemsOf(input);
  return items.empty() ? Value::Undefined("No first item, sequence was empty.") : items[0];
}

Value Last(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("last", arguments, {});
  if (!input.Is(Kind::kUndefined) && !LengthIfAny(input)) {
    throw Failure{.message = "'" + TypeName(input) + "' object is not reversible"};
  }
  if (input.Is(Kind::kString) && !input.text().empty()) return *Item(input, Value::Int(-1));
  const SharedItems items = SharedItemsOf(input);
  return items.empty() ? Value::Undefined("No last item, sequence was empty.") : items[items.size() - 1];
}

Value JoinFilter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("join", arguments, {"d", "attribute"});
  const std::vector<Value> path = PathOf(reader.Get(1));
  const Text separator = Printed(reader.Get(0, Value::String("")));
  Text text;
  bool first = true;
  for (const Value& item : SharedItemsOf(input)) {
    if (!std::exchange(first, false)) text.Append(separator);
    AppendPrinted(Follow(interpreter, item, path), &text);
  }
  return Value::String(std::move(text));
}

Value ToList(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("list", arguments, {});
  return Value::List(ItemsOf(input));
}

Value Items(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("items", arguments, {});
  if (input.Is(Kind::kUndefined)) return Iterator({});
  if (!input.Is(Kind::kDict)) throw Failure{.message = "Can only get item pairs from a mapping."};
  return Iterator(ItemsOf(DictItems(input.dict())));
}

Value DictSort(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const Value by_value = reader.String(1, "key");
  const std::string& by = by_value.bytes();
  if (by != "key" && by != "value") throw Failure{.message = "You can only sort by either \"key\" or \"value\""};
  RequireDefined(input);
  if (!input.Is(Kind::kDict)) throw Failure{.message = "'" + TypeName(input) + " object' has no attribute 'items'"};
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict().items) {
    const Value& chosen = by == "key" ? key : value;
    keyed.emplace_back(reader.True(0, false) ? chosen : IgnoreCase(chosen), Value::Tuple({key, value}));
  }
  SortByKeys(&keyed, reader.True(2, false));
  return Value::List(Values(std::move(keyed)));
}

Value Sort(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::vector<Value>> paths;
  const Value attribute = reader.Get(2);
  if (attribute.Is(Kind::kString)) {
    std::string_view rest = attribute.bytes();
    for (size_t comma = 0; comma != std::string_view::npos;) {
      comma = rest.find(',');
      paths.push_back(PathOf(rest.substr(0, comma)));
      if (comma != std::string_view::npos) rest.remove_prefix(comma + 1);
    }
  } else {
    paths.push_back(PathOf(attribute));
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : ItemsOf(input)) {
    std::vector<Value> keys;
    for (const std::vector<Value>& path : paths) {
      Value key = Follow(interpreter, item, path);
      keys.push_back(reader.True(1, false) ? std::move(key) : IgnoreCase(key));
    }
    keyed.emplace_back(Value::List(std::move(keys)), std::move(item));
  }
  SortByKeys(&keyed, reader.True(0, false));
  return Value::List(Values(std::move(keyed)));
}

Value Unique(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("unique", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> path = PathOf(reader.Get(1));
  absl::flat_hash_set<std::string> seen;
  std::vector<Value> values;
  for (Value& item : ItemsOf(input)) {
    const Value key = Follow(interpreter, item, path);
    const auto [hash, is_new] = seen.insert(HashKey(reader.True(0, false) ? key : IgnoreCase(key)));
    if (!is_new) continue;
    SpendBytes(hash->size() + sizeof(std::string));
    values.push_back(std::move(item));
  }
  return Iterator(std::move(values));
}

template <bool largest>
Value Extreme(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> path = PathOf(reader.Get(1));
  const SharedItems items = SharedItemsOf(input);
  if (items.empty()) return Value::Undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    const Value key = Follow(interpreter, item, path);
    return reader.True(0, false) ? key : IgnoreCase(key);
  };
  size_t best = 0;
  Value best_key = key_of(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(items[i]);
    const int sign = Compare(key, best_key, largest ? ">" : "<").value_or(0);
    if (largest ? sign <= 0 : sign >= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value Sum(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("sum", arguments, {"attribute", "start"});
  const std::vector<Value> path = PathOf(reader.Get(0));
  Value total = reader.Get(1, Value::Int(0));
  if (total.Is(Kind::kString)) throw Failure{.message = "sum() can't sum strings [use ''.join(seq) instead]"};
  for (const Value& item : SharedItemsOf(input))
    total = Calculate(Arithmetic::kAdd, total, Follow(interpreter, item, path));
  return total;
}

Value Reverse(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("reverse", arguments, {});
  if (input.Is(Kind::kString)) return Slice(input, Value::None(), Value::None(), Value::Int(-1));
  std::optional<std::vector<Value>> items = ItemsIfAny(input);
  if (!items) throw Failure{.message = "argument must be iterable"};
  std::reverse(items->begin(), items->end());
  if (!LengthIfAny(input)) return Value::List(*std::move(items));
  return Iterator(*std::move(items), "list_reverseiterator");
}

Value Batch(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("batch", arguments, {"linecount", "fill_with"}, 1);
  const Integer count = reader.Int(0, 0);
  std::vector<Value> rows, row;
  for (Value& item : ItemsOf(input)) {
    if (static_cast<Integer>(row.size()) == count) {
      rows.push_back(Value::List(std::exchange(row, {})));
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (!reader.Get(1).Is(Kind::kNone) && static_cast<Integer>(row.size()) < count) {
      RequireSize(sizeof(Value), static_cast<size_t>(std::min<Integer>(count, Integer{1} << 50)));
      row.resize(static_cast<size_t>(count), reader.Get(1));
    }
    rows.push_back(Value::List(std::move(row)));
  }
  return Iterator(std::move(rows));
}

Value SliceInto(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("slice", arguments, {"slices", "fill_with"}, 1);
  const std::vector<Value> items = ItemsOf(input);
  const Integer slices = reader.Int(0, 0);
  if (slices == 0) throw Failure{.message = "integer division or modulo by zero"};
  if (slices < 0) return Iterator({});
  RequireSize(sizeof(Value), static_cast<size_t>(std::min<Integer>(slices, Integer{1} << 50)));
  const size_t count = static_cast<size_t>(slices), each = items.size() / count, extra = items.size() % count;
  std::vector<Value> rows;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t end = at + each + (i < extra ? 1 : 0);
    std::vector<Value> row(items.begin() + static_cast<ptrdiff_t>(at), items.begin() + static_cast<ptrdiff_t>(end));
    if (i >= extra && !reader.Get(1).Is(Kind::kNone)) row.push_back(reader.Get(1));
    rows.push_back(Value::List(std::move(row)));
    at = end;
  }
  return Iterator(std::move(rows));
}

// A pair that groupby makes: a tuple whose items have names.
Value GroupBy(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const std::vector<Value> path = PathOf(reader.Get(0));
  const bool exact = reader.True(2, false);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : ItemsOf(input)) {
    const Value key = Follow(interpreter, item, path, reader.Get(1));
    keyed.emplace_back(exact ? key : IgnoreCase(key), std::move(item));
  }
  SortByKeys(&keyed, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < keyed.size();) {
    std::vector<Value> members;
    size_t end = begin;
    for (; end < keyed.size() && Equal(keyed[end].first, keyed[begin].first); ++end)
      members.push_back(keyed[end].second);
    const Value name = exact ? keyed[begin].first : Follow(interpreter, members[0], path, reader.Get(1));
    groups.push_back(Value::OfObject(std::make_shared<GroupObject>(name, Value::List(std::move(members)))));
    begin = end;
  }
  return Value::List(std::move(groups));
}

// Arguments without the first positional ones.
Arguments WithoutFirst(const Arguments& arguments, size_t count) {
  SpendBytes((arguments.positional.size() - count + 2 * arguments.named.size()) * sizeof(Value));
  return {{arguments.positional.begin() + static_cast<ptrdiff_t>(count), arguments.positional.end()}, arguments.named};
}

Value MapFilter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!IsTrue(input)) return Iterator({});
  std::vector<Value> values;
  const bool by_attribute = arguments.positional.empty() && !arguments.named.empty() &&
                            std::any_of(arguments.named.begin(), arguments.named.end(),
                                        [](const auto& named) { return named.first.bytes() == "attribute"; });
  if (by_attribute) {
    const ArgumentReader reader("map", {{}, arguments.named}, {"attribute", "default"});
    const std::vector<Value> path = PathOf(reader.Get(0));
    for (const Value& item : SharedItemsOf(input)) values.push_back(Follow(interpreter, item, path, reader.Get(1)));
    return Iterator(std::move(values));
  }
  if (arguments.positional.empty()) throw Failure{.message = "map requires a filter argument"};
  const Value& name = arguments.positional[0];
  if (!name.Is(Kind::kString)) throw Failure{.message = "map requires the name of a filter, not " + TypeName(name)};
  const Arguments rest = WithoutFirst(arguments, 1);
  for (const Value& item : SharedItemsOf(input)) values.push_back(interpreter.ApplyFilter(name.bytes(), item, rest));
  return Iterator(std::move(values));
}

template <bool by_attribute, bool wanted>
Value Choose(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!IsTrue(input)) return Iterator({});
  const size_t test_at = by_attribute ? 1 : 0;
  if (arguments.positional.size() < test_at) throw Failure{.message = "Missing parameter for attribute name"};
  const std::vector<Value> path = by_attribute ? PathOf(arguments.positional[0]) : std::vector<Value>();
  const bool has_test = arguments.positional.size() > test_at;
  Arguments rest;
  if (has_test) {
    const Value& name = arguments.positional[test_at];
    if (!name.Is(Kind::kString)) throw Failure{.message = "the name of a test is a string, not " + TypeName(name)};
    rest = WithoutFirst(arguments, test_at + 1);
  }
  std::vector<Value> values;
  for (const Value& item : SharedItemsOf(input)) {
    const Value tested = Follow(interpreter, item, path);
    const bool holds =
        has_test ? interpreter.ApplyTest(arguments.positional[test_at].bytes(), tested, rest) : IsTrue(tested);
    if (holds == wanted) values.push_back(item);
  }
  return Iterator(std::move(values));
}

Value AttributeFilter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("attr", arguments, {"name"}, 1);
  RequireDefined(input);
  const Value name_value = reader.String(0, nullptr);
  const std::string& name = name_value.bytes();
  const bool has = input.Is(Kind::kObject) ? input.object().Attribute(interpreter, name).has_value()
                                           : BuiltinAttribute(input, name).has_value();
  if (has || name.starts_with("__")) return interpreter.Attribute(input, name);
  return Value::Undefined("'" + TypeName(input) + " object' has no attribute '" + name + "'");
}

}  // namespace

Filter FindSequenceFilter(std::string_view name) {
  static const std::map<std::string_view, Filter> kFilters = {
      {"attr", &AttributeFilter},
      {"batch", &Batch},
      {"dictsort", &DictSort},
      {"first", &First},
      {"groupby", &GroupBy},
      {"items", &Items},
      {"join", &JoinFilter},
      {"last", &Last},
      {"list", &ToList},
      {"map", &MapFilter},
      {"max", &Extreme<true>},
      {"min", &Extreme<false>},
      {"reject", &Choose<false, false>},
      {"rejectattr", &Choose<true, false>},
      {"reverse", &Reverse},
      {"select", &Choose<false, true>},
      {"selectattr", &Choose<true, true>},
      {"slice", &SliceInto},
      {"sort", &Sort},
      {"sum", &Sum},
      {"unique", &Unique},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace fastdecode::jinja
