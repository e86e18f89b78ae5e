#include "recordings/event_scanner.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "recordings/json_scan.h"

namespace commprof::recordings {

namespace {

// Times in us are below kMostUs. If an event begins at a larger whole number,
// the number is in ns since 1970. Times in ns are below kMostNs.
constexpr double kMostUs = 2.3e15;
constexpr int64_t kMostNs = 2'300'000'000'000'000'000;
constexpr int64_t kLimit = int64_t(1) << 62;
constexpr size_t kMostDigits = 18;

bool isString(std::string_view token) {
  return !token.empty() && token.front() == '"';
}

std::string_view unquoted(std::string_view token) {
  return token.substr(1, token.size() - 2);
}

bool isEscaped(std::string_view token) {
  return token.find('\\') != std::string_view::npos;
}

std::optional<int64_t> wholeNumber(std::string_view token) {
  int64_t value = 0;
  const char* const end = token.data() + token.size();
  const auto [rest, error] = std::from_chars(token.data(), end, value);
  if (error != std::errc() || rest != end) {
    return std::nullopt;
  }
  return value;
}

// Reads a whole number, with or without quotes. Returns -1 for anything else.
// Returns nullopt for a text with escapes or non-ASCII characters, which is
// left to Python.
std::optional<int64_t> identifier(std::string_view token) {
  if (!isString(token)) {
    const int64_t value = wholeNumber(token).value_or(-1);
    return value >= -kLimit && value < kLimit ? value : -1;
  }
  const std::string_view text = unquoted(token);
  if (text.empty() || text.size() > kMostDigits * 4) {
    return -1;
  }
  for (const char c : text) {
    if (c == '\\' || static_cast<unsigned char>(c) >= 0x80) {
      return std::nullopt;
    }
    if (c < '0' || c > '9') {
      return -1;
    }
  }
  return text.size() <= kMostDigits ? wholeNumber(text).value_or(-1) : -1;
}

struct Time {
  int64_t ns = 0;
  bool isWholeNs = false;
};

bool areDigits(std::string_view text) {
  return !text.empty() &&
      text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Converts a decimal number of us, such as "1736408883688177.930", to ns. Works
// on the digits, because a double cannot hold ns since 1970. Rounds half to
// even. Returns nullopt if the text has another form.
std::optional<int64_t> nsOfDecimal(std::string_view text) {
  const size_t point = text.find('.');
  const std::string_view before = text.substr(0, point);
  if (!areDigits(before) || before.size() > kMostDigits) {
    return std::nullopt;
  }
  const int64_t us = wholeNumber(before).value_or(0);
  if (double(us) >= kMostUs) {
    return std::nullopt;
  }
  if (point == std::string_view::npos) {
    return us * 1000;
  }
  const std::string_view after = text.substr(point + 1);
  if (!areDigits(after)) {
    return std::nullopt;
  }
  int64_t ns = 0;
  for (size_t i = 0; i < 3; ++i) {
    ns = ns * 10 + (i < after.size() ? after[i] - '0' : 0);
  }
  const std::string_view rest = after.substr(std::min<size_t>(after.size(), 3));
  const bool isHalfOrMore = !rest.empty() && rest.front() >= '5';
  const bool isHalf = isHalfOrMore && rest.front() == '5' &&
      rest.find_first_not_of('0', 1) == std::string_view::npos;
  ns += isHalfOrMore && (!isHalf || ns % 2 == 1) ? 1 : 0;
  return us * 1000 + ns;
}

// Returns nullopt if the token is not a time or must be left to Python. Rounds
// numbers with an exponent as Python does.
std::optional<Time> timeOf(std::string_view token, bool isInNs) {
  if (token.empty()) {
    return std::nullopt;
  }
  if (isString(token)) {
    const std::optional<int64_t> ns =
        isInNs ? std::nullopt : nsOfDecimal(unquoted(token));
    return ns.has_value() ? std::optional(Time{*ns, false}) : std::nullopt;
  }
  if (!isInNs) {
    if (const std::optional<int64_t> ns = nsOfDecimal(token)) {
      return Time{*ns, false};
    }
  }
  const bool isWhole =
      token.find_first_not_of("-0123456789") == std::string_view::npos;
  if (isWhole) {
    const std::optional<int64_t> value = wholeNumber(token);
    if (!value.has_value() || *value < 0) {
      return std::nullopt;
    }
    if (isInNs) {
      return *value < kMostNs ? std::optional(Time{*value, true})
                              : std::nullopt;
    }
    if (double(*value) >= kMostUs) {
      return std::nullopt;
    }
    return Time{*value * 1000, false};
  }
  double value = 0;
  const char* const end = token.data() + token.size();
  const auto [rest, error] = std::from_chars(token.data(), end, value);
  if (error != std::errc() || rest != end) {
    return std::nullopt;
  }
  if (isInNs) {
    if (!(value >= 0 && value < double(kMostNs))) {
      return std::nullopt;
    }
    return Time{int64_t(value), true};
  }
  if (!(value >= 0 && value < kMostUs)) {
    return std::nullopt;
  }
  const double whole = std::floor(value);
  const double part = std::nearbyint((value - whole) * 1000);
  return Time{int64_t(whole) * 1000 + int64_t(part), false};
}

std::string nameOfCopy(std::string_view name, std::string_view kind) {
  std::string whole(name);
  whole.pop_back();
  return whole.append(" ").append(unquoted(kind)).append("\"");
}

std::optional<Time> momentOf(std::string_view token) {
  const std::optional<int64_t> value = wholeNumber(token);
  return timeOf(token, value.has_value() && double(*value) >= kMostUs);
}

} // namespace

int64_t Texts::number(std::string_view text) {
  const auto found = numbers_.find(text);
  if (found != numbers_.end()) {
    return found->second;
  }
  texts_.emplace_back(text);
  const int64_t number = int64_t(texts_.size()) - 1;
  numbers_.emplace(texts_.back(), number);
  return number;
}

void EventColumns::clear() {
  for (auto* column :
       {&category,
        &name,
        &startNs,
        &endNs,
        &thread,
        &correlation,
        &device,
        &stream,
        &isCollective}) {
    column->clear();
  }
  arguments.clear();
}

// Texts of an event's values. A missing value is empty.
struct EventScanner::Tokens {
  std::string_view phase;
  std::string_view category;
  std::string_view name;
  std::string_view process;
  std::string_view thread;
  std::string_view begin;
  std::string_view length;
  std::string_view arguments;
  std::string_view correlation;
  std::string_view device;
  std::string_view stream;
  std::string_view copyKind;
  bool isCollective = false;
};

EventScanner::EventScanner(
    std::vector<std::string> categories,
    std::vector<std::string> kept,
    std::vector<std::string> integers,
    std::string collective)
    : categories_(std::move(categories)),
      kept_(std::move(kept)),
      integers_(std::move(integers)),
      collective_(std::move(collective)),
      lastProcess_(categories_.size()) {}

size_t EventScanner::scan(std::string_view text, size_t at) {
  events_.clear();
  processes_.clear();
  lastProcess_.assign(categories_.size(), {});
  isUnusual_ = false;
  while (true) {
    at = std::min(text.find_first_not_of(" \t\n\r\f\v,:", at), text.size());
    if (at == text.size() || text[at] != '{') {
      return at;
    }
    const Outcome outcome = scanEvent(text, at);
    if (outcome != Outcome::kTaken) {
      isUnusual_ = outcome == Outcome::kUnusual;
      return at;
    }
  }
}

EventScanner::Outcome EventScanner::scanEvent(
    std::string_view text,
    size_t& at) {
  JsonScan scan(text, at);
  Tokens tokens;
  const auto argument = [&](std::string_view key) {
    const std::string_view value = scan.value(2);
    if (key == "correlation") {
      tokens.correlation = value;
    } else if (key == "device") {
      tokens.device = value;
    } else if (key == "stream") {
      tokens.stream = value;
    } else if (key == "copy kind") {
      tokens.copyKind = value;
    } else if (key == collective_) {
      tokens.isCollective = true;
    }
    return !value.empty();
  };
  const auto arguments = [&] {
    tokens.correlation = tokens.device = tokens.stream = tokens.arguments = {};
    tokens.copyKind = {};
    tokens.isCollective = false;
    scan.skipSpace();
    if (scan.next() != '{') {
      return !scan.value(1).empty();
    }
    const size_t begin = scan.place();
    if (!scan.object(argument)) {
      return false;
    }
    tokens.arguments = text.substr(begin, scan.place() - begin);
    return true;
  };
  const bool isWhole = scan.object([&](std::string_view key) {
    if (key == "args") {
      return arguments();
    }
    const std::string_view value = scan.value(1);
    if (key == "ph") {
      tokens.phase = value;
    } else if (key == "cat") {
      tokens.category = value;
    } else if (key == "name") {
      tokens.name = value;
    } else if (key == "pid") {
      tokens.process = value;
    } else if (key == "tid") {
      tokens.thread = value;
    } else if (key == "ts") {
      tokens.begin = value;
    } else if (key == "dur") {
      tokens.length = value;
    }
    return !value.empty();
  });
  if (!isWhole) {
    return JsonScan(text, at).value().empty() ? Outcome::kCutOff
                                              : Outcome::kUnusual;
  }
  if (!addRow(tokens, text)) {
    return Outcome::kUnusual;
  }
  at = scan.place();
  return Outcome::kTaken;
}

bool EventScanner::addRow(const Tokens& tokens, std::string_view text) {
  if (!isString(tokens.phase)) {
    return true;
  }
  const std::string_view phase = unquoted(tokens.phase);
  if (phase == "B" || phase == "E" || isEscaped(phase)) {
    return false;
  }
  // The reader in Python needs the names of processes.
  if (phase == "M" &&
      (tokens.name == "\"process_name\"" || isEscaped(tokens.name))) {
    return false;
  }
  if (phase == "X" && tokens.category.empty()) {
    return false;
  }
  if (phase != "X" || !isString(tokens.category)) {
    return true;
  }
  if (isEscaped(tokens.category)) {
    return false;
  }
  const int64_t category = categoryOf(unquoted(tokens.category));
  if (category < 0 || !isString(tokens.name)) {
    return true;
  }
  const std::optional<Time> begin = momentOf(tokens.begin);
  if (!begin.has_value()) {
    return false;
  }
  const std::optional<Time> length =
      tokens.length.empty() ? Time{} : timeOf(tokens.length, begin->isWholeNs);
  const std::optional<int64_t> thread = identifier(tokens.thread);
  const std::optional<int64_t> correlation = identifier(tokens.correlation);
  const std::optional<int64_t> device = identifier(tokens.device);
  const std::optional<int64_t> stream =
      tokens.stream.empty() ? thread : identifier(tokens.stream);
  if (!length.has_value() || !thread.has_value() || !correlation.has_value() ||
      !device.has_value() || !stream.has_value()) {
    return false;
  }
  noteProcess(category, tokens.process);
  events_.category.push_back(category);
  events_.name.push_back(
      isString(tokens.copyKind)
          ? names_.number(nameOfCopy(tokens.name, tokens.copyKind))
          : names_.number(tokens.name));
  events_.startNs.push_back(begin->ns);
  events_.endNs.push_back(begin->ns + length->ns);
  events_.thread.push_back(*thread);
  events_.correlation.push_back(*correlation);
  events_.device.push_back(*device);
  events_.stream.push_back(*stream);
  events_.isCollective.push_back(tokens.isCollective ? 1 : 0);
  const std::string_view arguments = tokens.arguments;
  events_.arguments.emplace_back(
      arguments.empty() ? 0 : size_t(arguments.data() - text.data()),
      arguments.size());
  return true;
}

void EventScanner::noteProcess(int64_t category, std::string_view process) {
  std::string& last = lastProcess_[size_t(category)];
  if (process.empty() || process == last) {
    return;
  }
  last = process;
  std::pair<int64_t, std::string> noted{category, last};
  const bool isNew = std::find(processes_.begin(), processes_.end(), noted) ==
      processes_.end();
  if (isNew && processes_.size() < kMostProcesses) {
    processes_.push_back(std::move(noted));
  }
}

int64_t EventScanner::categoryOf(std::string_view name) {
  if (name == categories_[lastCategory_]) {
    return int64_t(lastCategory_);
  }
  for (size_t i = 0; i < categories_.size(); ++i) {
    if (name == categories_[i]) {
      lastCategory_ = i;
      return int64_t(i);
    }
  }
  return -1;
}

std::string_view EventScanner::argumentsText(std::string_view text, size_t row)
    const {
  const auto [at, length] = events_.arguments.at(row);
  return text.substr(at, length);
}

EventScanner::Arguments EventScanner::arguments(
    std::string_view text,
    const std::vector<int64_t>& rows) {
  Arguments all;
  all.combination.reserve(rows.size());
  all.integers.assign(rows.size() * integers_.size(), kAbsent);
  std::vector<int64_t> numbers(kept_.size());
  int64_t* integers = all.integers.data();
  for (const int64_t chosen : rows) {
    std::fill(numbers.begin(), numbers.end(), -1);
    const auto [at, length] = events_.arguments[size_t(chosen)];
    JsonScan scan(text.substr(at, length));
    scan.object([&](std::string_view key) {
      const std::string_view value = scan.value(1);
      const auto column = std::find(integers_.begin(), integers_.end(), key);
      if (column != integers_.end()) {
        const std::optional<int64_t> integer = identifier(value);
        integers[column - integers_.begin()] = !integer.has_value() ? kUndecided
            : *integer >= 0                                         ? *integer
                            : kNoInteger;
        return true;
      }
      const auto place = std::find(kept_.begin(), kept_.end(), key);
      if (place != kept_.end()) {
        numbers[size_t(place - kept_.begin())] = values_.number(value);
      }
      return true;
    });
    integers += integers_.size();
    const auto [known, isNew] =
        numberOf_.emplace(numbers, int64_t(combinations_.size()));
    if (isNew) {
      combinations_.push_back(numbers);
    }
    all.combination.push_back(known->second);
  }
  return all;
}

} // namespace commprof::recordings
