// Reads the events of a profiler's Chrome trace into columns.
//
// The scanner does not interpret the names of events. It stops in front of an
// event with an unusual structure, which the reader in Python must handle.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace commprof::recordings {

// Numbers different texts from 0, in the order of their first use.
class Texts {
 public:
  int64_t number(std::string_view text);

  const std::string& operator[](size_t number) const {
    return texts_[number];
  }

  size_t size() const {
    return texts_.size();
  }

 private:
  std::deque<std::string> texts_; // a deque, so that texts keep their addresses
  std::unordered_map<std::string_view, int64_t> numbers_;
};

// One row for each complete event ("ph": "X") of a requested category. Times
// are on the trace's own clock.
struct EventColumns {
  std::vector<int64_t> category; // index in the list of categories
  // Index in names(). If the event has the argument "copy kind", the name ends
  // with the value of that argument.
  std::vector<int64_t> name;
  std::vector<int64_t> startNs;
  std::vector<int64_t> endNs;
  std::vector<int64_t> thread; // -1 if the thread is not a whole number
  // -1 if the value is not a whole number, also in `device` and `stream`.
  std::vector<int64_t> correlation;
  std::vector<int64_t> device;
  std::vector<int64_t> stream; // `tid` if the arguments have no stream
  std::vector<int64_t> isCollective; // 1 if the arguments name a collective
  std::vector<std::pair<size_t, size_t>> arguments; // position and length

  void clear();
};

// Scans traces, one after the other, in one thread. Indices of names and values
// stay valid for later traces.
class EventScanner {
 public:
  // `kept`: keys of arguments whose values combinations() holds. `integers`:
  // keys of arguments that arguments() returns as columns. `collective`: a key
  // that only events of collectives have.
  EventScanner(
      std::vector<std::string> categories,
      std::vector<std::string> kept,
      std::vector<std::string> integers,
      std::string collective);

  // Replaces events() by the events that begin at `at`. Returns the place at
  // which the scan stopped. At that place is an event that is cut off or
  // unusual, or no event.
  size_t scan(std::string_view text, size_t at);

  const EventColumns& events() const {
    return events_;
  }
  // Names of events, with the quotes and escapes of the text.
  const Texts& names() const {
    return names_;
  }
  // Values of arguments, with the quotes and escapes of the text.
  const Texts& values() const {
    return values_;
  }
  // The different pairs (index of the category, process) of the last scan, at
  // most kMostProcesses.
  const std::vector<std::pair<int64_t, std::string>>& processes() const {
    return processes_;
  }
  static constexpr size_t kMostProcesses = 256;

  // True if the last scan stopped at an event that is complete but unusual.
  bool isUnusual() const {
    return isUnusual_;
  }

  struct Arguments {
    // For each row, the index of its values in combinations().
    std::vector<int64_t> combination;
    // One value for each row and each key of `integers`. kAbsent: no value.
    // kNoInteger: the value is not a whole number from 0 to 2^62 - 1.
    // kUndecided: Python must decide.
    std::vector<int64_t> integers;
  };
  static constexpr int64_t kAbsent = -1, kNoInteger = -2, kUndecided = -3;

  Arguments arguments(std::string_view text, const std::vector<int64_t>& rows);

  // Returns the JSON text of a row's arguments.
  std::string_view argumentsText(std::string_view text, size_t row) const;

  // The different combinations of the kept arguments. A combination has an
  // index of a value for each kept key; -1: no value. Indices of combinations
  // stay valid for later traces.
  const std::vector<std::vector<int64_t>>& combinations() const {
    return combinations_;
  }

 private:
  enum class Outcome { kTaken, kCutOff, kUnusual };

  struct Tokens;

  // Moves `at` behind the event if the event was taken.
  Outcome scanEvent(std::string_view text, size_t& at);
  // Returns false if the reader in Python must read the event.
  bool addRow(const Tokens& tokens, std::string_view text);
  int64_t categoryOf(std::string_view name);
  void noteProcess(int64_t category, std::string_view process);

  const std::vector<std::string> categories_;
  const std::vector<std::string> kept_;
  const std::vector<std::string> integers_;
  const std::string collective_;
  EventColumns events_;
  Texts names_;
  Texts values_;
  std::vector<std::vector<int64_t>> combinations_;
  std::map<std::vector<int64_t>, int64_t> numberOf_;
  size_t lastCategory_ = 0;
  std::vector<std::pair<int64_t, std::string>> processes_;
  std::vector<std::string> lastProcess_; // by category
  bool isUnusual_ = false;
};

} // namespace commprof::recordings
